"""Scheduling of due cases and the worker loop. A plan needs no store: import its modules."""
