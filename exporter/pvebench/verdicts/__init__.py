"""From stored runs to verdicts, changes and their sentences.

Updating verdicts takes time: it has its own thread, apart from scrapes and runs.
"""

from __future__ import annotations

from pvebench.verdicts.feed import NUMBERS, Feed
from pvebench.verdicts.verdict_service import VerdictService, past_verdicts
from pvebench.verdicts.verdicts import Verdicts

__all__ = ["NUMBERS", "Feed", "VerdictService", "Verdicts", "past_verdicts"]
