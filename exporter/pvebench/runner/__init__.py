"""Execution of one case: boot, attach, verify, fill, settle, measure, collect."""

from pvebench.runner.runner import Observers, Runner, RunObserver

__all__ = ["Observers", "RunObserver", "Runner"]
