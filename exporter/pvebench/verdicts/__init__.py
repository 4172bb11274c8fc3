"""From the store to verdicts: reads what is new, has it judged, keeps what was said.

Judging takes its time: it is done in its own thread, never in a scrape or between runs.
"""

from __future__ import annotations

from pvebench.verdicts.feed import NUMBERS, Feed
from pvebench.verdicts.verdict_service import VerdictService, past_verdicts
from pvebench.verdicts.verdicts import Verdicts

__all__ = ["NUMBERS", "Feed", "VerdictService", "Verdicts", "past_verdicts"]
