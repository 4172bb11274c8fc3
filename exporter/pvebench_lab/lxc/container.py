"""LXC container: root file system, limits, start and end, cleanup after a crash.

It ends with this process: if this is killed, the kernel kills `lxc-start`, and then, as LXC
requested, the container's first process. This ends its mounts, and the last one of these the loop
device. Groups and files stay, but are in the journal. Options: lxc.container.conf(5).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.contract import MARK, is_own
from pvebench.errors import DriverError, HypervisorGone, MachineError, SwitchFailed, ToolsMissing
from pvebench.files import read_tail, read_text, remove_tree
from pvebench.guest.archives import unpack_archive
from pvebench.guest.image import GuestImage
from pvebench.guest.recipe import MODULE_PLACE, MOUNT_POINT
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine
from pvebench.model.units import whole_number
from pvebench_lab.storages.loop import detach_loops

KIND: Final = "container"
ROOT_KIND: Final = "container-root"
"""Kinds of the journal entries of the running container, and of its files."""
PLACE: Final = Path("/var/lib")
"""Directory of containers' files: their user must have access to all parents of the root, which a
state directory does not allow, and programs must run there, which some /run does not allow."""
DEVICE: Final = "dev/pvebench-test"
"""The volume's device in the container, which only pvebench can mount."""
FIRST_ID: Final = 100_000
IDS: Final = 65_536
"""Number of user IDs of an unprivileged container, as in Proxmox."""
START_SECONDS: Final = 30.0
_BESIDE: Final = f"""\
set -eu
mount -t tmpfs tmpfs "$0/dev"
touch "$0/dev/null" "$0/{DEVICE}"
mount --bind /dev/null "$0/dev/null"
mount --bind "$1" "$0/{DEVICE}"
mount --bind /proc "$0/proc"
mount --bind /sys "$0/sys"
root=$0
shift
exec chroot "$root" "$@"
"""
"""Script for sh in its own mount namespace; arguments: root directory, device, command."""
ID_RANGES: Final = (Path("/etc/subuid"), Path("/etc/subgid"))
_LOCKS: Final = Path("/run/lxc/lock")
_TAIL_BYTES: Final = 2000
_RUNNING: Final = re.compile(r"State:\s+RUNNING\nPID:\s+(\d+)")
"""Output of `lxc-info -s -p`."""


