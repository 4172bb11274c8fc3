"""Machine that is reached by ssh, for its host cases."""

from __future__ import annotations

import secrets
import time
from typing import Final

from pvebench.drivers.linux.io_counters import counters_of, files_of
from pvebench.drivers.linux.procfs import Fetched, host_facts, read_snapshot
from pvebench.drivers.remote_tools import (
    KIND,
    RemoteCommands,
    RemoteTools,
    VolumeFile,
    left,
    parse_device,
)
from pvebench.drivers.storages.contract import MARK
from pvebench.errors import DriverError, OutputUnreadable, SwitchFailed, WorkloadError
from pvebench.model.disk import DEVICE_OPTIONS, Disk
from pvebench.model.ports import HostSnapshot, Journal
from pvebench.model.volume import BlockCounters

_TEMPORARY: Final = "/tmp"  # noqa: S108 # of another machine; the names there are random
_FACTS: Final = (
    "/proc/sys/kernel/osrelease",
    "/proc/cpuinfo",
    "/proc/stat",
    "/etc/os-release",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
)


class RemoteMachine:
    """`host_disk.HostMachine` by ssh. Owned by one worker thread.

    Args:
        owner: the instance's id.
    """

    def __init__(self, commands: RemoteCommands, *, owner: str, journal: Journal) -> None:
        base = f"{_TEMPORARY}/{MARK}{owner}-{secrets.token_hex(8)}"
        self.work = f"{base}/work"
        self.tools = RemoteTools(commands, base, journal)
        self._commands = commands
        self._journal = journal
        self._devices: dict[str, tuple[int, ...]] = {}
        self._scratch: tuple[str, int] | None = None

    def find(self, path: str) -> VolumeFile:
        file, self._devices[path] = parse_device(self._commands.ask("device", path), path)
        return file

    def counters(self, path: str) -> BlockCounters | None:
        if path not in self._devices:
            self.find(path)
        devices = self._devices[path]
        try:
            return counters_of(self._fetch(*files_of(devices)), devices)
        except (ValueError, IndexError) as error:
            raise OutputUnreadable(f"{self._commands.where} has no counters of {path}") from error

    def snapshot(self, path: str) -> HostSnapshot:
        """Return the machine's current counters; unreadable ones are absent."""
        devices = self._devices.get(path, ())
        asked = time.monotonic()
        try:
            fetched = self._fetch("/proc/stat", *files_of(devices))
            at = (asked + time.monotonic()) / 2  # the counters are of a moment in between
            return read_snapshot(fetched, pid=None, devices=devices, at=at)
        except (DriverError, WorkloadError, OSError, ValueError, IndexError):
            return HostSnapshot(monotonic=time.monotonic(), cpu_seconds={})

    def _fetch(self, *paths: str) -> Fetched:
        return Fetched.read(self._commands.ask("files", *paths))

    def tune(self, path: str, disk: Disk) -> dict[str, str]:
        """Change nothing. Raises SwitchFailed if the disk has device options."""
        options = [name for name in DEVICE_OPTIONS if getattr(disk, name) is not None]
        if options:
            raise SwitchFailed(
                f"cannot set {', '.join(options)} on {self._commands.where} by ssh",
                next_step="remove these options, or run pvebench on that machine",
            )
        return {}

    def untune(self) -> None:
        """Do nothing: `tune` changes nothing."""

    def make_scratch(self, volume: str) -> str:
        path = f"{volume}-scratch"
        self._scratch = (path, self._journal.open(KIND, left(self._commands, path)))
        self._commands.ask("end", path)  # leftover of a crash: the name contains this instance's id
        self._commands.ask("directory", path)
        return path

    def remove_scratch(self) -> None:
        if self._scratch is not None:
            path, entry = self._scratch
            self._commands.ask("end", path)
            self._journal.close(entry)
            self._scratch = None

    def facts(self) -> dict[str, str]:
        """Return the machine's facts; none while it does not answer."""
        try:
            facts = host_facts(self._fetch(*_FACTS))
            return facts | {"fio": self.version("fio")}
        except (DriverError, WorkloadError, OSError, ValueError, IndexError):
            return {}

    def version(self, program: str) -> str:
        """Return a program's version; empty: not installed."""
        done = self._commands.shell.ask([program, "--version"])
        output = done.stdout.decode("utf-8", "replace").strip()
        return "" if done.exit_code else output.removeprefix(f"{program}-")

    def close(self) -> None:
        self.tools.leave()
        self._commands.shell.close()
