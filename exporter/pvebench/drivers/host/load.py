"""Is a host busy with something else? Looked at for a moment while our own VM does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pvebench.model.guard import Hold, HoldKind
from pvebench.model.host import HostSnapshot
from pvebench.model.ports import Clock, HostProbe
from pvebench.model.workload import Case

_LOOK_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """What is too much for measuring. None: no limit.

    Attributes:
        cpu_ratio: share of all CPUs that is busy.
        io_pressure_ratio: share of time in which some task waits for I/O (Linux PSI).
    """

    cpu_ratio: float | None = None
    io_pressure_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class LoadGuard:
    """`model.guard.Guard` by a host's counters, in the pauses before and after a run."""

    probe: HostProbe
    clock: Clock
    limits: LoadLimits

    def enter(self, case: Case) -> Hold | None:
        """See the protocol."""
        busy = self._look()
        return Hold(kind=HoldKind.LOAD, reason=busy, seconds=_AGAIN_SECONDS) if busy else None

    def leave(self, case: Case) -> str:
        """See the protocol."""
        return self._look()

    def _look(self) -> str:
        start = self.probe.snapshot()
        self.clock.sleep(_LOOK_SECONDS)
        return too_busy(start, self.probe.snapshot(), self.limits)


def too_busy(start: HostSnapshot, end: HostSnapshot, limits: LoadLimits) -> str:
    """Return what is above its limit between two snapshots; what cannot be known is not."""
    seconds = end.monotonic - start.monotonic
    if seconds <= 0:
        return ""
    if limits.cpu_ratio is not None and end.cpus and {"total"} <= {*start.cpu_seconds}:
        used = end.cpu_seconds.get("total", 0.0) - start.cpu_seconds["total"]
        ratio = used / seconds / end.cpus
        if ratio > limits.cpu_ratio:
            return f"{ratio:.0%} of the host's CPUs are busy, more than {limits.cpu_ratio:.0%}"
    limit, name = limits.io_pressure_ratio, "io_some"
    if limit is not None and name in start.pressure_seconds and name in end.pressure_seconds:
        ratio = (end.pressure_seconds[name] - start.pressure_seconds[name]) / seconds
        if ratio > limit:
            return f"tasks of the host wait for I/O {ratio:.0%} of the time, more than {limit:.0%}"
    return ""
