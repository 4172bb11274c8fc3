"""What cases use of a storage: free space, bytes written, wear of its drives. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pvebench.errors import NoSpace
from pvebench.model.rules import StorageKind
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import GIB, MIB, show_bytes
from pvebench.model.workload import Case

# --- Free space, and whether the volumes of cases fit into it.

NodeStorage = tuple[str, str]
"""Node and storage."""
RESERVE_BYTES: Final = 256 * MIB
"""Space that stays free on a storage: a full one stops every VM on it."""
_SAME_BYTES: Final = 64 * MIB
"""Maximum difference of the free bytes of storages that share their space: ZFS rounds those of a
directory down to a record, at most 16 MiB, and others write between two requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Free space of a storage.

    Attributes:
        free: bytes; space of pvebench's own volumes that a cycle creates again counts as free.
        where: place for messages, such as `on pve1`.
        reserve: bytes that must stay free.
        held: bytes of `free` that these volumes have now.
    """

    free: int
    where: str
    reserve: int = RESERVE_BYTES
    held: int = 0

    @property
    def text(self) -> str:
        """Free bytes, where, and how many of them must stay free."""
        return (
            f"{show_bytes(self.free)} free {self.where} ({show_bytes(self.reserve)} must stay free)"
        )

    def lacks(self, storage: str, need: int) -> str:
        """Return why `need` bytes do not fit; empty: they do."""
        if self.free >= need + self.reserve:
            return ""
        return f"storage {storage}: {show_bytes(need)} needed, {self.text}"

    def require(self, storage: str, need: int) -> None:
        """Raise NoSpace if `need` bytes do not fit."""
        if lacking := self.lacks(storage, need):
            raise NoSpace(
                lacking, next_step="free space, or reduce volume.size or the scale of the pack"
            )


def require_memory(machine: Machine, count: int, free: int) -> None:
    """Raise NoSpace if so many further VMs do not fit into the free bytes of memory."""
    if (need := count * machine.memory_bytes) > free:
        raise NoSpace(
            f"memory: {show_bytes(need)} needed for {count} more VMs, {show_bytes(free)} available",
            next_step="reduce vms or guest.memory in the pack",
        )


def lacking(need: Mapping[str, int], spaces: Mapping[str, Space]) -> dict[str, str]:
    """Return storage -> why its need does not fit, for the storages with a known space.

    The needs of storages that share their space add up. Equal free bytes show that: Proxmox does
    not say which pool a directory is on. Totals differ even there, because that of a dataset has
    its own bytes (`zfs_statvfs` in zfs_vfsops.c of OpenZFS).
    """
    reasons = {}
    for name in filter(spaces.__contains__, need):
        same = _sharing(name, spaces)
        space = replace(
            spaces[name],
            free=spaces[name].free - spaces[name].held + sum(s.held for s in same.values()),
            reserve=max(s.reserve for s in same.values()),
        )
        others = ", ".join(other for other in same if other != name and need.get(other))
        label = f"{name} with {others}, which have the same space" if others else name
        if reason := space.lacks(label, sum(need.get(other, 0) for other in same)):
            reasons[name] = reason
    return reasons


def _sharing(name: str, spaces: Mapping[str, Space]) -> dict[str, Space]:
    """Return the storages that have the same free bytes without pvebench's volumes."""
    free = spaces[name].free - spaces[name].held
    return {
        other: space
        for other, space in spaces.items()
        if abs(space.free - space.held - free) <= _SAME_BYTES
    }


def volume_space(scenario: Scenario, *, thick: bool = False) -> int:
    """Return the maximum bytes of a volume with its snapshots, in one VM and without a base.

    Args:
        thick: as `StorageKind.thick`.
    """
    disk = scenario.disk
    return scenario.volume_bytes * (1 + disk.chain if thick else disk.copies)


class SpaceNeed:
    """Space that cases need on their storages, in any order.

    Volumes stay until the cycle ends, with their snapshots and bases, and so do those of further
    VMs. What an operation creates is removed after its run, so only the largest counts.
    """

    def __init__(self, storages: Mapping[str, StorageKind]) -> None:
        """Create the need of no case.

        Args:
            storages: those of the cases.
        """
        self._storages = storages
        self._stays: dict[tuple[str, str], int] = {}
        self._passes: Counter[str] = Counter()

    def add(self, *cases: Case) -> SpaceNeed:
        """Add the need of cases; return itself."""
        for case in cases:
            for thing, size in self._kept(case).items():
                self._stays[thing] = max(self._stays.get(thing, 0), size)
            self._passes |= self._passing(case)
        return self

    def total(self) -> dict[str, int]:
        """Return storage -> bytes; also storages that only operations write to."""
        total = Counter(self._passes)
        for (storage, _), size in self._stays.items():
            total[storage] += size
        return dict(total)

    def with_case(self, case: Case) -> SpaceNeed:
        """Return the need with one more case."""
        copy = SpaceNeed(self._storages)
        copy._stays, copy._passes = dict(self._stays), Counter(self._passes)
        return copy.add(case)

    def beside(self, case: Case, storage: str) -> int:
        """Return the bytes of the volumes there that the case does not use."""
        own = self._kept(case)
        at = self._stays.items()
        return sum(size for thing, size in at if thing[0] == storage and thing not in own)

    def _kept(self, case: Case) -> dict[tuple[str, str], int]:
        scenario, name = case.scenario, case.scenario.storage
        storage, disk = self._storages[name], scenario.disk
        volume = scenario.volume
        own = volume_space(scenario, thick=storage.thick)
        if disk.in_container and storage.container_filesystem is not None:
            return {(name, f"{volume} lxc"): own, (name, "root lxc"): storage.container_root}
        kept = {}
        for number in range(1, 2 + case.workload.further_vms):
            kept[name, f"{volume} vm{number}"] = own
            if disk.backing:
                base = f"base {scenario.volume_bytes} vm{number}"
                kept[name, base] = scenario.volume_bytes
        return kept

    def _passing(self, case: Case) -> Counter[str]:
        scenario = case.scenario
        created = self._storages[scenario.storage].operations.space(
            case.workload.during,
            scenario.storage,
            volume_bytes=scenario.volume_bytes,
            memory_bytes=scenario.machine.memory_bytes,
        )
        return Counter(created)


