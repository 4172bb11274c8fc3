"""A container's control groups: where they are, their limits, their CPU time, their end.

Both versions may be there at once, a controller in one of them (cgroups(7)). LXC makes a group
`lxc.payload.NAME` for what runs in a container and `lxc.monitor.NAME` for what watches it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from pvebench.errors import DriverError
from pvebench.model.units import kernel_number

GROUPS: Final = Path("/sys/fs/cgroup")
END_SECONDS: Final = 10.0
"""How long what was killed may take to be gone: its last I/O must come back first."""
MEMORY: Final = {1: "memory.limit_in_bytes", 2: "memory.max"}
CPUS: Final = {1: "cpuset.cpus", 2: "cpuset.cpus"}
"""Version of the controller's hierarchy -> the file of a limit."""
_MICROSECONDS: Final = 1e6
"""In a second; the unit of cpu.stat (Linux' Documentation/admin-guide/cgroup-v2.rst)."""


def version_of(controller: str, root: Traversable = Path("/")) -> int:
    """Return in which version's hierarchy a controller is, as /proc/PID/cgroup tells."""
    text = (root / "proc/self/cgroup").read_text("ascii")
    named = [line.split(":")[1].split(",") for line in text.splitlines()]
    return 1 if any(controller in names for names in named) else 2


def limit_of(pid: int, controller: str, file: str) -> str:
    """Return a limit that is in force for a process; empty: none can be read."""
    for line in _read(Path(f"/proc/{pid}/cgroup")).splitlines():
        number, names, group = line.split(":", 2)
        if controller in names.split(","):
            return _read(GROUPS / names / group.lstrip("/") / file)
        if number == "0" and (GROUPS / "cgroup.controllers").exists():
            return _read(GROUPS / group.lstrip("/") / file)
    return ""


def cpu_seconds(root: Traversable, pid: int) -> float | None:
    """Return the CPU time of the group that a process is in; None: it cannot be read."""
    try:
        lines = (root / "proc" / str(pid) / "cgroup").read_text("ascii").splitlines()
        group = dict(line.rsplit(":", 1) for line in lines)["0:"].lstrip("/")
        unified = root / "sys/fs/cgroup/unified"  # where version 1 is there too
        base = unified if unified.is_dir() else root / "sys/fs/cgroup"
    except (OSError, KeyError, ValueError):
        return None
    return group_seconds(base / group / "cpu.stat")


def group_seconds(stat: Traversable) -> float | None:
    """Return the CPU time that a group's cpu.stat tells; None: it cannot be read."""
    try:
        used = dict(line.split() for line in stat.read_text("ascii").splitlines())
        return kernel_number(used["usage_usec"]) / _MICROSECONDS
    except (OSError, KeyError, ValueError):
        return None


def groups_of(name: str) -> list[Path]:
    """Return the groups of a container and those below them, innermost first."""
    found = []
    for where, below, _ in os.walk(GROUPS, topdown=False):
        found += [Path(where) / one for one in below if _is_of(name, Path(where) / one)]
    return found


def _is_of(name: str, group: Path) -> bool:
    return any(part in (f"lxc.payload.{name}", f"lxc.monitor.{name}") for part in group.parts)


def end_groups(name: str) -> int:
    """Kill whatever runs in a container's groups, and remove them; return how many it was.

    Raises:
        DriverError: a process does not end.
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
                f"process {min(left)} of container {name} does not end", cause="its I/O hangs"
            )
        time.sleep(0.02)
    for group in groups:
        _remove(group, deadline)
    return len(killed)


def _remove(group: Path, deadline: float) -> None:
    """Remove a group; one whose last process is just being buried is busy for a moment."""
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
