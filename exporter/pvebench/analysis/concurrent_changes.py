"""Other possible causes of a change: storage, drives, other load of the node, ZFS cache.

They are reported with the software changes, because an upgrade often coincides with other changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.model import run_metrics
from pvebench.model.units import show_bytes

RunValues = Mapping[tuple[str, str], float]
"""(metric, part) -> value of one run, for metrics without a direction."""

OF_VERSION: Final[Mapping[str, frozenset[str]]] = {
    run_metrics.ZFS_FRAGMENTATION.name: frozenset({"zfs", "kernel"})
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


Limit = Callable[[float, float], bool]
"""(value before, value now) -> whether it is worse now."""


def _above(limit: float, most: float = math.inf) -> Limit:
    return lambda was, now: was < limit <= now < most


def _more_by(least: float) -> Limit:
    return lambda was, now: now >= max(was + least, TIMES * was)


def _begun(was: float, now: float) -> bool:
    return was <= HARDLY_ANY < MOST <= now


def _share(value: float) -> str:
    return f"{value:.0%}"


def _from_limit(margin: float) -> str:
    return f"{abs(margin):.0f} °C {'below' if margin >= 0 else 'above'} its limit"


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition of the node or a storage that may slow runs down.

    Attributes:
        metric: in the store.
        worse: decides by the middle values on both sides.
        numbers: `{}` is the value now, then the one before.
        show: returns a value as text.
        parts: parts of the metric; of the second, the value is the difference.
        middle: of the values on one side.
    """

    metric: str
    worse: Limit
    text: str
    numbers: str
    show: Callable[[float], str] = _share
    parts: tuple[str, ...] = ("",)
    middle: Callable[[Sequence[float]], float] = statistics.median

    def changed(
        self, before: Sequence[RunValues], after: Sequence[RunValues]
    ) -> ConcurrentChange | None:
        """Return the change; None: not worse, or too few runs have a value."""
        was, now = self._level(before), self._level(after)
        if was is None or now is None or not self.worse(was, now):
            return None
        return ConcurrentChange(self.text, self.numbers.format(self.show(now), self.show(was)))

    def _level(self, runs: Sequence[RunValues]) -> float | None:
        values = [value for run in runs if (value := self._value(run)) is not None]
        return self.middle(values) if len(values) >= LEAST else None

    def _value(self, run: RunValues) -> float | None:
        values = [run.get((self.metric, part)) for part in self.parts]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            return None
        return numbers[0] if len(numbers) == 1 else max(0.0, numbers[0] - numbers[1])


def _job(metric: str, text: str) -> _Condition:
    """Return a background job that runs during some runs (1) and not during others (0)."""
    return _Condition(metric, _begun, text, "in {} of runs, before {}", middle=statistics.fmean)


def _waiting(part: str, cause: str) -> _Condition:
    return _Condition(
        run_metrics.HOST_PRESSURE.name,
        _more_by(WAITING),
        f"tasks of the node waiting for {cause}",
        f"waiting for {cause} {{}} of the time, before {{}}",
        parts=(part,),
    )


_CONDITIONS: Final = (
    *(
        _Condition(
            run_metrics.STORAGE_USED.name,
            _above(limit, most),
            f"storage more than {limit:.0%} full",
            "{} used, before {}",
        )
        for limit, most in zip(FULL, (math.inf, FULL[0]), strict=True)
    ),
    _Condition(
        run_metrics.ZFS_FRAGMENTATION.name,
        _above(FRAGMENTED),
        "fragmented free space of the ZFS pool",
        "fragmentation {}, before {}",
    ),
    _Condition(
        run_metrics.DISK_WEAR.name,
        _above(WORN),
        "drive of the node at its rated wear",
        "highest wear {}, before {}",
    ),
    _job(run_metrics.MD_SYNC.name, "check or rebuild of a software RAID of the node"),
    _job(run_metrics.ZFS_SCAN.name, "scrub or resilver of the ZFS pool"),
    _job(
        run_metrics.DISTURBED.name,
        "backups, replication or similar tasks starting during most runs",
    ),
    _Condition(
        run_metrics.DISK_MARGIN.name,
        lambda was, now: now <= HOT < was,
        "drive of the node near its temperature limit",
        "highest temperature {}, before {}",
        show=_from_limit,
    ),
    _Condition(
        run_metrics.ZFS_CACHE.name,
        lambda was, now: TIMES * now <= was,
        "smaller ZFS cache",
        "{}, before {}",
        show=lambda size: show_bytes(int(size)),
    ),
    _Condition(
        run_metrics.HOST_CPU.name,
        _more_by(CORES),
        "more other load on the node",
        "other processes use {} cores, before {}",
        show="{:.1f}".format,
        parts=("total", "qemu"),
    ),
    _waiting("cpu_some", "CPUs"),
    _waiting("memory_some", "memory"),
)
"""Conditions to examine. Waiting for I/O is not included, because a slower disk causes it."""
METRICS: Final = tuple(dict.fromkeys(condition.metric for condition in _CONDITIONS))
"""Metrics in the store to examine."""


def concurrent_changes(
    before: Sequence[RunValues], after: Sequence[RunValues]
) -> tuple[ConcurrentChange, ...]:
    """Return the conditions that are worse in the runs after a change than before it."""
    changes = (condition.changed(before, after) for condition in _CONDITIONS)
    return tuple(change for change in changes if change is not None)
