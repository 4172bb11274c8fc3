"""What else changed with a level: the storage, its drives, the node's other work, ZFS' cache.

It is named before software is: an upgrade often comes when something else changes too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.model.units import show_bytes

Beside = Mapping[tuple[str, str], float]
"""(metric, part) -> value of one run, of what belongs to no direction."""

METRICS: Final = (
    "storage_used",
    "zfs_fragmentation",
    "disk_wear",
    "disk_margin",
    "zfs_cache",
    "md_sync",
    "zfs_scan",
    "disturbed",
    "host_cpu",
    "host_pressure",
)
"""Metrics of the store that are looked at."""
OF_VERSION: Final[Mapping[str, frozenset[str]]] = {
    "zfs_fragmentation": frozenset({"zfs", "kernel"})
}
"""Metric -> facts across a change of which it does not compare: OpenZFS 2.3.1 counts fragmentation
otherwise than 2.3.0 (`zfs_frag_table` in module/zfs/metaslab.c), and comes with a kernel."""
LEAST: Final = 5
"""Runs on each side that must know a number, of all cases that are looked at."""
FULL: Final = (0.9, 0.8)
"""Shares of a storage above which it may get slower; of ZFS, Oracle's "Storage Pool Practices for
Performance" names 90 % for most loads, and 80 % for small blocks that are always written anew."""
FRAGMENTED: Final = 0.77
"""From here on ZFS itself prefers other places to write to, if it has any
(`zfs_metaslab_fragmentation_threshold` in zfs(4); before 2.3.1 from 70 % on)."""
WORN: Final = 1.0
"""Share of what a drive's maker allows it to wear. It may go on beyond (NVM Express, "Percentage
Used"), so that it is no more than a thing to know."""
MOST, HARDLY_ANY = 0.5, 0.1
"""Shares of the runs after and before that something falls into, to be what they differ by."""
CORES: Final = 1.0
"""Cores that the node's other work takes more, at least."""
WAITING: Final = 0.1
"""Share of the time that tasks of the node wait more, at least."""
TIMES: Final = 2.0
"""Times as much as before that it must be, or of a cache as little."""
HOT: Final = 3.0
"""Degrees from the most that a drive's maker allows at which it may hold itself back: at the limit
itself it does (NVM Express, "Composite Temperature"), and it swings about it."""


@dataclass(frozen=True, slots=True)
class ConcurrentChange:
    """Something that changed with a level.

    Attributes:
        text: in words that stay the same while it lasts: `the storage is more than 90 % full`.
        numbers: how much it is, and was before.
    """

    text: str
    numbers: str


@dataclass(frozen=True, slots=True)
class _Border:
    """A share that is bad from a border on, of several the worst first; {} is the border."""

    metric: str
    borders: tuple[float, ...]
    text: str
    numbers: str


_BORDERS: Final = (
    _Border(
        "storage_used",
        FULL,
        "the storage is more than {:.0%} full",
        "{:.0%} of it used, before {:.0%}",
    ),
    _Border(
        "zfs_fragmentation",
        (FRAGMENTED,),
        "the free space of its ZFS pool is in small pieces",
        "fragmentation {:.0%}, before {:.0%}",
    ),
    _Border(
        "disk_wear",
        (WORN,),
        "a drive of the node is worn out by its maker's count",
        "the most worn {:.0%}, before {:.0%}",
    ),
)


@dataclass(frozen=True, slots=True)
class _Job:
    """Something that goes on in some runs, 1, and in others not, 0."""

    metric: str
    text: str


_JOBS: Final = (
    _Job("md_sync", "a software RAID of the node is checked or rebuilt"),
    _Job("zfs_scan", "its ZFS pool is scrubbed or resilvered"),
    _Job("disturbed", "backups, replication or the like begin during most runs"),
)


@dataclass(frozen=True, slots=True)
class _Load:
    """Work of the node that may slow a run down: its value in a run, how much more is much."""

    value: Callable[[Beside], float | None]
    least: float
    text: str
    numbers: str


