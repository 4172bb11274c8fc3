"""What the results block is made from: one consistent moment of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pvebench.model.environment import Episode
from pvebench.model.wall import WallSlot
from pvebench.results import Trend, View
from pvebench.store import CaseRecord, Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A moment's results.

    Attributes:
        records: what is known of each case that may be shown.
        intervals: case key -> seconds between its runs; only cases of the present packs.
        episodes: of the nodes that are shown, in the order in which they began.
        max_age_seconds: results older than this, counted from `now`, are not shown.
        wall: what the wall shows; empty: chosen from the results.
        trends: case key -> newest points of its main number.
    """

    now: datetime
    records: Sequence[CaseRecord]
    episodes: Sequence[Episode] = ()
    intervals: Mapping[str, float] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    max_age_seconds: float = 14 * 86400.0
    simulated: bool = False
    wall: Sequence[WallSlot] = ()
    trends: Mapping[str, Trend] = field(default_factory=dict)


def snapshot_of(
    view: View, *, now: datetime, max_age_seconds: float, wall: Sequence[WallSlot] = ()
) -> Snapshot:
    """Return what may be shown of a moment: the cases of the present packs, and their nodes."""
    nodes = {planned.definition.node for planned in view.planned.values()}
    return Snapshot(
        now=now,
        records=[view.cases[key] for key in view.planned if key in view.cases],
        episodes=[episode for episode in view.episodes if episode.node in nodes],
        intervals={key: planned.every_seconds for key, planned in view.planned.items()},
        totals=view.totals,
        max_age_seconds=max_age_seconds,
        simulated=view.simulated,
        wall=wall,
        trends=view.trends,
    )


def shown(snapshot: Snapshot) -> list[CaseRecord]:
    """Return the records whose last attempt is young enough to be on the page."""
    return [
        record
        for record in snapshot.records
        if (snapshot.now - record.last.finished).total_seconds() <= snapshot.max_age_seconds
    ]
