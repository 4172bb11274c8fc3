"""Executes one case: boot, attach, verify, fill, settle, measure, collect."""

from pvebench.runner.observer import Observer, Observers
from pvebench.runner.runner import Runner

__all__ = ["Observer", "Observers", "Runner"]
