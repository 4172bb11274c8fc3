"""Which cases the wall shows: those of the settings, or the first four kinds that there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.metrics.snapshot import Snapshot, shown
from pvebench.model.definition import Definition
from pvebench.model.plain_words import workload_words

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