class Container:
    """Container and its files; at most one runs. Owned by one worker thread.

    Args:
        owner: the instance's id, part of the container's name.
    """

    def __init__(self, owner: str, *, journal: Journal, clock: Clock, place: Path = PLACE) -> None:
        self.name = f"{MARK}{owner}-container"
        self.directory = place / self.name
        self.root_id = FIRST_ID if _allows_user_namespaces() else 0
        self._journal = journal
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._entry = self._root_entry = -1
        self._init = 0

    @property
    def pid(self) -> int | None:
        """Process ID of the container's first process while it runs."""
        alive = self._process is not None and self._process.poll() is None
        return self._init if self._init and alive else None

    def start(self, image: GuestImage, machine: Machine, device: str, volume: str) -> None:
        """Start it with a block device; after an error, it is ended.

        Args:
            volume: the measured file or device.

        Raises:
            ToolsMissing, SwitchFailed, HypervisorGone, Interrupted.
        """
        if len(os.sched_getaffinity(0)) < machine.cpus:
            raise SwitchFailed(
                f"this machine has fewer CPUs than the container's {machine.cpus}",
                cause="a VM can have more CPUs than its host, a container cannot",
                next_step="reduce guest.cpus of the pack",
            )
        self._unpack(image)
        self._entry = self._journal.open(KIND, {"name": self.name, "volume": volume})
        try:
            text = config(self.directory, machine, device, root_id=self.root_id)
            (self.directory / "config").write_text(text, "utf-8")
            self._launch()
            self._wait_for_init()
            self._check_limits(machine)
        except BaseException:
            self.end()
            raise

    def _unpack(self, image: GuestImage) -> None:
        if self._root_entry >= 0:
            return
        undo_root({"path": str(self.directory)})  # leftover of a crash: the name has this id
        self._root_entry = self._journal.open(ROOT_KIND, {"path": str(self.directory)})
        root = self.directory / "root"
        for directory in (self.directory, root):
            directory.mkdir()
            directory.chmod(0o755)
        # The kernel is that of the host, and so are its modules.
        unpack_archive(image.initramfs.read_bytes(), root, but=MODULE_PLACE)
        (root / MOUNT_POINT.lstrip("/")).mkdir(parents=True)
        # They stay files of the host's root: the container can read them, but not replace a program
        # that this process starts.
        for where, _, _ in os.walk(root):
            Path(where).chmod(0o755)

    def _launch(self) -> None:
        log = ["-l", "ERROR", "-o", str(self.directory / "log")]
        try:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._command("lxc-start"), "-F", *log],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ToolsMissing(
                "setpriv is not installed", next_step="run `apt-get install util-linux`"
            ) from error

    def _command(self, program: str) -> list[str]:
        return [program, "-P", str(self.directory.parent), "-n", self.name]

    def _wait_for_init(self) -> None:
        deadline = self._clock.monotonic() + START_SECONDS
        while not self._init:
            if self._process is None or self._process.poll() is not None:
                raise self._gone("LXC did not start the container")
            if self._clock.monotonic() > deadline:
                raise self._gone(f"the container did not start within {START_SECONDS:.0f} s")
            self._clock.sleep(0.05)
            if match := _RUNNING.search(self._info()):
                self._init = int(match[1])

    def _info(self) -> str:
        query = [*self._command("lxc-info"), "-s", "-p"]
        try:
            return run_program(query, seconds=START_SECONDS).stdout
        except subprocess.TimeoutExpired:
            return ""

    def _check_limits(self, machine: Machine) -> None:
        """Raise SwitchFailed unless the kernel limits it to the resources of `machine`."""
        memory = limit_of(self._init, "memory", MEMORY[version_of("memory")])
        cpus = limit_of(self._init, "cpuset", CPUS[version_of("cpuset")])
        limits = str(memory_limit(machine)), cpu_list(machine)
        if (memory, cpus) != limits:
            raise SwitchFailed(
                f"the container has {memory or 'unknown'} bytes of memory and CPUs "
                f"{cpus or 'unknown'}, requested {limits[0]} and {limits[1]}",
                cause="this machine lacks the cgroup controller memory or cpuset",
                next_step="run `lxc-checkconfig` to check the kernel",
            )

    def enter(self) -> list[str]:
        """Return the prefix of a command that runs in the container with its limits."""
        return [*self._command("lxc-attach"), "--clear-env", "--"]

    def beside(self, device: Path) -> list[str]:
        """Return the prefix of a command with this user's rights, the guest's files and a device.

        It sees neither the container's mounts nor its files, which could replace the programs.
        """
        return [
            "unshare",
            "--mount",
            "sh",
            "-c",
            _BESIDE,
            str(self.directory / "root"),
            str(device),
        ]

    def _gone(self, what: str) -> HypervisorGone:
        log = read_tail(self.directory / "log", _TAIL_BYTES)
        last = log.strip().splitlines()[-1].partition(" - ")[2] if log.strip() else ""
        return HypervisorGone(
            f"{what}: {last}" if last else what,
            cause="it was killed, or this machine lacks a requirement of LXC",
            next_step="run `lxc-checkconfig` to check the kernel",
            evidence=log,
        )

    def end(self) -> None:
        """End the container; its files stay. Raises DriverError if it does not end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process, self._init = None, 0
        if self._entry >= 0:
            end_groups(self.name)
            self._journal.close(self._entry)
            self._entry = -1

    def close(self) -> None:
        """End the container, and remove its files."""
        self.end()
        if self._root_entry >= 0:
            with contextlib.suppress(MachineError):  # the entry stays open, as in QemuMachine.kill
                undo_root({"path": str(self.directory)})
                self._journal.close(self._root_entry)
            self._root_entry = -1


def config(directory: Path, machine: Machine, device: str, *, root_id: int) -> str:
    """Return the container's configuration: no network, its own /tmp and /run, limits.

    Args:
        root_id: the host's user that is root in it; 0: it has the host's root rights.
    """
    memory, cpus = version_of("memory"), version_of("cpuset")
    group = {1: "lxc.cgroup", 2: "lxc.cgroup2"}
    ids = [f"lxc.idmap = {kind} 0 {root_id} {IDS}" for kind in "ug"] if root_id else []
    return "\n".join(
        [
            "lxc.uts.name = pvebench",
            f"lxc.rootfs.path = dir:{directory / 'root'}",
            *ids,
            "lxc.net.0.type = empty",
            "lxc.init.cmd = /bin/sleep 2147483647",
            "lxc.mount.auto = proc:mixed sys:ro",
            "lxc.mount.entry = tmpfs run tmpfs nosuid,nodev 0 0",
            "lxc.mount.entry = tmpfs tmp tmpfs nosuid,nodev 0 0",
            f"lxc.mount.entry = {device} {DEVICE} none bind,create=file 0 0",
            f"{group[memory]}.{MEMORY[memory]} = {memory_limit(machine)}",
            f"{group[cpus]}.{CPUS[cpus]} = {cpu_list(machine)}",
            "",
        ]
    )


def memory_limit(machine: Machine) -> int:
    """Return the container's memory limit in bytes; the kernel counts whole pages."""
    return machine.memory_bytes // PAGESIZE * PAGESIZE


