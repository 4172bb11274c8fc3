"""A machine that is reached by ssh, as the place where its own rows are measured.

What is done there is in `rows.sh`. A reply that is lost is asked for: a tool is started but once,
goes on without us, and is polled again when the machine answers.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from pvebench.drivers.host.host_disk import VolumeFile
from pvebench.drivers.linux.block_devices import BELOW, parse_devices
from pvebench.drivers.linux.procfs import Fetched, counters_of, files_of, host_facts, read_snapshot
from pvebench.drivers.ssh.connection import Shell
from pvebench.drivers.storages.contract import MARK
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    HypervisorGone,
    OutcomeUnknown,
    OutputUnreadable,
    ServerGone,
    SwitchFailed,
    ToolFailed,
    VolumeError,
    WorkloadError,
)
from pvebench.model.disk import DEVICE_OPTIONS, Disk
from pvebench.model.ports import Completed, HostSnapshot, Journal
from pvebench.model.units import MIB
from pvebench.model.volume import BlockCounters

KIND: Final = "ssh-left"
"""Kind of the journal entries made here: a marked path of another machine."""
ROWS: Final = BELOW + files("pvebench.drivers.host").joinpath("rows.sh").read_text("utf-8")
_REFUSED: Final = 96
_NOT_FOUND: Final = 127
_SAID_BYTES: Final = MIB
_DIGITS: Final = 18
"""Of a number: more than any disk has bytes."""
_SILENT_SECONDS: Final = 300.0
"""How long a machine may be away before a tool on it is given up."""
_TEMPORARY: Final = "/tmp"  # noqa: S108 # of another machine; what is made there has a random name
_FACTS: Final = (
    "/proc/sys/kernel/osrelease",
    "/proc/cpuinfo",
    "/proc/stat",
    "/etc/os-release",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
)


class Rows:
    """The verbs of `rows.sh` on one machine."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        """What runs any program."""
        self.where = shell.where

    def do(self, verb: str, *words: str, stdin: bytes = b"") -> bytes:
        """Do something that is not to be done twice. Raises VolumeError, and as `SshConnection`."""
        return self._checked(self.shell.run(_command(verb, words), stdin=stdin), verb)

    def ask(self, verb: str, *words: str, stdin: bytes = b"") -> bytes:
        """Do something that can be done again when its answer is lost. Raises as `do`."""
        return self._checked(self.shell.ask(_command(verb, words), stdin=stdin), verb)

    def _checked(self, done: Completed, verb: str) -> bytes:
        if done.exit_code:
            said = done.stderr.decode("utf-8", "replace").strip()
            last = said.splitlines()[-1] if said else f"status {done.exit_code}"
            raise Refused(f"{self.where} did not {verb}: {last}", code=done.exit_code, said=said)
        return done.stdout


class Refused(VolumeError):
    """A verb ended with an error; what it was to change is as it was."""

    def __init__(self, happened: str, *, code: int, said: str) -> None:
        super().__init__(
            happened,
            cause="a missing right or program there, or somebody changed what pvebench made",
            next_step="`pvebench check` tells what it has",
            evidence=said,
        )
        self.code = code


def _command(verb: str, words: tuple[str, ...]) -> list[str]:
    return ["sh", "-c", ROWS, "pvebench", verb, *words]


@dataclass(slots=True)
class _Started:
    program: str
    job: str
    heard: float
    """When the machine last answered, in seconds."""


class RemoteTools:
    """`model.ports.Guest` on another machine. Owned by one worker thread.

    Args:
        base: marked directory that everything of ours lies in; made when it is first needed.
        journal: None: what it lies in goes as a whole, and is journalled itself.
    """

    def __init__(self, rows: Rows, base: str, journal: Journal | None) -> None:
        self._rows = rows
        self._base = base
        self._journal = journal
        self._entry: int | None = None
        self._made = False
        self._running: dict[int, _Started] = {}
        self._done: dict[str, str] = {}
        """Directory of a tool that is not needed any more -> the verb that removes it."""

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        self._make_base()
        try:
            done = self._rows.shell.run(argv, stdin=stdin, timeout=timeout)
        except OutcomeUnknown as error:
            raise GuestTimeout(f"{argv[0]}: {error.reason}") from error
        if done.exit_code == _NOT_FOUND:
            raise self._cannot_start(argv[0])
        return done

    def _cannot_start(self, program: str) -> ToolFailed:
        return ToolFailed(
            f"{program} cannot be started on {self._rows.where}",
            cause="it is not installed there",
            next_step=f"install it there (Debian: the package of {Path(program).name})",
        )

    def start(self, argv: list[str]) -> int:
        self._make_base()
        self._tidy()
        job = f"{self._base}/{MARK}{secrets.token_hex(8)}"
        try:
            pid = self._start(job, argv)
        except DriverError:
            self._done[job] = "void"
            raise
        self._running[pid] = _Started(argv[0], job, time.monotonic())
        return pid

    def _start(self, job: str, argv: list[str]) -> int:
        try:
            return whole(self._rows.do("start", job, *argv), f"process of {argv[0]}")
        except OutcomeUnknown as error:
            # Never the same again: what is there tells, and what is not there cannot come.
            said = self._rows.ask("recall", job)
            if said.strip() != b"never":
                return whole(said, f"process of {argv[0]}")
            raise ServerGone(f"{argv[0]} was not started: {error.reason}") from error
        except Refused as error:
            self._made = False
            raise HypervisorGone(error.reason, cause=error.cause) from error

    def poll(self, pid: int) -> Completed | None:
        started = self._running[pid]
        try:
            said = self._rows.ask("poll", started.job, str(_SAID_BYTES))
        except (ServerGone, OutcomeUnknown):
            # The tool does not need us: what became of it is asked when the machine is back.
            if time.monotonic() - started.heard < _SILENT_SECONDS:
                return None
            raise
        started.heard = time.monotonic()
        if said.strip() == b"running":
            return None
        del self._running[pid]
        self._done[started.job] = "end"
        return self._ended(started.program, said)

    def _ended(self, program: str, said: bytes) -> Completed:
        code, size, rest = (*said.split(b"\n", 2), b"", b"")[:3]
        if code == b"gone":
            raise HypervisorGone(
                f"{program} on {self._rows.where} is gone without a word",
                cause="somebody ended it, memory ran out, or the machine was started anew",
            )
        if code == b"%d" % _NOT_FOUND:
            raise self._cannot_start(program)
        cut = whole(size, f"bytes that {program} said")
        return Completed(whole(code, f"how {program} ended"), rest[:cut], rest[cut:])

    def read_file(self, path: str) -> bytes:
        done = self._rows.shell.ask(["cat", "--", path], timeout=120.0)
        if done.exit_code:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise OutputUnreadable(f"{path} cannot be read on {self._rows.where}: {said}")
        return done.stdout

    def write_file(self, path: str, content: bytes) -> None:
        self._rows.ask("write", path, stdin=content)

    def close(self) -> None:
        """End whatever still runs. Raises ServerGone; it is tried again before the next start."""
        self._done |= {started.job: "void" for started in self._running.values()}
        self._running.clear()
        self._tidy()

    def _tidy(self) -> None:
        for job, verb in list(self._done.items()):
            self._rows.ask(verb, job)
            del self._done[job]

    def _make_base(self) -> None:
        if self._entry is None and self._journal is not None:
            self._entry = self._journal.open(KIND, left(self._rows, self._base))
        if not self._made:
            self._rows.ask("directory", self._base)
            self._made = True

    def leave(self) -> None:
        """End everything, and remove all that was made here."""
        if self._entry is not None and self._journal is not None:
            self._rows.ask("end", self._base)
            self._journal.close(self._entry)
        self._entry, self._made = None, False
        self._done.clear()


def left(rows: Rows, path: str) -> dict[str, str]:
    """Return the details of a journal entry of KIND."""
    return {"where": rows.where, "path": path}


def undo_left(rows: Rows, details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it. Raises DriverError."""
    if details["where"] != rows.where:
        raise VolumeError(
            f"{details['path']} is on {details['where']}, and the settings tell of {rows.where}",
            next_step=f"start once with `ssh` of {details['where']}, or remove it there by hand",
        )
    rows.ask("end", details["path"])
    return f"removed {details['path']} on {rows.where}"


