"""Backend of container cases: the volume's file system, mounted only in the container.

The tools are the files of the guest image, so they are those of the VM. The guest's script creates
and mounts the file system, but with this process's rights: a container may do neither.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.host_tools import HostTools
from pvebench.drivers.linux.io_counters import device_counters
from pvebench.drivers.lxc.container import DEVICE, Container
from pvebench.drivers.storages.block import attach_loop, release_loop
from pvebench.drivers.storages.contract import Storage
from pvebench.drivers.storages.directory import drop_page_cache
from pvebench.errors import HypervisorGone, OutputUnreadable, SwitchFailed, ToolFailed
from pvebench.guest import FILESYSTEM_TOOL, MOUNT_POINT, GuestImage
from pvebench.model.disk import DEVICE_OPTIONS, Disk
from pvebench.model.ports import Clock, Completed, Guest
from pvebench.model.scenario import Machine
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume

_READ_BACK: Final = ("bus", "format", "cache", *DEVICE_OPTIONS)
_PROGRAMS: Final = ["/bin/busybox", "env", "PATH=/usr/bin:/usr/sbin:/bin:/sbin"]
"""Prefix of a command that sets the search path of the guest's programs."""
_START_SECONDS: Final = 10.0
_NOT_FOUND: Final = (126, 127)
"""Exit codes of env for a program that it cannot start."""


class ContainerDisk:
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
        self._counted = BlockCounters(
            read_operations=0, write_operations=0, flush_operations=0, read_bytes=0, write_bytes=0
        )

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
        device, self._held = attach_loop(str(path))
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
            release_loop(str(device), held)

    power_off = detach

    def drop_caches(self, volume: Volume) -> int | None:
        """As `Hypervisor.drop_caches`: for the files in the container, then for what is below.

        The file system's metadata stay cached for the device, as in a VM.
        """
        inside = self._tools.files() if self._tools else []
        left = sum(drop_page_cache(path) for path in inside)
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
        return self._run(self._container.enter(), argv, stdin, timeout)

    def _run(
        self, into: list[str], argv: list[str], stdin: bytes = b"", timeout: float = 60.0
    ) -> Completed:
        self._check()
        done = self._tools.run([*into, *_PROGRAMS, *argv], stdin=stdin, timeout=timeout)
        if done.exit_code in _NOT_FOUND and argv[0] != "/bin/sh":
            raise ToolFailed(f"cannot start {argv[0]} in the container")
        if done.exit_code:
            self._check()
        return done

    def _filesystem(self, argv: list[str], timeout: float) -> Completed:
        done = self._run(self._container.own_mounts(), argv, timeout=timeout)
        if argv[1] == "mount" and done.exit_code == 0:
            self._check_mount(argv[3])
            self._change_owner()
        return done

    def _change_owner(self) -> None:
        """Give the files on the file system, which a VM may have created, to the container."""
        owner = str(self._container.root_id)
        argv = ["chown", "-R", f"{owner}:{owner}", MOUNT_POINT]
        done = self._run(self._container.own_mounts(), argv)
        if done.exit_code:
            output = done.stderr.decode("utf-8", "replace").strip()
            raise SwitchFailed(f"cannot give the volume's files to the container: {output}")

    def _check_mount(self, filesystem: str) -> None:
        """Raise SwitchFailed unless the volume is mounted in the container."""
        number = self._device.stat().st_rdev
        expected = f"{os.major(number)}:{os.minor(number)}", MOUNT_POINT, filesystem
        actual = mounts(Path(f"/proc/{self._container.pid}/mountinfo").read_text("utf-8"))
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
        path = Path(f"/proc/{self._container.pid}/root{pid_file}")
        deadline = self._clock.monotonic() + _START_SECONDS
        while not path.exists():
            self._check()
            if self._clock.monotonic() > deadline:
                raise ToolFailed("cannot start a tool in the container")
            self._clock.sleep(0.01)
        return int(path.read_text("ascii"))

    def poll(self, pid: int) -> Completed | None:
        ended = self._tools.poll(self._pids[pid])
        if ended is not None and ended.exit_code:
            self._check()
        return ended

    def read_file(self, path: str) -> bytes:
        done = self._run(self._container.enter(), ["cat", path])
        if done.exit_code:
            output = done.stderr.decode("utf-8", "replace").strip()
            raise OutputUnreadable(f"cannot read {path} in the container: {output}")
        return done.stdout

    def write_file(self, path: str, content: bytes) -> None:
        argv = ["/bin/sh", "-c", f"cat >{shlex.quote(path)}"]
        done = self._run(self._container.enter(), argv, content)
        if done.exit_code:
            raise ToolFailed(f"cannot write {path} in the container")

    def files(self) -> list[Path]:
        """Return the files on the volume's file system, as paths of this machine."""
        top = Path(f"/proc/{self._container.pid}/root{MOUNT_POINT}")
        return [path for path in top.rglob("*") if path.is_file() and not path.is_symlink()]

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


def mounts(mountinfo: str) -> list[tuple[str, str, str]]:
    """Return device number, mount point and type of each mount, see proc_pid_mountinfo(5)."""
    return [(line["device"], line["place"], line["kind"]) for line in _MOUNT.finditer(mountinfo)]


_MOUNT: Final = re.compile(
    r"^\d+ \d+ (?P<device>\d{1,4}:\d{1,7}) \S+ (?P<place>\S+) [^\n]*? - (?P<kind>\S+) ",
    re.MULTILINE,
)
