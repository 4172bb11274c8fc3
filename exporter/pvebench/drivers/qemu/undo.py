"""After a crash: undo what the journal says was begun. Touches only what carries our mark."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pvebench.drivers.qemu import machine
from pvebench.drivers.qemu.registry import UNDO
from pvebench.drivers.qemu.storages import Undo
from pvebench.errors import DriverError, PvebenchError
from pvebench.model.ports import Journal

END_SECONDS: Final = 10.0
"""How long a killed QEMU may take to be gone: its last I/O must come back first."""


def undo_pending(journal: Journal, more: Mapping[str, Undo] | None = None) -> list[str]:
    """Undo every open change, VMs first, then newest first; return a line about each.

    `more` undoes the kinds of other drivers that work beside this one.

    What cannot be undone stays open, to be tried again at the next start, and is said.
    """
    lines = []
    undo = {machine.KIND: _end_vm, **UNDO, **(more or {})}
    # A volume that a left-over QEMU still has open could not be taken away whole.
    pending = sorted(journal.pending(), key=lambda entry: entry[1] != machine.KIND)
    for number, kind, details in pending:
        if kind not in undo:
            continue  # another driver's business
        try:
            lines.append(undo[kind](details))
        except (PvebenchError, OSError) as error:
            lines.append(f"could not undo {kind} {dict(details)} yet: {error}")
        else:
            journal.close(number)
    return lines


def _end_vm(details: Mapping[str, str]) -> str:
    pids = processes_with(details["uuid"])
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while left := processes_with(details["uuid"]):
        if time.monotonic() > deadline:
            raise DriverError(f"QEMU process {left[0]} does not end", cause="its I/O hangs")
        time.sleep(0.05)
    shutil.rmtree(details["directory"], ignore_errors=True)
    return f"ended VM {details['uuid']} ({len(pids)} process left of it)"


def processes_with(identity: str) -> list[int]:
    """Return the processes that have `-uuid identity` on their command line."""
    wanted = f"-uuid\0{identity}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found