def whole(said: bytes, what: str) -> int:
    """Return the number that a machine told. Raises OutputUnreadable; it says `what` it is of."""
    text = said.strip()
    if not (text.isdigit() and len(text) <= _DIGITS):
        raise OutputUnreadable(
            f"{text[:60]!r} is no number: {what}",
            cause="the shell there says something of its own, or a program is another one",
            next_step="log in as that user with a command: ssh … true says nothing if all is well",
        )
    return int(text)


class RemoteMachine:
    """`host_machine.HostMachine` by ssh. Owned by one worker thread.

    Args:
        owner: the instance's id.
    """

    def __init__(self, rows: Rows, *, owner: str, journal: Journal) -> None:
        base = f"{_TEMPORARY}/{MARK}{owner}-{secrets.token_hex(8)}"
        self.work = f"{base}/work"
        self.tools = RemoteTools(rows, base, journal)
        self._rows = rows
        self._journal = journal
        self._devices: dict[str, tuple[int, ...]] = {}
        self._scratch: tuple[str, int] | None = None

    def find(self, path: str) -> VolumeFile:
        found, self._devices[path] = parse_device(self._rows.ask("device", path), path)
        return found

    def counters(self, path: str) -> BlockCounters | None:
        if path not in self._devices:
            self.find(path)
        devices = self._devices[path]
        try:
            return counters_of(self._fetch(*files_of(devices)), devices)
        except (ValueError, IndexError) as error:
            raise OutputUnreadable(f"{self._rows.where} has no counters of {path}") from error

    def snapshot(self, path: str) -> HostSnapshot:
        """Return the machine's counters now; what cannot be read is absent."""
        devices = self._devices.get(path, ())
        asked = time.monotonic()
        try:
            found = self._fetch("/proc/stat", *files_of(devices))
            at = (asked + time.monotonic()) / 2  # they are of some moment in between
            return read_snapshot(found, pid=None, devices=devices, at=at)
        except (DriverError, WorkloadError, OSError, ValueError, IndexError):
            return HostSnapshot(monotonic=time.monotonic(), cpu_seconds={})

    def _fetch(self, *paths: str) -> Fetched:
        return Fetched.read(self._rows.ask("files", *paths))

    def tune(self, path: str, disk: Disk) -> dict[str, str]:
        """Change nothing. Raises SwitchFailed if the disk asks for it."""
        wanted = [name for name in DEVICE_OPTIONS if getattr(disk, name) is not None]
        if wanted:
            raise SwitchFailed(
                f"{', '.join(wanted)} of a disk on {self._rows.where} cannot be set by ssh",
                next_step="leave them out, or run pvebench on that machine",
            )
        return {}

    def untune(self) -> None:
        """Nothing was tuned."""

    def make_scratch(self, volume: str) -> str:
        path = f"{volume}-scratch"
        self._scratch = (path, self._journal.open(KIND, left(self._rows, path)))
        self._rows.ask("end", path)  # ours by our id in its name, left by a crash
        self._rows.ask("directory", path)
        return path

    def remove_scratch(self) -> None:
        if self._scratch is not None:
            path, entry = self._scratch
            self._rows.ask("end", path)
            self._journal.close(entry)
            self._scratch = None

    def facts(self) -> dict[str, str]:
        """Return nothing while the machine does not answer."""
        try:
            found = host_facts(self._fetch(*_FACTS))
            return found | {"fio": self.version("fio")}
        except (DriverError, WorkloadError, OSError, ValueError, IndexError):
            return {}

    def version(self, program: str) -> str:
        """Return a program's version as it says it; empty if it is not there."""
        done = self._rows.shell.ask([program, "--version"])
        said = done.stdout.decode("utf-8", "replace").strip()
        return "" if done.exit_code else said.removeprefix(f"{program}-")

    def close(self) -> None:
        self.tools.leave()
        self._rows.shell.close()


