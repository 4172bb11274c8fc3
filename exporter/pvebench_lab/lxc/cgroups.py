"""Control groups of a container: their limits and removal.

Both versions may exist at the same time, with each controller in one of them (cgroups(7)). LXC
creates a group `lxc.payload.NAME` for the container and `lxc.monitor.NAME` for its monitor.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pvebench.errors import DriverError

GROUPS: Final = Path("/sys/fs/cgroup")
END_SECONDS: Final = 10.0
"""Time limit for the end of killed processes: their last I/O must complete first."""
MEMORY: Final = {1: "memory.limit_in_bytes", 2: "memory.max"}
CPUS: Final = {1: "cpuset.cpus", 2: "cpuset.cpus"}
"""Version of the controller's hierarchy -> file of a limit."""


def version_of(controller: str, root: Path = Path("/")) -> int:
    """Return the version of a controller's hierarchy, from /proc/PID/cgroup."""
    text = (root / "proc/self/cgroup").read_text("ascii")
    named = [line.split(":")[1].split(",") for line in text.splitlines()]
    return 1 if any(controller in names for names in named) else 2


def limit_of(pid: int, controller: str, file: str) -> str:
    """Return the effective limit of a process; empty: not readable."""
    for line in _read(Path(f"/proc/{pid}/cgroup")).splitlines():
        number, names, group = line.split(":", 2)
        if controller in names.split(","):
            return _read(GROUPS / names / group.lstrip("/") / file)
        if number == "0" and (GROUPS / "cgroup.controllers").exists():
            return _read(GROUPS / group.lstrip("/") / file)
    return ""


def groups_of(name: str) -> list[Path]:
    """Return the groups of a container and their descendants, innermost first."""
    groups: list[Path] = []
    for parent, names, _ in os.walk(GROUPS, topdown=False):
        paths = [Path(parent) / child for child in names]
        groups += [path for path in paths if _is_of(name, path)]
    return groups


def _is_of(name: str, group: Path) -> bool:
    return any(part in (f"lxc.payload.{name}", f"lxc.monitor.{name}") for part in group.parts)


def end_groups(name: str) -> int:
    """Kill all processes in a container's groups, and remove these; return their number.

    Raises DriverError: a process does not end.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + END_SECONDS
    groups = groups_of(name)
    while left := set(_processes(groups)):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
        if time.monotonic() > deadline:
            raise DriverError(
                f"process {min(left)} of container {name} did not end", cause="its I/O hangs"
            )
        time.sleep(0.02)
    for group in groups:
        _remove(group, deadline)
    return len(killed)


def _remove(group: Path, deadline: float) -> None:
    """Remove a group, which is busy for a moment after the end of its last process."""
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _processes(groups: list[Path]) -> Iterator[int]:
    for group in groups:
        yield from map(int, _read(group / "cgroup.procs").split())


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""
