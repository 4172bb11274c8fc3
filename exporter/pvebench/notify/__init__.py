"""Tells people of changes: what is to be told, the queue, the way out; never in measuring's way."""
