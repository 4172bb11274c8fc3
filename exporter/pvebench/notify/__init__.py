"""Notifications about changes: planner, queue, delivery outside the workers."""
