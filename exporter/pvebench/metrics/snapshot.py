"""What the screen on the wall shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.model.definition import Definition, workload_words
from pvebench.model.environment import EnvironmentPeriod
from pvebench.store import CaseRecord, Totals
from pvebench.store.current import Trend, View


@dataclass(frozen=True, slots=True, kw_only=True)
class WallSlot:
    """One of the wall's four places.

    Attributes:
        scenario, workload: slugs of the case, on every node that has it.
        direction: read, write or trim.
        title: shown above the number; empty: the workload's own.
    """

    scenario: str
    workload: str
    direction: str
    title: str = ""


# --- What the results block is made from: one consistent moment of the results.


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
    episodes: Sequence[EnvironmentPeriod] = ()
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


# --- Which cases the wall shows: those of the settings, or the first four kinds that there are.

SLOTS: Final = 4
LARGE_BLOCK: Final = 65536
"""From here on people think in bytes a second."""
KINDS: Final = ("randread", "randwrite", "read", "write")
"""The order of the slots when nobody has chosen."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    definition: Definition
    direction: str

    @property
    def labels(self) -> Mapping[str, str]:
        return self.definition.labels

    @property
    def rw(self) -> str:
        return str(self.definition.parameters.get("rw", ""))

    @property
    def rank(self) -> tuple[Any, ...]:
        """Lower is shown rather: Proxmox's usual disk, then the alphabet."""
        usual = {"bus": "scsi", "format": "raw", "cache": "none"}
        odd = [self.labels[key] != value for key, value in usual.items()]
        return (*odd, self.labels["node"], self.labels["scenario"], self.labels["workload"])


def collect_wall(snapshot: Snapshot, families: Families) -> None:
    """Name the cases of the wall's slots."""
    for slot, title, candidate in _chosen(snapshot):
        block = int(candidate.definition.parameters.get("bs", 0))
        labels = {
            **candidate.labels,
            "slot": str(slot),
            "direction": candidate.direction,
            "title": title or workload_words(candidate.definition),
            "figure": "bandwidth" if block >= LARGE_BLOCK else "iops",
        }
        families.add(catalog.WALL_SLOT, labels, 1)


def _chosen(snapshot: Snapshot) -> Iterator[tuple[int, str, _Candidate]]:
    candidates = sorted(_candidates(snapshot), key=lambda one: one.rank)
    if not snapshot.wall:
        yield from _usual(candidates)
        return
    for slot, wish in enumerate(snapshot.wall[:SLOTS], start=1):
        asked = (wish.scenario, wish.workload, wish.direction)
        for one in candidates:
            if (one.labels["scenario"], one.labels["workload"], one.direction) == asked:
                yield slot, wish.title, one
                break


def _usual(candidates: list[_Candidate]) -> Iterator[tuple[int, str, _Candidate]]:
    """Choose one case of each kind, all of one scenario as far as it has them."""
    for slot, kind in enumerate(KINDS, start=1):
        found = next((one for one in candidates if one.rw == kind), None)
        if found is not None:
            yield slot, "", found


def _candidates(snapshot: Snapshot) -> Iterator[_Candidate]:
    for record in shown(snapshot):
        if record.good is not None:
            for direction in record.definition.directions:
                yield _Candidate(record.definition, str(direction))
