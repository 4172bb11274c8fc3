"""Other possible causes of a change: storage, drives, other load of the node, ZFS cache.

They are reported with the software changes, because an upgrade often coincides with other changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.model import figures
from pvebench.model.units import show_bytes

RunValues = Mapping[tuple[str, str], float]
"""(metric, part) -> value of one run, for metrics without a direction."""

METRICS: Final = (
    figures.STORAGE_USED.name,
    figures.ZFS_FRAGMENTATION.name,
    figures.DISK_WEAR.name,
    figures.DISK_MARGIN.name,
    figures.ZFS_CACHE.name,
    figures.MD_SYNC.name,
    figures.ZFS_SCAN.name,
    figures.DISTURBED.name,
    figures.HOST_CPU.name,
    figures.HOST_PRESSURE.name,
)
"""Metrics in the store to examine."""
OF_VERSION: Final[Mapping[str, frozenset[str]]] = {
    figures.ZFS_FRAGMENTATION.name: frozenset({"zfs", "kernel"})
}
"""Metric -> facts whose change makes it incomparable: OpenZFS 2.3.1 computes fragmentation
differently than 2.3.0 (`zfs_frag_table` in module/zfs/metaslab.c), and comes with a kernel."""
LEAST: Final = 5
"""Minimum runs with a value on each side, over all examined cases."""
FULL: Final = (0.9, 0.8)
"""Used shares from which a storage may become slower; for ZFS, Oracle's "Storage Pool Practices for
Performance" names 90% for most loads, and 80% for small blocks that are always rewritten."""
FRAGMENTED: Final = 0.77
"""Fragmentation from which ZFS prefers other metaslabs, if it has any
(`zfs_metaslab_fragmentation_threshold` in zfs(4); before 2.3.1 from 70% on)."""
WORN: Final = 1.0
"""Share of the wear that a drive's manufacturer specifies. A drive may work beyond it (NVM Express,
"Percentage Used"), so this is only a hint."""
MOST, HARDLY_ANY = 0.5, 0.1
"""Minimum share of the runs after, and maximum share of the runs before, with a job running."""
CORES: Final = 1.0
"""Minimum increase of the node's other CPU load in cores."""
WAITING: Final = 0.1
"""Minimum increase of the share of time in which tasks of the node wait."""
TIMES: Final = 2.0
"""Minimum factor of an increase, or of the decrease of a cache."""
HOT: Final = 3.0
"""Distance in °C to a drive's temperature limit from which it may throttle: at the limit it does
(NVM Express, "Composite Temperature"), and the temperature varies around it."""


@dataclass(frozen=True, slots=True)
class ConcurrentChange:
    """A condition that changed together with a level.

    Attributes:
        text: constant description while the condition lasts: `storage more than 90% full`.
        numbers: its value now and before.
    """

    text: str
    numbers: str


@dataclass(frozen=True, slots=True)
class _Border:
    """A share with one or more limits, the worst first; `{}` in `text` is the limit."""

    metric: str
    borders: tuple[float, ...]
    text: str
    numbers: str


_BORDERS: Final = (
    _Border(
        figures.STORAGE_USED.name,
        FULL,
        "storage more than {:.0%} full",
        "{:.0%} used, before {:.0%}",
    ),
    _Border(
        figures.ZFS_FRAGMENTATION.name,
        (FRAGMENTED,),
        "fragmented free space of the ZFS pool",
        "fragmentation {:.0%}, before {:.0%}",
    ),
    _Border(
        figures.DISK_WEAR.name,
        (WORN,),
        "drive of the node at its rated wear",
        "highest wear {:.0%}, before {:.0%}",
    ),
)


@dataclass(frozen=True, slots=True)
class _Job:
    """A background job that runs during some runs (1) and not during others (0)."""

    metric: str
    text: str


_JOBS: Final = (
    _Job(figures.MD_SYNC.name, "check or rebuild of a software RAID of the node"),
    _Job(figures.ZFS_SCAN.name, "scrub or resilver of the ZFS pool"),
    _Job(figures.DISTURBED.name, "backups, replication or similar tasks starting during most runs"),
)


@dataclass(frozen=True, slots=True)
class _Load:
    """Load of the node that may slow a run down: its value in a run and the minimum increase."""

    value: Callable[[RunValues], float | None]
    least: float
    text: str
    numbers: str


