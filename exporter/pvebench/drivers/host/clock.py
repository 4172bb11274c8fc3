"""Real time, with a way to stop every wait at once."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from pvebench.errors import Interrupted


class SystemClock:
    """`model.ports.Clock` on this machine. `stop()` may be called from a signal handler."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def now(self) -> datetime:
        """Return the wall time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; raises Interrupted as soon as `stop()` has been called."""
        if self._stopped.wait(max(0.0, seconds)):
            raise Interrupted("stopped by the user")

    def stop(self) -> None:
        """End every present and later wait."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether a stop was requested."""
        return self._stopped.is_set()
