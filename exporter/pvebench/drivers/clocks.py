"""System clock with waits that can be ended, and simulated clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pvebench.errors import Interrupted
from pvebench.model.ports import Clock


class SystemClock:
    """`model.ports.Clock` on this machine.

    `stop()` may be called from any thread, but not from a signal handler: it takes a lock that
    the interrupted thread may hold.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> datetime:
        """Return the wall time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; raises Interrupted as soon as `stop()` has been called."""
        if self._stopped.wait(max(0.0, seconds)):
            raise Interrupted("stopped by the user")

    def stop(self) -> None:
        """End every current and later wait."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether a stop was requested."""
        return self._stopped.is_set()


def attempts(clock: Clock, *, seconds: float, pause: float, longest: float = 0.0) -> Iterator[None]:
    """Yield at once and after each pause, the last time when the seconds are over.

    Args:
        longest: each pause is longer by half, up to this; 0: all are the same.
    """
    deadline = clock.monotonic() + seconds
    while True:
        yield
        if clock.monotonic() > deadline:
            return
        clock.sleep(pause)
        pause = max(pause, min(longest, pause * 1.5))


START = datetime(2026, 1, 1, tzinfo=UTC)


class SimulatedClock(SystemClock):
    """`model.ports.Clock` in simulated time.

    Args:
        start: wall time at the beginning.
        pace: real seconds to wait per simulated second; 0: no waiting.
    """

    def __init__(self, start: datetime = START, *, pace: float = 0.0) -> None:
        super().__init__()
        self._start = start
        self._pace = pace
        self._elapsed = 0.0

    def now(self) -> datetime:
        """Return the simulated wall time."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return simulated seconds since the beginning."""
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        """Let time pass; raises Interrupted once `stop()` has been called."""
        if self._stopped.wait(max(0.0, seconds) * self._pace):
            raise Interrupted("stopped by the user")
        self._elapsed += max(0.0, seconds)