def _others(run: RunValues) -> float | None:
    total, own = run.get((figures.HOST_CPU.name, "total")), run.get((figures.HOST_CPU.name, "qemu"))
    return None if total is None or own is None else max(0.0, total - own)


_LOADS: Final = (
    _Load(
        _others,
        CORES,
        "more other load on the node",
        "other processes use {:.1f} cores, before {:.1f}",
    ),
    _Load(
        lambda run: run.get((figures.HOST_PRESSURE.name, "cpu_some")),
        WAITING,
        "tasks of the node waiting for CPUs",
        "waiting for CPUs {:.0%} of the time, before {:.0%}",
    ),
    _Load(
        lambda run: run.get((figures.HOST_PRESSURE.name, "memory_some")),
        WAITING,
        "tasks of the node waiting for memory",
        "waiting for memory {:.0%} of the time, before {:.0%}",
    ),
)
"""Loads to examine. Waiting for I/O is not included, because a slower disk itself causes it."""


def concurrent_changes(
    before: Sequence[RunValues], after: Sequence[RunValues]
) -> tuple[ConcurrentChange, ...]:
    """Return the conditions that are worse in the runs after a change than before it."""
    causes = [
        *(_beyond(before, after, border) for border in _BORDERS),
        *(_under_way(before, after, job) for job in _JOBS),
        _hotter(before, after),
        _less_cache(before, after),
        *(_more(before, after, load) for load in _LOADS),
    ]
    return tuple(cause for cause in causes if cause is not None)


def _beyond(
    before: Sequence[RunValues], after: Sequence[RunValues], border: _Border
) -> ConcurrentChange | None:
    was, now = _state(before, border.metric), _state(after, border.metric)
    if was is None or now is None:
        return None
    for limit in border.borders:
        if was < limit <= now:
            return ConcurrentChange(_shares(border.text, limit), _shares(border.numbers, now, was))
    return None


def _under_way(
    before: Sequence[RunValues], after: Sequence[RunValues], job: _Job
) -> ConcurrentChange | None:
    was, now = (_level(side, _of(job.metric), statistics.fmean) for side in (before, after))
    if was is None or now is None or not was <= HARDLY_ANY < MOST <= now:
        return None
    return ConcurrentChange(job.text, _shares("in {:.0%} of runs, before {:.0%}", now, was))


def _shares(text: str, *values: float) -> str:
    return text.format(*values)


def _state(runs: Sequence[RunValues], metric: str) -> float | None:
    """Return the median of a metric without parts; None: too few runs have a value."""
    return _level(runs, _of(metric))


def _of(metric: str) -> Callable[[RunValues], float | None]:
    return lambda run: run.get((metric, ""))


def _hotter(before: Sequence[RunValues], after: Sequence[RunValues]) -> ConcurrentChange | None:
    was, now = _state(before, figures.DISK_MARGIN.name), _state(after, figures.DISK_MARGIN.name)
    if was is None or now is None or not now <= HOT < was:
        return None
    numbers = f"highest temperature {_from_limit(now)}, before {_from_limit(was)}"
    return ConcurrentChange("drive of the node near its temperature limit", numbers)


def _from_limit(margin: float) -> str:
    return f"{abs(margin):.0f} °C {'below' if margin >= 0 else 'above'} its limit"


def _less_cache(before: Sequence[RunValues], after: Sequence[RunValues]) -> ConcurrentChange | None:
    was, now = _state(before, figures.ZFS_CACHE.name), _state(after, figures.ZFS_CACHE.name)
    if was is None or now is None or TIMES * now > was:
        return None
    numbers = f"{show_bytes(int(now))}, before {show_bytes(int(was))}"
    return ConcurrentChange("smaller ZFS cache", numbers)


def _more(
    before: Sequence[RunValues], after: Sequence[RunValues], load: _Load
) -> ConcurrentChange | None:
    was, now = _level(before, load.value), _level(after, load.value)
    if was is None or now is None or now < max(was + load.least, TIMES * was):
        return None
    return ConcurrentChange(load.text, _shares(load.numbers, now, was))


def _level(
    runs: Sequence[RunValues],
    value: Callable[[RunValues], float | None],
    middle: Callable[[Sequence[float]], float] = statistics.median,
) -> float | None:
    """Return the middle value; None: too few runs have a value."""
    known = [number for run in runs if (number := value(run)) is not None]
    return middle(known) if len(known) >= LEAST else None
