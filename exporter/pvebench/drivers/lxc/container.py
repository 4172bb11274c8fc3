"""One LXC container: its root, its limits, its beginning and end, what a crash left of it.

It ends with us: the kernel kills `lxc-start` when this process is killed, and LXC has asked it to
kill the container's first process then. With that go its mounts, and with the last of these the
loop device. Groups and files stay; the journal knows them. Options: lxc.container.conf(5).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.cgroups import CPUS, GROUPS, MEMORY, end_groups, limit_of, version_of
from pvebench.drivers.storages.contract import MARK
from pvebench.drivers.storages.loop import detach_loops
from pvebench.errors import HypervisorGone, SwitchFailed, ToolsMissing
from pvebench.files import remove_tree
from pvebench.guest import MOUNT_POINT, GuestImage, unpack_archive
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine

KIND: Final = "container"
ROOT_KIND: Final = "container-root"
"""Kinds of the journal entries made here: what runs, and the files that it runs from."""
PLACE: Final = Path("/var/lib")
"""Of a container's files: its user must be able to enter every directory above its root, which a
state directory does not allow, and programs must run there, which some /run does not."""
DEVICE: Final = "dev/pvebench-test"
"""In the container: the volume's device, for us alone to mount."""
FIRST_ID: Final = 100_000
IDS: Final = 65_536
"""Users of the host that a container's are, as Proxmox gives them to one without privileges."""
START_SECONDS: Final = 30.0
_LOCKS: Final = Path("/run/lxc/lock")
_TAIL_BYTES: Final = 2000
_RUNNING: Final = re.compile(r"State:\s+RUNNING\nPID:\s+(\d+)")
"""Of `lxc-info -s -p`."""


