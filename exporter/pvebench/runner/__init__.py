"""Execution of one case: boot, attach, verify, fill, settle, measure, collect."""
