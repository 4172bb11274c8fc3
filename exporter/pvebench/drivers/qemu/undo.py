"""After a crash: undo what the journal says was begun. Touches only what carries our mark."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from pvebench.drivers.qemu import machine, volumes
from pvebench.model.ports import Journal


def undo_pending(journal: Journal) -> list[str]:
    """Undo every open change; return a line about each. Nothing is left half-done by a repeat."""
    done = []
    for number, kind, details in journal.pending():
        if kind == machine.KIND:
            done.append(_end_vm(details))
        elif kind == volumes.KIND:
            volumes.remove_marked(Path(details["path"]))
            done.append(f"removed test volume {details['path']}")
        else:
            continue  # another driver's business
        journal.close(number)
    return done


def _end_vm(details: Mapping[str, str]) -> str:
    pids = processes_with(details["uuid"])
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while processes_with(details["uuid"]) and time.monotonic() < deadline:
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