def cpu_list(machine: Machine) -> str:
    """Return the CPUs of a container in the kernel's notation: `0` or `0-3`.

    They are not always the first ones, but the ones that this process may use.
    """
    usable = sorted(os.sched_getaffinity(0))[: machine.cpus]
    runs: list[list[int]] = []
    for cpu in usable:
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _allows_user_namespaces() -> bool:
    try:
        return int(Path("/proc/sys/user/max_user_namespaces").read_text("ascii")) > 0
    except (OSError, ValueError):
        return False


def _has_ids(path: Path) -> bool:
    """Return whether root may use the IDs of a container, by a file of the form of subuid(5).

    If newuidmap is installed, LXC maps IDs with it, for root too (`lxc_map_ids` in lxc/conf.c).
    """
    for line in read_text(path).splitlines() if path.exists() else ():
        owner, *numbers = line.split(":")
        known = [number for text in numbers if (number := whole_number(text)) is not None]
        if owner in ("root", "0") and len(known) == len(numbers) == 2:
            first, count = known
            if first <= FIRST_ID and first + count >= FIRST_ID + IDS:
                return True
    return False


def undo_container(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND: end processes, groups, then a loop device of its volume."""
    name, volume = details["name"], details["volume"]
    number = end_groups(name) if name.startswith(MARK) else 0
    if is_own({"name": volume}, name.removeprefix(MARK).partition("-")[0]):
        detach_loops(Path(volume))
    return f"ended container {name} (leftover processes: {number})"


def undo_root(details: Mapping[str, str]) -> str:
    """Undo a journal entry of ROOT_KIND. Mounts there exist only in the container."""
    path = Path(details["path"])
    if path.name.startswith(MARK):
        remove_tree(path)
        (_LOCKS / path.parent.relative_to("/") / f".{path.name}").unlink(missing_ok=True)
    return f"removed the files of container {path}"


def container_support() -> tuple[bool, str]:
    """Return whether containers are possible here, and the reason or an action."""
    if shutil.which("lxc-start") is None:
        return False, "not installed, but needed for containers; run `apt-get install lxc`"
    if os.geteuid() != 0:
        return False, "containers need root; run pvebench as root"
    if not GROUPS.is_dir():
        return False, f"{GROUPS} does not exist, so containers have no limits"
    asked = ID_RANGES if shutil.which("newuidmap") and _allows_user_namespaces() else ()
    for path in asked:
        if not _has_ids(path):
            line = f"root:{FIRST_ID}:{IDS}"
            return False, f"{path} gives root no IDs for containers; add the line {line}"
    return True, shutil.which("lxc-start") or ""


# --- control groups: limits and removal
#
# Both versions may exist at the same time, with each controller in one of them (cgroups(7)). LXC
# creates a group `lxc.payload.NAME` for the container and `lxc.monitor.NAME` for its monitor.

GROUPS: Final = Path("/sys/fs/cgroup")
_END_SECONDS: Final = 10.0
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
    for line in _read_group(Path(f"/proc/{pid}/cgroup")).splitlines():
        number, names, group = line.split(":", 2)
        if controller in names.split(","):
            return _read_group(GROUPS / names / group.lstrip("/") / file)
        if number == "0" and (GROUPS / "cgroup.controllers").exists():
            return _read_group(GROUPS / group.lstrip("/") / file)
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
    deadline = time.monotonic() + _END_SECONDS
    groups = groups_of(name)
    while left := set(_processes(groups)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
        if time.monotonic() > deadline:
            raise DriverError(
                f"process {min(left)} of container {name} did not end", cause="its I/O hangs"
            )
        time.sleep(0.02)
    for group in groups:
        _remove_group(group, deadline)
    return len(killed)


def _remove_group(group: Path, deadline: float) -> None:
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
        yield from map(int, _read_group(group / "cgroup.procs").split())


def _read_group(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""