def parse_device(said: bytes, path: str) -> tuple[VolumeFile, tuple[int, ...]]:
    """Return what is at a path, and the numbers of the devices that it is or lies on.

    Args:
        said: by `tell_path` of `below.sh`.

    Raises:
        OutputUnreadable: it does not say that.
    """
    text = said.decode("utf-8", "replace").strip()
    fields = _DEVICE.fullmatch(text)
    of_btrfs = parse_devices(fields["members"] or "") if fields else None
    if fields is None or of_btrfs is None:
        raise OutputUnreadable(
            f"the machine does not tell what {path} is: {text[:99]!r}",
            cause="the shell there says something of its own",
        )
    is_device = fields["what"] == "block special file"
    own = os.makedev(int(fields["major"], 16), int(fields["minor"], 16))
    found = VolumeFile(size_bytes=int(fields["size"]), is_device=is_device)
    return found, (own,) if is_device else of_btrfs or (int(fields["below"]),)


_DEVICE: Final = re.compile(
    r"(?P<what>[a-z ]+)\|(?P<major>[0-9a-f]{1,3})\|(?P<minor>[0-9a-f]{1,5})"
    r"\|(?P<below>[0-9]{1,18})\|(?P<size>[0-9]{1,18})(\|(?P<members>[0-9:,]{0,999}))?"
)
