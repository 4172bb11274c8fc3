"""Backend of container cases: the volume's file system, mounted only in the container.

The tools are the files of the guest image, so they are those of the VM. The guest's script creates
and mounts the file system, but with this process's rights: a container may do neither.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pvebench.drivers.backend_router import LocalBackend
from pvebench.drivers.clocks import SystemClock, attempts
from pvebench.drivers.linux.host_tools import HostTools
from pvebench.drivers.linux.io_counters import device_counters
from pvebench.drivers.storages.contract import Storage
from pvebench.drivers.storages.own_files import drop_page_cache
from pvebench.errors import HypervisorGone, OutputUnreadable, SwitchFailed, ToolFailed, VolumeError
from pvebench.files import mounts
from pvebench.guest.image import GuestImage
from pvebench.guest.recipe import FILESYSTEM_TOOL, MOUNT_POINT
from pvebench.model.disk import DEVICE_OPTIONS, Disk
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import Clock
from pvebench.model.scenario import Machine
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume
from pvebench_lab.lxc.container import DEVICE, Container
from pvebench_lab.storages.loop import losetup

_READ_BACK: Final = ("bus", "format", "cache", *DEVICE_OPTIONS)
_PROGRAMS: Final = ["/bin/busybox", "env", "PATH=/usr/bin:/usr/sbin:/bin:/sbin"]
"""Prefix of a command that sets the search path of the guest's programs."""
_START_SECONDS: Final = 10.0
_LOOP_SECONDS: Final = 10.0
"""Time limit for the end of a loop device: its last I/O must complete first."""
_CHANGE_OWNER: Final = f'"$@"; chown -hR "$0" {MOUNT_POINT}; {FILESYSTEM_TOOL} unmount'
"""Script for sh; arguments: owner, command that mounts."""
MAX_DEPTH: Final = 32
"""Maximum depth of directories in the container whose files are dropped from the page cache."""
_PID: Final = re.compile(rb"([1-9][0-9]{0,6})\n")
_NOT_FOUND: Final = (126, 127)
"""Exit codes of env for a program that it cannot start."""


class ContainerDisk(LocalBackend):
    """Backend in a container, on `storages` of this machine. Owned by one worker thread.

    Args:
        image: returns the guest image, whose files the container gets.
    """

    def __init__(
        self,
        container: Container,
        *,
        storages: Mapping[str, Storage],
        image: Callable[[], GuestImage],
        clock: Clock,
    ) -> None:
        self._container = container
        self._storages = dict(storages)
        self._image = image
        self._clock = clock
        self._started: tuple[Machine, Plug] | None = None
        self._tools: ContainerTools | None = None
        self._device: Path | None = None
        self._held = -1
        self._counted = BlockCounters()

    @property
    def pid(self) -> int | None:
        """Process ID of the container's first process; None: not running."""
        return self._container.pid

    @property
    def volume_path(self) -> Path | None:
        """The file or device of the volume in use."""
        return Path(self._opened(self._started[1].volume)) if self._started else None

    def _opened(self, volume: Volume) -> str:
        return self._storages[volume.storage].opened(volume)

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the tools of a container with the volume's device; start it if needed.

        Raises:
            SwitchFailed, HypervisorGone, VolumeError, ToolsMissing.
        """
        if cold is None:
            raise SwitchFailed("a container needs its volume at its start")
        self._storages[cold.volume.storage].check(cold.volume)
        if self._tools is not None and self.pid and self._started == (machine, cold):
            return self._tools
        self.detach()
        self._storages[cold.volume.storage].drop_caches(cold.volume)
        opened = self._opened(cold.volume)
        self._started = machine, cold
        try:
            self._device = self._open(Path(opened))
            self._container.start(self._image(), machine, str(self._device), opened)
        except BaseException:
            self.detach()
            raise
        self._tools = ContainerTools(self._container, self._device, self._clock)
        return self._tools

    def _open(self, path: Path) -> Path:
        if path.is_block_device():
            return path
        device, self._held = _attach_loop(str(path))
        return Path(device)

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Verify the container's volume. Raises SwitchFailed, VolumeError."""
        plug = self._started[1] if self._started else None
        if self._device is None or plug != Plug(volume, disk):
            raise SwitchFailed("volume missing after the container's start")
        self._storages[volume.storage].check(volume)
        number = self._device.stat().st_rdev
        loop = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/loop")
        direct = not loop.exists() or (loop / "dio").read_text("ascii").strip() == "1"
        with self._device.open("rb") as device:
            size = device.seek(0, os.SEEK_END)
        self._counted = _counters(self._device)
        return Attachment(
            device=f"/{DEVICE}",
            effective={
                "size_bytes": str(size),
                "bus": str(disk.bus),
                "format": "raw",  # there is no layer between the file system and the volume
                "cache": "none" if direct else "writeback",
            },
            unverified=tuple(set(Disk.__dataclass_fields__) - set(_READ_BACK)),
            raw=f"container {self._container.name}, first process {self.pid}, "
            f"root is user {self._container.root_id}\n{self._device} on {self._opened(volume)}",
        )

    def detach(self) -> None:
        """End the container, which ends its mount and then the loop device."""
        if self._tools is not None:
            self._tools.close()
        self._container.end()
        device, held = self._device, self._held
        self._tools, self._started, self._device, self._held = None, None, None, -1
        if held >= 0:
            _release_loop(str(device), held)

    power_off = detach

    def drop_caches(self, volume: Volume) -> int | None:
        """As `Hypervisor.drop_caches`: for the files in the container, then for what is below.

        The file system's metadata stay cached for the device, as in a VM.
        """
        left = self._tools.drop_caches() if self._tools else 0
        if self._device:
            drop_page_cache(self._device)
        return left + (self._storages[volume.storage].drop_caches(volume) or 0)

    def counters(self) -> BlockCounters:
        """Return the counters of the volume's device since it was attached."""
        if self._device is None:
            raise SwitchFailed("no volume is in use in the container")
        return _counters(self._device).since(self._counted)

    def shutdown(self) -> None:
        """Remove the container; the volumes belong to the storages."""
        self.detach()
        self._container.close()


