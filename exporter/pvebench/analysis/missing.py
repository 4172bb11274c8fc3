"""What is missing until something can be told of a case, and when it will be known."""

from __future__ import annotations

import itertools
import math
import statistics
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.case_history import CaseHistory
from pvebench.analysis.levels.difference import Difference, size_text

CLAIM: Final = math.log(1.1)
"""Change that must be excluded before anything is called the same."""
TIMES: Final = 1.5
"""Times a figure's least effect that must be excluded at least: of those that vary by nature."""
PACE: Final = 10
"""Newest runs whose pace is the present schedule's."""


def claim_of(history: CaseHistory) -> float:
    """Return the size of change that must be excluded to call a case the same."""
    return max(CLAIM, TIMES * history.figure.least_effect)


def missing_text(history: CaseHistory, apart: Difference) -> str:
    """Return what could be told now, and when it will be known."""
    now = (
        f"{count_text(apart.after, 'run')} after {apart.before}: up to {size_text(apart.excluded)}"
    )
    size = claim_of(history)
    more = apart.more_runs(size)
    if more is None:
        return f"{now} could hide; {apart.before} runs before are too few ever to exclude 10 %"
    return f"{now} could hide; {size_text(size)} {when_text(history, more)}"


def when_text(history: CaseHistory, runs: int) -> str:
    """Return when so many more runs will be there, at the pace of the newest ones."""
    times = history.times()[-PACE:]
    text = f"after {count_text(runs, 'more run')}"
    if len(times) < 2:
        return text
    pace = statistics.median(after - before for before, after in itertools.pairwise(times))
    then = datetime.fromtimestamp(times[-1] + runs * pace, UTC)
    days = runs * pace / 86400
    when = f"{then:%A}" if days < 6 else f"{then:%Y-%m-%d}"
    return f"{text}, about {when if days >= 1 else f'{then:%A %H} h UTC'}"


def count_text(count: int, noun: str) -> str:
    """Return `1 run`, `2 runs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
