"""Free space of a storage, and whether the volumes of cases fit into it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pvebench.errors import NoSpace
from pvebench.model.units import MIB, show_bytes
from pvebench.model.workload import Case

RESERVE_BYTES: Final = 256 * MIB
"""Space that stays free on a storage: a full one stops every VM on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Free space of a storage.

    Attributes:
        free: bytes; space of pvebench's own volumes that a cycle creates again counts as free.
        where: place for messages, such as `on pve1`.
        reserve: bytes that must stay free.
        thick: whether each snapshot has the size of the volume from the beginning.
        elsewhere: operations whose copies are on other storages.
    """

    free: int
    where: str
    reserve: int = RESERVE_BYTES
    thick: bool = False
    elsewhere: Collection[str] = ()

    def lacks(self, storage: str, need: int) -> str:
        """Return why `need` bytes do not fit; empty: they do."""
        if self.free >= need + self.reserve:
            return ""
        return (
            f"storage {storage}: {show_bytes(need)} needed, {show_bytes(self.free)} free "
            f"{self.where} ({show_bytes(self.reserve)} must stay free)"
        )

    def require(self, storage: str, need: int) -> None:
        """Raise NoSpace if `need` bytes do not fit."""
        if lacking := self.lacks(storage, need):
            raise NoSpace(
                lacking, next_step="free space, or reduce volume.size or the scale of the pack"
            )


def volume_space(case: Case, *, thick: bool = False) -> int:
    """Return the maximum bytes of the case's volume with its snapshots, in one VM."""
    disk = case.scenario.disk
    if thick:
        return case.scenario.volume_bytes * (1 + disk.chain)
    return case.scenario.volume_bytes * (disk.copies if disk.chain or disk.backing else 1)


def unfit(cases: Iterable[Case], spaces: Mapping[str, Space]) -> dict[str, str]:
    """Return slug -> reason for the cases whose volumes do not fit.

    A volume stays until the cycle ends, so the volumes of earlier cases need their space, too.

    Args:
        cases: in the order of their runs.
        spaces: of the storages with a known space.
    """
    volumes: dict[tuple[str, str], int] = {}
    reasons: dict[str, str] = {}
    for case in cases:
        name = case.scenario.storage
        space = spaces.get(name)
        if space is None:
            continue
        key = name, case.scenario.volume
        own = volume_space(case, thick=space.thick)
        others = sum(size for (at, _), size in volumes.items() if at == name)
        left = replace(space, free=space.free - others + volumes.get(key, 0))
        extra = 0 if case.workload.during in space.elsewhere else case.extra_bytes
        if lacking := left.lacks(name, own + extra):
            reasons[case.slug] = lacking
        else:
            kept = own + case.scenario.volume_bytes * case.workload.further_vms
            volumes[key] = max(volumes.get(key, 0), kept)
    return reasons
