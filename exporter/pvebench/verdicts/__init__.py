"""Verdicts from stored results, and their text.

Judging is slow, so it has its own thread; scrapes and workers never wait for it.
"""

from __future__ import annotations

from pvebench.verdicts.feed import NUMBERS, Feed
from pvebench.verdicts.verdict_service import VerdictService, past_verdicts
from pvebench.verdicts.verdicts import Verdicts

__all__ = ["NUMBERS", "Feed", "VerdictService", "Verdicts", "past_verdicts"]
