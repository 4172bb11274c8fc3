"""Site of a machine that is reached by ssh, with host cases."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from pvebench.drivers.driver import DriverContext, Finding, attempt
from pvebench.drivers.linux.block_devices import VolumeFile, parse_device, whole
from pvebench.drivers.linux.drive_wear import NOT_INSTALLED, most_worn
from pvebench.drivers.linux.io_counters import counters_of, files_of
from pvebench.drivers.linux.procfs import Fetched, host_facts, read_snapshot
from pvebench.drivers.ssh import SshSettings
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.drivers.storages.contract import (
    MARK,
    Node,
    Storage,
    StorageContext,
    Undo,
    instance_id,
)
from pvebench.drivers.storages.directory import DirectorySettings, path_of
from pvebench.drivers.storages.own_files import changed
from pvebench.drivers.storages.server_link import ServerLink
from pvebench.drivers.storages.storage_settings import local_storages, networks_of, storage_contexts
from pvebench.errors import (
    DriverError,
    OutputUnreadable,
    PvebenchError,
    SwitchFailed,
    ToolsMissing,
    VolumeError,
    WorkloadError,
)
from pvebench.files import MOUNTINFO, mounts
from pvebench.guest.recipe import PROGRAMS
from pvebench.model.disk import DEVICE_OPTIONS, Disk
from pvebench.model.environment import NO_BARRIER, storage_fact
from pvebench.model.ports import HostSnapshot, Journal, Site, StorageFunctions
from pvebench.model.scenario import Scenario
from pvebench.model.storage_use import Space, SpaceNeed, Wear
from pvebench.model.units import show_bytes, whole_number
from pvebench.model.volume import BlockCounters, Volume
from pvebench.model.workload import Case
from pvebench.sanitize import one_line
from pvebench.workloads import TOOLS
from pvebench_lab.host import HostSettings
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.remote_tools import (
    KIND,
    NOT_FOUND,
    Refused,
    RemoteCommands,
    RemoteTools,
    left,
    undo_left,
)

# --- test volumes on another machine: files in a directory, with the ownership marker

_FILE: Final = re.compile(
    r"regular (?:empty )?file\|(?P<which>[0-9]{1,20}\|[0-9]{1,20})\|[0-9]{1,20}"
)


class RemoteDirectory(Storage):
    """Storage of kind `dir` on another machine."""

    def __init__(
        self, context: StorageContext[DirectorySettings], journal: Journal, commands: RemoteCommands
    ) -> None:
        self._name = context.name
        self._directory = str(context.settings.path)
        self._prefix = f"{self._directory}/{MARK}{context.owner}-"
        self._journal = journal
        self._commands = commands
        self._entries: dict[str, int] = {}
        self._created: dict[str, str] = {}
        """Path -> identity of the created file."""

    def create(self, scenario: Scenario) -> Volume:
        """Create an unfilled volume."""
        path, size = f"{self._prefix}{scenario.volume}", scenario.volume_bytes
        entry = self._journal.open(KIND, left(self._commands, path))
        self._entries.setdefault(path, entry)
        if self._entries[path] != entry:
            self._journal.close(entry)
        self._commands.ask("end", path)  # leftover of a crash: the name contains this instance's id
        self._check_space(size)
        self._created[path] = self._known(self._commands.do("make", path, str(size)), path)
        return Volume.of(scenario, path)

    def _check_space(self, size: int) -> None:
        """Raise NoSpace if the file system has no space for `size` bytes."""
        free = whole(
            self._commands.ask("space", self._directory), f"bytes free in {self._directory}"
        )
        where = f"in {self._directory} on {self._commands.where}"
        Space(free=free, where=where).require(self._name, size)

    def _known(self, output: bytes, path: str) -> str:
        match = _FILE.fullmatch(output.decode("utf-8", "replace").strip())
        if match is None:
            raise changed(path, f"is no longer a regular file ({output[:60]!r})")
        return match["which"]

    def remove(self, volume: Volume) -> None:
        self._commands.ask("end", volume.volid)
        self._created.pop(volume.volid, None)
        entry = self._entries.pop(volume.volid, None)
        if entry is not None:
            self._journal.close(entry)

    def check(self, volume: Volume) -> None:
        path = volume.volid
        if self._known(self._commands.ask("known", path), path) != self._created[path]:
            raise changed(path, "was replaced by another file")

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Raise SwitchFailed: a QEMU on this machine cannot open it."""
        raise SwitchFailed(f"{volume.volid} is on {self._commands.where}; local VMs cannot use it")

    def drop_caches(self, volume: Volume) -> int | None:
        """Drop the file from that machine's page cache; None: it has no fincore to verify this."""
        output = self._commands.ask("drop", volume.volid)
        return (
            whole(output, f"bytes of {volume.volid} in the page cache") if output.strip() else None
        )


