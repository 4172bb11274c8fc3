"""Faults of a storage, by commands that its settings name: never made unless they are named there.

A command begins the fault, waits, ends it and exits. It has a session of its own, so that it ends
what it began even if pvebench is killed meanwhile.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence

from pvebench.errors import FaultFailed


class FaultCommand:
    """A `pvebench.model.ports.Fault` by a command. One at a time."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._command = list(command)
        self._waiting: threading.Thread | None = None
        self._exit_code = 0
        self._seconds = 0.0

    def begin(self) -> None:
        """Start the command; see `Fault.begin`."""
        if self._waiting is not None and self._waiting.is_alive():
            raise FaultFailed(
                f"fault {self._name} is still going on",
                cause="its command of an earlier run has not ended",
            )
        begun = time.monotonic()
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise FaultFailed(
                f"fault {self._name} cannot be made: {self._command[0]}: {error.strerror}",
                cause="the program is not there, or not to be run by this user",
            ) from error
        self._waiting = threading.Thread(target=self._wait, args=(process, begun), daemon=True)
        self._waiting.start()

    def _wait(self, process: subprocess.Popen[bytes], begun: float) -> None:
        self._exit_code = process.wait()
        self._seconds = time.monotonic() - begun

    def lasted(self) -> float | None:
        """Return how long the command ran; see `Fault.lasted`."""
        if self._waiting is None or self._waiting.is_alive():
            return None
        if self._exit_code:
            raise FaultFailed(
                f"the command of fault {self._name} ended with {self._exit_code}",
                cause="it could not begin the fault, or not end it: look at the storage",
            )
        return self._seconds
