"""A machine that is reached by ssh put together as a site: its own rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pvebench.drivers.driver import Finding, Workplace, attempt, volume_bytes
from pvebench.drivers.host import HostSettings
from pvebench.drivers.host.host_disk import HostDisk
from pvebench.drivers.host.remote_machine import KIND, RemoteMachine, Rows, left, undo_left, whole
from pvebench.drivers.ssh import SshSettings
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.drivers.storages.contract import MARK, Node, StorageOptions, Undo, instance_id
from pvebench.drivers.storages.directory import RESERVE_BYTES
from pvebench.drivers.storages.network import ServerLink
from pvebench.drivers.storages.settings import networks_of, storage_options
from pvebench.errors import NoSpace, SwitchFailed, ToolsMissing, VolumeError
from pvebench.guest.recipe import PROGRAMS
from pvebench.model.disk import Disk
from pvebench.model.ports import HostSnapshot, Journal, Site
from pvebench.model.scenario import Scenario
from pvebench.model.units import show_bytes
from pvebench.model.volume import Identity, Volume
from pvebench.model.workload import Case
from pvebench.workloads import TOOLS

# --- Test volumes on another machine, reached by ssh: files in a directory, with our mark.

_FILE: Final = re.compile(
    r"regular (?:empty )?file\|(?P<which>[0-9]{1,20}\|[0-9]{1,20})\|[0-9]{1,20}"
)


class RemoteDirectory:
    """A storage of kind `dir` on another machine."""

    def __init__(self, options: StorageOptions, journal: Journal, rows: Rows) -> None:
        self._name = options.name
        self._directory = options.path
        self._prefix = f"{options.path}/{MARK}{options.owner}-"
        self._journal = journal
        self._rows = rows
        self._entries: dict[str, int] = {}
        self._made: dict[str, str] = {}
        """Path -> which file it is."""

    def create(self, scenario: Scenario) -> Volume:
        """Return a new, unfilled volume."""
        path, size = f"{self._prefix}{scenario.volume}", scenario.volume_bytes
        entry = self._journal.open(KIND, left(self._rows, path))
        self._entries.setdefault(path, entry)
        if self._entries[path] != entry:
            self._journal.close(entry)
        self._rows.ask("end", path)  # ours by our id in its name, left by a crash
        self._check_space(size)
        self._made[path] = self._known(self._rows.do("make", path, str(size)), path)
        return Volume(
            storage=self._name, volid=path, format=str(scenario.disk.format), size_bytes=size
        )

    def _check_space(self, size: int) -> None:
        """Raise NoSpace if the file system could not hold `size` bytes more."""
        free = whole(self._rows.ask("space", self._directory), f"bytes free in {self._directory}")
        if free < size + RESERVE_BYTES:
            raise NoSpace(
                f"storage {self._name}: {show_bytes(free)} free in {self._directory} on "
                f"{self._rows.where}, a volume of {show_bytes(size)} does not fit "
                f"({show_bytes(RESERVE_BYTES)} stay free)",
                next_step="free space, or make volume.size or the scale of the pack smaller",
            )

    def _known(self, said: bytes, path: str) -> str:
        found = _FILE.fullmatch(said.decode("utf-8", "replace").strip())
        if found is None:
            raise _changed(path, f"is no regular file now ({said[:60]!r})")
        return found["which"]

    def remove(self, volume: Volume) -> None:
        self._rows.ask("end", volume.volid)
        self._made.pop(volume.volid, None)
        entry = self._entries.pop(volume.volid, None)
        if entry is not None:
            self._journal.close(entry)

    def check(self, volume: Volume) -> None:
        path = volume.volid
        if self._known(self._rows.ask("known", path), path) != self._made[path]:
            raise _changed(path, "is another file than the one that was made")

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Nothing of this machine can open it. Raises SwitchFailed."""
        raise SwitchFailed(f"{volume.volid} is on {self._rows.where}: no VM here can have it")

    def drop_caches(self, volume: Volume) -> int | None:
        """Drop that machine's page cache of the file; None where it has no fincore to look."""
        said = self._rows.ask("drop", volume.volid)
        return whole(said, f"bytes of {volume.volid} in the page cache") if said.strip() else None

    def opened(self, volume: Volume) -> str:
        return volume.volid

    def close(self) -> None:
        """Nothing is held."""


def _changed(path: str, what: str) -> VolumeError:
    return VolumeError(
        f"volume {path} {what}; it is left alone",
        cause="somebody removed, replaced or moved it while pvebench had it",
        next_step="look at it, remove it if nobody needs it, and start pvebench anew",
    )


_POLL_SECONDS: Final = 0.3
"""Each question is a process on the machine that is measured."""
_SBIN: Final = "/usr/sbin:/sbin"
"""Not on everybody's PATH, but jobs look there too."""