_POLL_SECONDS: Final = 0.3
"""Each poll starts a process on the measured machine."""
SBIN: Final = "/usr/sbin:/sbin"
"""Directories that are not on every user's PATH, but that jobs search too."""


@dataclass(frozen=True, slots=True)
class RemoteProbe:
    """`model.ports.HostProbe` of the other machine."""

    host: HostDisk
    machine: RemoteMachine

    def snapshot(self) -> HostSnapshot:
        """Return the current counters; unreadable ones are absent."""
        return self.machine.snapshot(str(self.host.volume_path or ""))


def site(settings: HostSettings, ssh: SshSettings, place: DriverContext) -> Site:
    """Return the site of the machine; nothing is sent yet."""
    commands = RemoteCommands(SshConnection(ssh))
    owner = instance_id(settings.state)
    paths = {name: str(path_of(entry)) for name, entry in settings.storages.items()}
    machine = RemoteMachine(commands, owner=owner, journal=place.journal, paths=paths)
    storages = {
        name: RemoteDirectory(context, place.journal, commands)
        for name, (_, context) in storage_contexts(settings, owner).items()
    }
    host = HostDisk(node=settings.node, storages=storages, machine=machine)
    return Site(
        node=settings.node,
        hypervisor=host,
        probe=RemoteProbe(host, machine),
        clock=place.clock,
        poll_seconds=_POLL_SECONDS,
        storages=StorageFunctions(
            networks={
                # Round trips would have to start on that machine: only the declared link is known.
                name: ServerLink(link_bits_per_second=link.link_bits_per_second)
                for name, link in networks_of(settings).items()
                if link.link_bits_per_second
            }
        ),
    )


def undo(ssh: SshSettings | None) -> dict[str, Undo]:
    """Return the functions that undo journal entries of another machine."""

    def undo_one(details: Mapping[str, str]) -> str:
        if ssh is None:
            raise VolumeError(
                f"{details['path']} is on {details['where']}, but the settings have no `ssh`",
                next_step="start once with such settings, or remove it there by hand",
            )
        connection = SshConnection(ssh)
        try:
            return undo_left(RemoteCommands(connection), details)
        finally:
            connection.close()

    return {KIND: undo_one}


def wear(settings: HostSettings, ssh: SshSettings) -> dict[str, Wear | str]:
    """Return storage -> wear of the drives below its path, or why it is unknown."""
    connection = SshConnection(ssh)
    try:
        commands = RemoteCommands(connection)
        return {
            name: wear_at(commands, str(path_of(storage_settings)))
            for name, storage_settings in settings.storages.items()
        }
    except PvebenchError as error:
        return dict.fromkeys(settings.storages, error.happened)
    finally:
        connection.close()


def wear_at(commands: RemoteCommands, path: str) -> Wear | str:
    """Return the wear of the drives below a path, or why it is unknown. Raises as `ask`."""
    try:
        _, devices = parse_device(commands.ask("device", path), path)
        numbers = [f"{os.major(device)}:{os.minor(device)}" for device in devices]
        output = commands.ask("wear", *numbers)
    except Refused as error:
        if error.code != NOT_FOUND:
            return error.happened
        return f"{NOT_INSTALLED} on {commands.where}"
    found = most_worn(output.split(b"\0")[:-1])
    return found if isinstance(found, Wear) else f"{found} on {commands.where}"


def check(settings: HostSettings, ssh: SshSettings, cases: Sequence[Case]) -> Iterator[Finding]:
    """Yield the checks of the machine. Changes nothing."""
    connection = SshConnection(ssh)
    try:
        reached = attempt("ssh", partial(_system, connection))
        yield reached
        if reached[1]:
            yield from _checks(settings, RemoteCommands(connection), cases)
    finally:
        connection.close()


