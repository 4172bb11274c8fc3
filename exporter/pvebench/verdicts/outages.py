"""Times without results of a node, from the histories of its cases."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from pvebench.analysis.judge import NodeReport
from pvebench.model.units import DAY, show_span

LEAST_SECONDS: Final = DAY
OVERDUE: Final = 2.5
"""Usual pauses of a case after which results are missing; as in the alert."""
NEAR: Final = 10
"""Pauses on each side that show what is usual at a time."""
MOST: Final = 10
"""Maximum outages per node, newest first."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Time between two results of a node, in Unix seconds."""

    node: str
    begin: float
    end: float


def outages(report: NodeReport) -> tuple[Outage, ...]:
    """Return when a node had no result though several were due, the newest first."""
    return tuple(reversed([*_outages(report)][-MOST:]))


def _outages(report: NodeReport) -> Iterator[Outage]:
    """Yield the long pauses of the case with most runs in which no other case had a run."""
    histories = {
        verdict.history.of: verdict.history for verdict in report.verdicts if verdict.history.points
    }
    times = max((history.times() for history in histories.values()), key=len, default=())
    pauses = [after - before for before, after in pairwise(times)]
    for place, pause in enumerate(pauses):
        if pause < LEAST_SECONDS:
            continue
        usual = statistics.median(pauses[max(0, place - NEAR) : place + NEAR + 1])
        least = max(LEAST_SECONDS, OVERDUE * usual)
        if pause < least:
            continue
        middle = times[place] + pause / 2
        splits = [(history.times(), history.split(middle)) for history in histories.values()]
        begin = max(ends[split - 1] for ends, split in splits if split)
        end = min(ends[split] for ends, split in splits if split < len(ends))
        if end - begin >= least:
            yield Outage(report.node, begin, end)


def outage_text(outage: Outage) -> str:
    """Return `pve3 had no results for 7 days, from 2026-10-16 to 2026-10-23`."""
    span = show_span(outage.end - outage.begin)
    begin, end = (datetime.fromtimestamp(at, UTC) for at in (outage.begin, outage.end))
    return f"{outage.node or 'history'} had no results for {span}, from {begin:%F} to {end:%F}"