@dataclass(frozen=True, slots=True)
class RemoteProbe:
    """`model.ports.HostProbe` of that machine."""

    host: HostDisk
    machine: RemoteMachine

    def snapshot(self) -> HostSnapshot:
        """Return the counters now; what cannot be read is absent."""
        return self.machine.snapshot(str(self.host.volume_path or ""))


def site(settings: HostSettings, ssh: SshSettings, place: Workplace) -> Site:
    """Return the machine as a place to measure; nothing is sent yet."""
    rows = Rows(SshConnection(ssh))
    machine = RemoteMachine(rows, owner=instance_id(settings.state), journal=place.journal)
    storages = {
        name: RemoteDirectory(options, place.journal, rows)
        for name, options in storage_options(settings).items()
    }
    host = HostDisk(node=settings.node, storages=storages, machine=machine)
    return Site(
        node=settings.node,
        hypervisor=host,
        probe=RemoteProbe(host, machine),
        clock=place.clock,
        poll_seconds=_POLL_SECONDS,
        networks={
            # A round trip would have to go from that machine: only what is declared is known.
            name: ServerLink(link_bits_per_second=link.link_bits_per_second)
            for name, link in networks_of(settings).items()
            if link.link_bits_per_second
        },
    )


def unidentified(settings: HostSettings) -> dict[str, Callable[[], Identity]]:
    """Return that no storage there is identified: not yet."""
    return dict.fromkeys(settings.storages, dict)


def undo(ssh: SshSettings | None) -> dict[str, Undo]:
    """Return what undoes the journal entries about another machine."""

    def at_once(details: Mapping[str, str]) -> str:
        if ssh is None:
            raise VolumeError(
                f"{details['path']} is on {details['where']}, and the settings tell of no `ssh`",
                next_step="start once with settings that do, or remove it there by hand",
            )
        connection = SshConnection(ssh)
        try:
            return undo_left(Rows(connection), details)
        finally:
            connection.close()

    return {KIND: at_once}


def check(settings: HostSettings, ssh: SshSettings, cases: Sequence[Case]) -> Iterator[Finding]:
    """Yield what the machine offers. Changes nothing."""
    connection = SshConnection(ssh)
    try:
        reached = attempt("ssh", partial(_who, connection))
        yield reached
        if reached[1]:
            yield from _found(settings, Rows(connection), cases)
    finally:
        connection.close()


def _who(connection: SshConnection) -> str:
    said = connection.ask(["uname", "-srm"]).stdout.decode("utf-8", "replace").strip()
    return f"{connection.settings.where}: {said[:200]}"


def _found(settings: HostSettings, rows: Rows, cases: Sequence[Case]) -> Iterator[Finding]:
    wanted = {TOOLS[case.workload.tool].program for case in cases} - {""}
    for name in sorted(wanted | {"fio", "setsid"}):
        yield attempt(name, partial(_program, rows, name))
    yield "fincore", True, _fincore(rows)
    needs = volume_bytes(cases)
    for name, entry in settings.storages.items():
        need = needs.get(name, 0) + RESERVE_BYTES
        yield attempt(f"storage {name}", partial(_room, rows, str(entry.path), need))


def _program(rows: Rows, name: str) -> str:
    script = f'PATH=$PATH:{_SBIN}; command -v "$1" && {{ "$1" --version 2>&1 | head -n 1; }}'
    done = rows.shell.ask(["sh", "-c", script, "sh", name])
    if done.exit_code:
        package = PROGRAMS.get(name, name)
        raise ToolsMissing(
            f"not installed on {rows.where}: apt-get install {package}",
            cause="it is neither on that user's PATH nor where Debian keeps such programs",
        )
    return " ".join(done.stdout.decode("utf-8", "replace").split())[:200]


def _fincore(rows: Rows) -> str:
    if rows.shell.ask(["sh", "-c", "command -v fincore"]).exit_code:
        return "not there: that the page cache is empty cannot be seen (package util-linux-extra)"
    return "shows that the page cache of the volume is empty before each run"


def _room(rows: Rows, path: str, need: int) -> str:
    script = 'test -d "$1" && test -w "$1" && df -B1 --output=avail -- "$1" | tail -n 1'
    done = rows.shell.ask(["sh", "-c", script, "sh", path])
    free = done.stdout.strip()
    if done.exit_code or not free.isdigit():
        raise VolumeError(
            f"{path} on {rows.where} is no directory that this user can write",
            next_step=f"there: install -d -o {rows.where.partition('@')[0]} -m 700 {path}",
        )
    text = f"{show_bytes(int(free))} free in {path}, {show_bytes(need)} needed"
    if int(free) < need:
        raise VolumeError(text)
    return text
