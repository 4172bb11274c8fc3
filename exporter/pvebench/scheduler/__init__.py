"""Scheduling of due cases and the worker loop."""

from pvebench.scheduler.due_cases import Due, next_due
from pvebench.scheduler.worker import Worker

__all__ = ["Due", "Worker", "next_due"]
