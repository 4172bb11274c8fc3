"""What the results block is made from: one consistent reading of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pvebench.model.wall import WallSlot
from pvebench.store import CaseRecord, Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A moment's results.

    Attributes:
        records: what is known of each case that may be shown.
        intervals: case key -> seconds between its runs; only cases of the present packs.
        environments: as `Store.environments` gives them.
        max_age_seconds: results older than this, counted from `now`, are not shown.
        wall: what the wall shows; empty: chosen from the results.
    """

    now: datetime
    records: Sequence[CaseRecord]
    environments: Sequence[Mapping[str, Any]]
    intervals: Mapping[str, float] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    max_age_seconds: float = 14 * 86400.0
    simulated: bool = False
    wall: Sequence[WallSlot] = ()


def shown(snapshot: Snapshot) -> list[CaseRecord]:
    """Return the records whose last attempt is young enough to be on the page."""
    return [
        record for record in snapshot.records
        if (snapshot.now - record.last.finished).total_seconds() <= snapshot.max_age_seconds
    ]  # fmt: skip