def _others(run: Beside) -> float | None:
    total, own = run.get(("host_cpu", "total")), run.get(("host_cpu", "qemu"))
    return None if total is None or own is None else max(0.0, total - own)


_LOADS: Final = (
    _Load(_others, CORES, "the node does more beside it", "others on {:.1f} cores, before {:.1f}"),
    _Load(
        lambda run: run.get(("host_pressure", "cpu_some")),
        WAITING,
        "tasks of the node wait for its CPUs",
        "waiting for CPUs {:.0%} of the time, before {:.0%}",
    ),
    _Load(
        lambda run: run.get(("host_pressure", "memory_some")),
        WAITING,
        "tasks of the node wait for memory",
        "waiting for memory {:.0%} of the time, before {:.0%}",
    ),
)
"""Waiting for I/O is not among them: the slower disk itself brings it."""


def concurrent_changes(
    before: Sequence[Beside], after: Sequence[Beside]
) -> tuple[ConcurrentChange, ...]:
    """Return what else is worse in the runs after a change than in those before it."""
    found = [
        *(_beyond(before, after, border) for border in _BORDERS),
        *(_under_way(before, after, job) for job in _JOBS),
        _hotter(before, after),
        _less_cache(before, after),
        *(_more(before, after, load) for load in _LOADS),
    ]
    return tuple(one for one in found if one is not None)


def _beyond(
    before: Sequence[Beside], after: Sequence[Beside], border: _Border
) -> ConcurrentChange | None:
    was, now = _state(before, border.metric), _state(after, border.metric)
    if was is None or now is None:
        return None
    for limit in border.borders:
        if was < limit <= now:
            return ConcurrentChange(_shares(border.text, limit), _shares(border.numbers, now, was))
    return None


def _under_way(
    before: Sequence[Beside], after: Sequence[Beside], job: _Job
) -> ConcurrentChange | None:
    was, now = (_level(side, _of(job.metric), statistics.fmean) for side in (before, after))
    if was is None or now is None or not was <= HARDLY_ANY < MOST <= now:
        return None
    return ConcurrentChange(job.text, _shares("in {:.0%} of the runs, before {:.0%}", now, was))


def _shares(text: str, *values: float) -> str:
    return text.format(*values).replace("%", " %")


def _state(runs: Sequence[Beside], metric: str) -> float | None:
    """Return the middle value of what has no parts; None where too few runs know it."""
    return _level(runs, _of(metric))


def _of(metric: str) -> Callable[[Beside], float | None]:
    return lambda run: run.get((metric, ""))


def _hotter(before: Sequence[Beside], after: Sequence[Beside]) -> ConcurrentChange | None:
    was, now = _state(before, "disk_margin"), _state(after, "disk_margin")
    if was is None or now is None or not now <= HOT < was:
        return None
    numbers = f"the hottest {_from_limit(now)}, before {_from_limit(was)}"
    return ConcurrentChange("a drive of the node is about as hot as it may be", numbers)


def _from_limit(margin: float) -> str:
    return f"{abs(margin):.0f} °C {'below' if margin >= 0 else 'above'} its limit"


def _less_cache(before: Sequence[Beside], after: Sequence[Beside]) -> ConcurrentChange | None:
    was, now = _state(before, "zfs_cache"), _state(after, "zfs_cache")
    if was is None or now is None or TIMES * now > was:
        return None
    numbers = f"{show_bytes(int(now))}, before {show_bytes(int(was))}"
    return ConcurrentChange("ZFS has less memory for its cache", numbers)


def _more(
    before: Sequence[Beside], after: Sequence[Beside], load: _Load
) -> ConcurrentChange | None:
    was, now = _level(before, load.value), _level(after, load.value)
    if was is None or now is None or now < max(was + load.least, TIMES * was):
        return None
    return ConcurrentChange(load.text, _shares(load.numbers, now, was))


def _level(
    runs: Sequence[Beside],
    value: Callable[[Beside], float | None],
    middle: Callable[[Sequence[float]], float] = statistics.median,
) -> float | None:
    """Return the middle value; None where too few runs know it."""
    known = [found for run in runs if (found := value(run)) is not None]
    return middle(known) if len(known) >= LEAST else None