class Container:
    """At most one running container, and its files. Owned by one worker thread.

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
        """Number of the container's first process while it runs."""
        alive = self._process is not None and self._process.poll() is None
        return self._init if self._init and alive else None

    def start(self, image: GuestImage, machine: Machine, device: str, volume: str) -> None:
        """Start it with a block device in it; after any error nothing of it runs.

        Args:
            volume: the file or device that is measured.

        Raises:
            ToolsMissing, SwitchFailed, HypervisorGone, Interrupted.
        """
        if len(os.sched_getaffinity(0)) < machine.cpus:
            raise SwitchFailed(
                f"a container of {machine.cpus} CPUs cannot be had: this machine has fewer",
                cause="a VM may have more CPUs than its host, a container may not",
                next_step="make guest.cpus of the pack smaller",
            )
        self._unpack(image)
        self._entry = self._journal.open(KIND, {"name": self.name, "volume": volume})
        try:
            text = config(self.directory, machine, device, root_id=self.root_id)
            (self.directory / "config").write_text(text, "utf-8")
            self._launch()
            self._meet()
            self._check_limits(machine)
        except BaseException:
            self.end()
            raise

    def _unpack(self, image: GuestImage) -> None:
        if self._root_entry >= 0:
            return
        undo_root({"path": str(self.directory)})  # ours by our id in its name, left by a crash
        self._root_entry = self._journal.open(ROOT_KIND, {"path": str(self.directory)})
        root = self.directory / "root"
        for made in (self.directory, root):
            made.mkdir()
            made.chmod(0o755)
        # The kernel is the host's, and its modules are there.
        unpack_archive(image.initramfs.read_bytes(), root, but="lib/modules/")
        (root / MOUNT_POINT.lstrip("/")).mkdir(parents=True)
        for where, directories, files in os.walk(root):
            for name in (".", *directories, *files):
                os.chown(Path(where) / name, self.root_id, self.root_id, follow_symlinks=False)

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
                "setpriv is not installed", next_step="apt-get install util-linux"
            ) from error

    def _command(self, program: str) -> list[str]:
        return [program, "-P", str(self.directory.parent), "-n", self.name]

    def _meet(self) -> None:
        deadline = self._clock.monotonic() + START_SECONDS
        while not self._init:
            if self._process is None or self._process.poll() is not None:
                raise self._gone("LXC did not start the container")
            if self._clock.monotonic() > deadline:
                raise self._gone(f"the container does not run after {START_SECONDS:.0f} s")
            self._clock.sleep(0.05)
            if found := _RUNNING.search(self._told()):
                self._init = int(found[1])

    def _told(self) -> str:
        ask = [*self._command("lxc-info"), "-s", "-p"]
        try:
            return subprocess.run(
                ask, capture_output=True, text=True, check=False, timeout=START_SECONDS
            ).stdout
        except subprocess.TimeoutExpired:
            return ""

    def _check_limits(self, machine: Machine) -> None:
        """Raise SwitchFailed unless the kernel holds it to what the machine of a VM would have."""
        memory = limit_of(self._init, "memory", MEMORY[version_of("memory")])
        cpus = limit_of(self._init, "cpuset", CPUS[version_of("cpuset")])
        wanted = str(memory_limit(machine)), cpu_list(machine)
        if (memory, cpus) != wanted:
            raise SwitchFailed(
                f"the container has {memory or 'unknown'} bytes of memory and CPUs "
                f"{cpus or 'unknown'}, not {wanted[0]} and {wanted[1]}",
                cause="this machine lacks the cgroup controller memory or cpuset",
                next_step="`lxc-checkconfig` tells what the kernel has",
            )

    def enter(self) -> list[str]:
        """Return what a command is put behind, to run in the container with its limits."""
        return [*self._command("lxc-attach"), "--clear-env", "--"]

    def own_mounts(self) -> list[str]:
        """Return what a command is put behind, to see the container's files with our rights.

        Raises:
            HypervisorGone: it does not run.
        """
        if self.pid is None:
            raise self._gone("the container has ended")
        return ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--"]

    def _gone(self, what: str) -> HypervisorGone:
        said = ""
        with suppress(OSError):
            said = (self.directory / "log").read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
        last = said.strip().splitlines()[-1].partition(" - ")[2] if said.strip() else ""
        return HypervisorGone(
            f"{what}: {last}" if last else what,
            cause="it was killed, or this machine does not let LXC have what it needs",
            next_step="`lxc-checkconfig` tells what the kernel has",
            evidence=said,
        )

    def end(self) -> None:
        """End what runs; its files stay. Raises DriverError if it does not end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process, self._init = None, 0
        if self._entry >= 0:
            end_groups(self.name)
            self._journal.close(self._entry)
            self._entry = -1

    def close(self) -> None:
        """End what runs, and remove its files."""
        self.end()
        if self._root_entry >= 0:
            undo_root({"path": str(self.directory)})
            self._journal.close(self._root_entry)
            self._root_entry = -1


def config(directory: Path, machine: Machine, device: str, *, root_id: int) -> str:
    """Return the container's configuration: no network, its own /tmp and /run, limits.

    Args:
        root_id: the host's user that is root in it; 0: it has root's own rights.
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
    """Return the bytes of memory that a container may have; the kernel counts whole pages."""
    return machine.memory_bytes // PAGESIZE * PAGESIZE


def cpu_list(machine: Machine) -> str:
    """Return the CPUs of a container as the kernel writes them: `0` or `0-3`.

    Those are not always the first: those that we may use ourselves.
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


def undo_container(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND: what runs and its groups, then a loop over its volume."""
    number = end_groups(details["name"]) if details["name"].startswith(MARK) else 0
    detach_loops(Path(details["volume"]))
    return f"ended container {details['name']} ({number} processes left of it)"


def undo_root(details: Mapping[str, str]) -> str:
    """Undo a journal entry of ROOT_KIND. Nothing is mounted there but in the container."""
    path = Path(details["path"])
    if path.name.startswith(MARK):
        remove_tree(path)
        (_LOCKS / path.parent.relative_to("/") / f".{path.name}").unlink(missing_ok=True)
    return f"removed the files of container {path}"


def found_here() -> tuple[bool, str]:
    """Return whether containers can be made here, and what was found or what to do."""
    if shutil.which("lxc-start") is None:
        return False, "not installed, but needed for containers: apt-get install lxc"
    if os.geteuid() != 0:
        return False, "containers are made as root only: run pvebench as root"
    if not GROUPS.is_dir():
        return False, f"{GROUPS} is not there: containers have no limits"
    return True, shutil.which("lxc-start") or ""
