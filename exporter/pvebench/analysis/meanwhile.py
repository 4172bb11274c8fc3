"""What else changed with a level: the storage, the node's other work, its drives' heat, ZFS' cache.

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

METRICS: Final = ("storage_used", "host_cpu", "host_pressure", "disk_margin", "zfs_cache")
"""Metrics of the store that are looked at."""
LEAST: Final = 5
"""Runs on each side that must know a number, of all cases that are looked at."""
FULL: Final = (0.9, 0.8)
"""Shares of a storage above which it may get slower; of ZFS, Oracle's "Storage Pool Practices for
Performance" names 90 % for most loads, and 80 % for small blocks that are always written anew."""
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
class Meanwhile:
    """Something that changed with a level.

    Attributes:
        text: in words that stay the same while it lasts: `the storage is more than 90 % full`.
        numbers: how much it is, and was before.
    """

    text: str
    numbers: str


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


def meanwhile(before: Sequence[Beside], after: Sequence[Beside]) -> tuple[Meanwhile, ...]:
    """Return what else is worse in the runs after a change than in those before it."""
    found = [
        _fuller(before, after),
        _hotter(before, after),
        _less_cache(before, after),
        *(_more(before, after, load) for load in _LOADS),
    ]
    return tuple(one for one in found if one is not None)


def _fuller(before: Sequence[Beside], after: Sequence[Beside]) -> Meanwhile | None:
    was, now = _state(before, "storage_used"), _state(after, "storage_used")
    if was is None or now is None:
        return None
    for full in FULL:
        if was < full <= now:
            numbers = f"{now:.0%} of it used, before {was:.0%}".replace("%", " %")
            return Meanwhile(f"the storage is more than {100 * full:.0f} % full", numbers)
    return None


def _state(runs: Sequence[Beside], metric: str) -> float | None:
    """Return the middle value of what has no parts; None where too few runs know it."""
    return _level(runs, lambda run: run.get((metric, "")))


def _hotter(before: Sequence[Beside], after: Sequence[Beside]) -> Meanwhile | None:
    was, now = _state(before, "disk_margin"), _state(after, "disk_margin")
    if was is None or now is None or not now <= HOT < was:
        return None
    numbers = f"the hottest {_from_limit(now)}, before {_from_limit(was)}"
    return Meanwhile("a drive of the node is about as hot as it may be", numbers)


def _from_limit(margin: float) -> str:
    return f"{abs(margin):.0f} °C {'below' if margin >= 0 else 'above'} its limit"


def _less_cache(before: Sequence[Beside], after: Sequence[Beside]) -> Meanwhile | None:
    was, now = _state(before, "zfs_cache"), _state(after, "zfs_cache")
    if was is None or now is None or TIMES * now > was:
        return None
    numbers = f"{show_bytes(int(now))}, before {show_bytes(int(was))}"
    return Meanwhile("ZFS has less memory for its cache", numbers)


def _more(before: Sequence[Beside], after: Sequence[Beside], load: _Load) -> Meanwhile | None:
    was, now = _level(before, load.value), _level(after, load.value)
    if was is None or now is None or now < max(was + load.least, TIMES * was):
        return None
    return Meanwhile(load.text, load.numbers.format(now, was).replace("%", " %"))


def _level(runs: Sequence[Beside], value: Callable[[Beside], float | None]) -> float | None:
    """Return the middle value; None where too few runs know it."""
    known = [found for run in runs if (found := value(run)) is not None]
    return statistics.median(known) if len(known) >= LEAST else None