def _system(connection: SshConnection) -> str:
    output = connection.ask(["uname", "-srm"]).stdout.decode("utf-8", "replace").strip()
    return f"{connection.settings.where}: {output[:200]}"


def _checks(
    settings: HostSettings, commands: RemoteCommands, cases: Sequence[Case]
) -> Iterator[Finding]:
    programs = {TOOLS[case.workload.tool].program for case in cases} - {""}
    for name in sorted(programs | {"fio", "setsid"}):
        yield attempt(name, partial(_program, commands, name))
    yield "fincore", True, _fincore(commands)
    kinds = {name: storage.holds for name, storage in local_storages(settings, None).items()}
    needs = SpaceNeed(kinds).add(*cases).total()
    for name, entry in settings.storages.items():
        space = partial(_space, commands, name, str(path_of(entry)), needs.get(name, 0))
        yield attempt(f"storage {name}", space)
        for text in flushes_ignored(commands, {name: str(path_of(entry))}).values():
            yield f"flushes on {name}", None, f"{text}; a power loss loses flushed writes"


def _program(commands: RemoteCommands, name: str) -> str:
    script = f'PATH=$PATH:{SBIN}; command -v "$1" && {{ "$1" --version 2>&1 | head -n 1; }}'
    done = commands.shell.ask(["sh", "-c", script, "sh", name])
    if done.exit_code:
        package = PROGRAMS.get(name, name)
        raise ToolsMissing(
            f"{name} is not installed on {commands.where}",
            cause="it is neither on that user's PATH nor in Debian's directories of programs",
            next_step=f"run `apt-get install {package}` there",
        )
    return " ".join(done.stdout.decode("utf-8", "replace").split())[:200]


def _fincore(commands: RemoteCommands) -> str:
    if commands.shell.ask(["sh", "-c", "command -v fincore"]).exit_code:
        return "not installed: empty page caches cannot be verified (package util-linux-extra)"
    return "verifies before each run that the page cache has no data of the volume"


def _space(commands: RemoteCommands, name: str, path: str, need: int) -> str:
    script = 'test -d "$1" && test -w "$1" && df -B1 --output=avail -- "$1" | tail -n 1'
    done = commands.shell.ask(["sh", "-c", script, "sh", path])
    free = whole_number(done.stdout.strip())
    if done.exit_code or free is None:
        raise VolumeError(
            f"{path} on {commands.where} is not a writable directory",
            next_step=f"run there `install -d -o {commands.where.partition('@')[0]} -m 700 {path}`",
        )
    space = Space(free=free, where=f"in {path} on {commands.where}")
    space.require(name, need)
    return f"{show_bytes(need)} needed, {space.text}"


def flushes_ignored(commands: RemoteCommands, paths: Mapping[str, str]) -> dict[str, str]:
    """Return a fact for each storage on a mount whose options ignore flushes. Raises as `ask`.

    Args:
        paths: storage -> its directory there; links to other file systems are not followed.
    """
    answer = Fetched.read(commands.ask("files", str(MOUNTINFO))).files.get(str(MOUNTINFO), b"")
    mounted = {mount.point: mount for mount in mounts(os.fsdecode(answer))}
    facts = {}
    for name, path in paths.items():
        points = map(str, (PurePosixPath(path), *PurePosixPath(path).parents))
        mount = next((mounted[point] for point in points if point in mounted), None)
        if mount is not None and (option := NO_BARRIER.search(mount.options)):
            text = f"ignored by mount option {option[1]} of {one_line(mount.point)}"
            facts[storage_fact(name, "flushes")] = text
    return facts


# --- The machine

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
        paths: storage -> its directory there.
    """

    def __init__(
        self, commands: RemoteCommands, *, owner: str, journal: Journal, paths: Mapping[str, str]
    ) -> None:
        base = f"{_TEMPORARY}/{MARK}{owner}-{secrets.token_hex(8)}"
        self.work = f"{base}/work"
        self.tools = RemoteTools(commands, base, journal)
        self._commands = commands
        self._journal = journal
        self._paths = paths
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
            facts = host_facts(self._fetch(*_FACTS)) | flushes_ignored(self._commands, self._paths)
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