def unfit(
    cases: Iterable[Case], spaces: Mapping[str, Space], storages: Mapping[str, StorageKind]
) -> dict[str, str]:
    """Return slug -> reason for the cases that do not fit beside the ones before them.

    Args:
        spaces: of the storages with a known space.
        storages: those of the cases.
    """
    need = SpaceNeed(storages)
    reasons: dict[str, str] = {}
    for case in cases:
        more = need.with_case(case)
        beside = {name: need.beside(case, name) for name in spaces}
        left = {
            name: replace(space, free=space.free - beside[name], held=space.held - beside[name])
            for name, space in spaces.items()
        }
        own = {name: size - beside.get(name, 0) for name, size in more.total().items()}
        if short := lacking(own, left):
            reasons[case.slug] = short[min(short)]
        else:
            need = more
    return reasons


# --- Bytes that measuring writes, its write budget, and wear of drives.


YEAR_DAYS: Final = 365
BUDGET_SHARE: Final = 0.05
"""Default write budget per 24 hours, as a share of the storage's size. Consumer SSDs are usually
rated for about 0.3 of their size per day."""
MIN_BUDGET_BYTES: Final = 10 * GIB
"""Smallest default write budget; also that of a storage of unknown size."""


AT_MOST: Final = "with a fast NVMe drive at most"
"""Before stored runs show what a cycle writes."""
MIN_USED: Final = 0.05
"""Smallest wear to compute a share per year from: drives report wear in steps of 0.01."""


@dataclass(frozen=True, slots=True)
class Wear:
    """Wear of the most worn drive of a storage, from the drive's own counters.

    Attributes:
        used: share of its rated endurance.
        written_bytes: bytes written to it since it was new; 0: unknown.
    """

    used: float
    written_bytes: int = 0

    def share_of(self, written: float) -> float | None:
        """Return the share of the rated endurance that `written` more bytes use; None: unknown."""
        known = self.written_bytes and self.used >= MIN_USED
        return self.used * written / self.written_bytes if known else None


def default_budget(size_bytes: int | None) -> int:
    """Return the default write budget per 24 hours of a storage; None: its size is unknown."""
    return max(MIN_BUDGET_BYTES, round((size_bytes or 0) * BUDGET_SHARE))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCost:
    """Bytes that all packs write to a storage on a node.

    Attributes:
        cycle_bytes: in one cycle of each pack.
        day_bytes: in 24 hours, with intervals that keep to the budget.
        measured: whether they are the mean of stored runs; else an upper limit.
        budget_bytes: write budget per 24 hours; None: none.
        longer: for each pack with a longer interval than its own, both intervals as text.
        wear: of its drives, or why it is unknown.
    """

    node: str
    storage: str
    cycle_bytes: float
    day_bytes: float
    measured: bool = False
    budget_bytes: int | None = None
    longer: tuple[str, ...] = ()
    wear: Wear | str = ""

    @property
    def year_bytes(self) -> float:
        """In a year."""
        return self.day_bytes * YEAR_DAYS

    @property
    def year_wear(self) -> float | None:
        """Share of the drive's rated endurance in a year; None: unknown."""
        return self.wear.share_of(self.year_bytes) if isinstance(self.wear, Wear) else None

    @property
    def once(self) -> str:
        """The cost of one cycle in a line."""
        limit = "about" if self.measured else AT_MOST
        return f"writes to {self.storage}: {limit} {show_bytes(self.cycle_bytes)} per cycle"

    @property
    def text(self) -> str:
        """The cost of continuous measuring in a line."""
        day, year = show_bytes(self.day_bytes), show_bytes(self.year_bytes)
        return f"{self.once}, {day} per day, {year} per year{self._budget}; {self._wear}"

    @property
    def _wear(self) -> str:
        if not isinstance(self.wear, Wear):
            return ": ".join(filter(None, ("drive wear unknown", self.wear)))
        share = self.year_wear
        year = "share per year unknown" if share is None else f"about {share:.1%} more per year"
        return f"drive wear {self.wear.used:.0%} of the rated endurance, {year}"

    @property
    def _budget(self) -> str:
        if self.budget_bytes is None:
            return "; no write budget"
        budget = f"{show_bytes(self.budget_bytes)} a day (write_budget)"
        if self.longer:
            until = "" if self.measured else " until a cycle has measured it,"
            return f"; {', '.join(self.longer)}{until} to stay within {budget}"
        return f"; budget {budget}"


def cost_lines(costs: tuple[WriteCost, ...], *, once: bool = False) -> tuple[str, ...]:
    """Return a line for each storage, with the node if there are several; `once`: of one cycle."""
    several = len({cost.node for cost in costs}) > 1
    return tuple(f"{cost.node}: " * several + (cost.once if once else cost.text) for cost in costs)