def _attach_loop(path: str) -> tuple[str, int]:
    """Return a loop device of a file, and a descriptor that holds it.

    The kernel removes it when it is no longer open or mounted, so that it does not outlive a
    killed process. Raises VolumeError.
    """
    # Direct I/O avoids a second cache, that of the file below.
    device = losetup("--find", "--show", "--direct-io=on", path)
    try:
        held = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        losetup("--detach", device)  # an open one is detached at its last close, see losetup(8)
    return device, held


def _release_loop(device: str, held: int) -> None:
    """Close a device of `_attach_loop`, and wait until it is removed.

    An unmount may still be in progress, and must not overlap with the next use.

    Raises VolumeError: another program has it open.
    """
    os.close(held)
    for _ in attempts(SystemClock(), seconds=_LOOP_SECONDS, pause=0.02):
        if not Path(f"/sys/block/{Path(device).name}/loop").exists():
            return
    raise VolumeError(
        f"{device} is still in use", cause="another program has it open, or its I/O hangs"
    )


def _counters(device: Path) -> BlockCounters:
    try:
        return device_counters(Path("/"), device.stat().st_rdev)
    except OSError as error:
        raise SwitchFailed(
            f"the container's block device {device} has no counters",
            cause="it was removed during its use",
        ) from error


class ContainerTools(Guest):
    """`model.ports.Guest` in a running container. Owned by one worker thread."""

    def __init__(self, container: Container, device: Path, clock: Clock) -> None:
        self._container = container
        self._device = device
        self._clock = clock
        self._tools = HostTools()
        self._started = 0
        self._pids: dict[int, int] = {}
        """Process ID in the container -> ID of the process that waits for it."""

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        if argv[0] == FILESYSTEM_TOOL:
            return self._filesystem(argv, timeout)
        self._check()
        inside = [*self._container.enter(), *_PROGRAMS, *argv]
        done = self._tools.run(inside, stdin=stdin, timeout=timeout)
        if done.exit_code in _NOT_FOUND and argv[0] != "/bin/sh":
            raise ToolFailed(f"cannot start {argv[0]} in the container")
        if done.exit_code:
            self._check()
        return done

    def _filesystem(self, argv: list[str], timeout: float) -> Completed:
        """Create or mount the file system: the container may do neither, so none of it runs."""
        if argv[1] == "make":
            return self._beside(argv, timeout)
        into = ["-i", "-N", f"/proc/{self._container.pid}/ns/mnt"]
        if argv[1] == "unmount":
            return self._on_host(["umount", *into, MOUNT_POINT], timeout)
        self._change_owner(argv, timeout)
        device, kind, options = (*argv[2:], "")[:3]
        what = ["-t", kind, *(["-o", options] if options else []), device, MOUNT_POINT]
        done = self._on_host(["mount", *into, *what], timeout)
        if done.exit_code == 0:
            self._check_mount(kind)
        return done

    def _beside(self, argv: list[str], timeout: float) -> Completed:
        return self._on_host([*self._container.beside(self._device), *_PROGRAMS, *argv], timeout)

    def _on_host(self, argv: list[str], timeout: float) -> Completed:
        self._check()
        return self._tools.run(argv, timeout=timeout)

    def _change_owner(self, mount: list[str], timeout: float) -> None:
        """Give the files on the file system, which a VM may have created, to the container.

        They are mounted elsewhere for that: in the container, links could lead to other files.
        """
        owner = f"{self._container.root_id}:{self._container.root_id}"
        argv = ["sh", "-ec", _CHANGE_OWNER, owner, *mount]
        done = self._beside(argv, timeout)
        if done.exit_code:
            output = done.stderr.decode("utf-8", "replace").strip()
            raise SwitchFailed(f"cannot give the volume's files to the container: {output}")

    def _check_mount(self, filesystem: str) -> None:
        """Raise SwitchFailed unless the volume is mounted in the container."""
        number = self._device.stat().st_rdev
        expected = f"{os.major(number)}:{os.minor(number)}", MOUNT_POINT, filesystem
        text = Path(f"/proc/{self._container.pid}/mountinfo").read_text("utf-8", "replace")
        actual = [(mount.device, mount.point, mount.type) for mount in mounts(text)]
        if expected not in actual:
            raise SwitchFailed(f"{' '.join(expected)} missing in the container's mounts: {actual}")

    def start(self, argv: list[str]) -> int:
        self._check()
        self._started += 1
        pid_file = f"/run/pvebench-started-{self._started}"
        script = f'echo $$ >{pid_file}.new; mv {pid_file}.new {pid_file}; exec "$@"'
        shell = ["/bin/sh", "-c", script, "sh", *argv]
        waiting = self._tools.start([*self._container.enter(), *_PROGRAMS, *shell])
        pid = self._inner_pid(pid_file)
        self._pids[pid] = waiting
        return pid

    def _inner_pid(self, pid_file: str) -> int:
        """Return a program's process ID in the container, for use by other programs there."""
        for _ in attempts(self._clock, seconds=_START_SECONDS, pause=0.01):
            done = self.run(["cat", pid_file])
            if done.exit_code == 0 and (match := _PID.fullmatch(done.stdout)):
                return int(match[1])
        raise ToolFailed("cannot start a tool in the container")

    def poll(self, pid: int) -> Completed | None:
        ended = self._tools.poll(self._pids[pid])
        if ended is not None and ended.exit_code:
            self._check()
        return ended

    def read_file(self, path: str) -> bytes:
        done = self.run(["cat", path])
        if done.exit_code:
            output = done.stderr.decode("utf-8", "replace").strip()
            raise OutputUnreadable(f"cannot read {path} in the container: {output}")
        return done.stdout

    def write_file(self, path: str, content: bytes) -> None:
        argv = ["/bin/sh", "-c", f"cat >{shlex.quote(path)}"]
        done = self.run(argv, stdin=content)
        if done.exit_code:
            raise ToolFailed(f"cannot write {path} in the container")

    def drop_caches(self) -> int:
        """Drop the page cache of the files on the volume's file system; return the bytes left."""
        top = os.open(f"/proc/{self._container.pid}/root", os.O_PATH)
        try:
            return _drop_below(top, MOUNT_POINT.strip("/").split("/"))
        finally:
            os.close(top)

    def close(self) -> None:
        """End all processes that wait for a program in the container."""
        self._tools.close()

    def _check(self) -> None:
        if self._container.pid is None:
            raise HypervisorGone(
                "the container has ended",
                cause="it was killed, possibly out of memory",
                next_step="no action needed; pvebench restarts it for the next case",
            )


def _drop_below(directory: int, only: list[str], depth: int = 0) -> int:
    """Drop the page cache of all files below a directory; return the bytes left.

    Follows no link: one of the container could lead to a file of this machine.

    Args:
        only: names of the directories on the way to the first one that counts.
    """
    left = 0
    for name in only[:1] or [path.name for path in Path(f"/proc/self/fd/{directory}").iterdir()]:
        with suppress(FileNotFoundError):  # a program in the container removed it
            file = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=directory)
            try:
                kind = os.fstat(file).st_mode
                if stat.S_ISREG(kind) and not only:
                    left += drop_page_cache(Path(f"/proc/{os.getpid()}/fd/{file}"))
                elif stat.S_ISDIR(kind) and depth < MAX_DEPTH:
                    left += _drop_below(file, only[1:], depth + 1)
            finally:
                os.close(file)
    return left
