"""Snapshot of the results that the collectors read, and the cases of the wall dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pvebench.config.settings import WallSettings
from pvebench.metrics import catalog
from pvebench.metrics.sample_lines import Families
from pvebench.model.definition import Definition, workload_text
from pvebench.model.durability import Known
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.units import DAY
from pvebench.store.current import Trend, View
from pvebench.store.records import CaseRecord, Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Results at one moment.

    Attributes:
        records: state of each case that may be shown.
        intervals: case key -> seconds between its runs; only cases of the current packs.
        episodes: environment periods of the shown nodes, ordered by their start.
        max_age_seconds: results older than this at `now` are not shown.
        wall: slots of the wall dashboard; empty: selected from the results.
        trends: case key -> latest points of its main metric.
        durability: measured by `pvebench durability`.
    """

    now: datetime
    records: Sequence[CaseRecord]
    episodes: Sequence[EnvironmentPeriod] = ()
    intervals: Mapping[str, float] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    max_age_seconds: float = 14 * DAY
    simulated: bool = False
    wall: Sequence[WallSettings] = ()
    trends: Mapping[str, Trend] = field(default_factory=dict)
    durability: Known = field(default_factory=Known)


def snapshot_of(
    view: View, *, now: datetime, max_age_seconds: float, wall: Sequence[WallSettings] = ()
) -> Snapshot:
    """Return the results of a view for the cases of the current packs and their nodes."""
    nodes = {planned.definition.node for planned in view.planned.values()}
    return Snapshot(
        now=now,
        records=[view.cases[key] for key in view.planned if key in view.cases],
        episodes=[episode for episode in view.periods if episode.node in nodes],
        intervals={key: planned.every_seconds for key, planned in view.planned.items()},
        totals=view.totals,
        max_age_seconds=max_age_seconds,
        simulated=view.simulated,
        wall=wall,
        trends=view.trends,
        durability=view.durability,
    )


def shown(snapshot: Snapshot) -> list[CaseRecord]:
    """Return the records whose last run is recent enough to be exposed."""
    return [
        record
        for record in snapshot.records
        if (snapshot.now - record.last.finished).total_seconds() <= snapshot.max_age_seconds
    ]


# --- wall slots: cases from the settings, or the first four kinds of access ---

SLOTS: Final = 4
LARGE_BLOCK: Final = 65536
"""Block size in bytes from which throughput is shown in bytes per second."""
KINDS: Final = ("randread", "randwrite", "read", "write")
"""Order of the slots if the settings define none."""


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
    def key(self) -> tuple[str, str, str]:
        return self.labels["scenario"], self.labels["workload"], self.direction

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key, preferred first: the default configuration, then alphabetical order."""
        default = {"bus": "scsi", "format": "raw", "cache": "none"}
        differing = [self.labels[key] != value for key, value in default.items()]
        return (*differing, self.labels["node"], self.labels["scenario"], self.labels["workload"])


def collect_wall(snapshot: Snapshot, families: Families) -> None:
    """Add the cases of the wall dashboard's slots."""
    for slot, title, candidate in _selected(snapshot):
        block = int(candidate.definition.parameters.get("bs", 0))
        labels = {
            **candidate.labels,
            "slot": str(slot),
            "direction": candidate.direction,
            "title": title or workload_text(candidate.definition),
            "figure": "bandwidth" if block >= LARGE_BLOCK else "iops",
        }
        families.add(catalog.WALL_SLOT, labels, 1)


def _selected(snapshot: Snapshot) -> Iterator[tuple[int, str, _Candidate]]:
    """Select configured cases, then one of each kind, then any: a wall shows what was measured."""
    candidates = sorted(_candidates(snapshot), key=lambda candidate: candidate.rank)
    known: dict[tuple[str, str, str], _Candidate] = {}
    for candidate in candidates:
        known.setdefault(candidate.key, candidate)
    chosen: dict[int, tuple[str, _Candidate]] = {}
    for slot, configured in enumerate(snapshot.wall[:SLOTS], start=1):
        key = (configured.scenario, configured.workload, configured.direction)
        if key in known:
            chosen[slot] = configured.title, known.pop(key)
    for exact in (True, False):
        for slot, kind in enumerate(KINDS, start=1):
            rest = (one for one in known.values() if one.rw == kind or not exact)
            if slot not in chosen and (found := next(rest, None)):
                chosen[slot] = "", known.pop(found.key)
    for slot, (title, candidate) in sorted(chosen.items()):
        yield slot, title, candidate


def _candidates(snapshot: Snapshot) -> Iterator[_Candidate]:
    for record in shown(snapshot):
        if record.good is not None:
            for direction in record.definition.directions:
                yield _Candidate(record.definition, str(direction))
