"""Commands and tools on a machine over ssh, or in a container of a node.

`remote_commands.sh` has the commands that run there. After a lost reply the state is queried: a
tool is started only once, runs without the connection, and is polled again when the machine
answers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.block_devices import DEVICE_FUNCTIONS, whole
from pvebench.drivers.ssh.connection import Shell
from pvebench.drivers.storages.contract import MARK
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    HypervisorGone,
    OutcomeUnknown,
    OutputUnreadable,
    ServerGone,
    ToolFailed,
    VolumeError,
)
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import Journal
from pvebench.model.units import MIB

KIND: Final = "ssh-left"
"""Kind of the journal entries of marked paths on another machine."""
REMOTE_COMMANDS: Final = DEVICE_FUNCTIONS + files("pvebench_lab").joinpath(
    "remote_commands.sh"
).read_text("utf-8")
NOT_FOUND: Final = 127
_SAID_BYTES: Final = MIB
_SILENT_SECONDS: Final = 300.0
"""Time without an answer of a machine after which a tool on it fails."""


class RemoteCommands:
    """Commands of `remote_commands.sh` on one machine."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        """Runs any program there."""
        self.where = shell.where

    def do(self, verb: str, *words: str, stdin: bytes = b"") -> bytes:
        """Run a command that must not run twice. Raises VolumeError, and as `SshConnection`."""
        return self._checked(self.shell.run(_command(verb, words), stdin=stdin), verb)

    def ask(self, verb: str, *words: str, stdin: bytes = b"") -> bytes:
        """Run a command that may be repeated after a lost reply. Raises as `do`."""
        return self._checked(self.shell.ask(_command(verb, words), stdin=stdin), verb)

    def _checked(self, done: Completed, verb: str) -> bytes:
        if done.exit_code:
            output = done.stderr.decode("utf-8", "replace").strip()
            last = output.splitlines()[-1] if output else f"status {done.exit_code}"
            raise Refused(
                f"{verb} on {self.where} failed: {last}", code=done.exit_code, output=output
            )
        return done.stdout


class Refused(VolumeError):
    """Failed command of `remote_commands.sh`, which changed nothing."""

    def __init__(self, happened: str, *, code: int, output: str) -> None:
        super().__init__(
            happened,
            cause="missing permission or program there, or files were changed outside pvebench",
            next_step="run `pvebench check`, then inspect the files there",
            evidence=output,
        )
        self.code = code


def _command(verb: str, words: tuple[str, ...]) -> list[str]:
    return ["sh", "-c", REMOTE_COMMANDS, "pvebench", verb, *words]


@dataclass(slots=True)
class _Started:
    program: str
    job: str
    heard: float
    """Time of the machine's last answer, in seconds."""


class RemoteTools(Guest):
    """`model.ports.Guest` on another machine. Owned by one worker thread.

    Args:
        base: marked directory of all files; created when it is first needed.
        journal: None: the parent of `base` is in a journal and is removed as a whole.
    """

    def __init__(self, commands: RemoteCommands, base: str, journal: Journal | None) -> None:
        self._commands = commands
        self._base = base
        self._journal = journal
        self._entry: int | None = None
        self._base_exists = False
        self._running: dict[int, _Started] = {}
        self._done: dict[str, str] = {}
        """Directory of a tool that is no longer needed -> command that removes it."""

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        self._make_base()
        try:
            done = self._commands.shell.run(argv, stdin=stdin, timeout=timeout)
        except OutcomeUnknown as error:
            raise GuestTimeout(f"{argv[0]}: {error.reason}") from error
        if done.exit_code == NOT_FOUND:
            raise self._cannot_start(argv[0])
        return done

    def _cannot_start(self, program: str) -> ToolFailed:
        return ToolFailed(
            f"cannot start {program} on {self._commands.where}",
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
            return whole(self._commands.do("start", job, *argv), f"process of {argv[0]}")
        except OutcomeUnknown as error:
            # Never start it again: recall returns the process, or prevents a delayed start.
            output = self._commands.ask("recall", job)
            if output.strip() != b"never":
                return whole(output, f"process of {argv[0]}")
            raise ServerGone(f"{argv[0]} not started: {error.reason}") from error
        except Refused as error:
            self._base_exists = False
            raise HypervisorGone(error.reason, cause=error.cause) from error

    def poll(self, pid: int) -> Completed | None:
        started = self._running[pid]
        try:
            output = self._commands.ask("poll", started.job, str(_SAID_BYTES))
        except (ServerGone, OutcomeUnknown):
            # The tool runs without the connection: poll again when the machine is reachable.
            if time.monotonic() - started.heard < _SILENT_SECONDS:
                return None
            raise
        started.heard = time.monotonic()
        if output.strip() == b"running":
            return None
        del self._running[pid]
        self._done[started.job] = "end"
        return self._ended(started.program, output)

    def _ended(self, program: str, output: bytes) -> Completed:
        code, size, rest = (*output.split(b"\n", 2), b"", b"")[:3]
        if code == b"gone":
            raise HypervisorGone(
                f"{program} on {self._commands.where} disappeared without a result",
                cause="it was killed, memory ran out, or the machine was restarted",
            )
        if code == b"%d" % NOT_FOUND:
            raise self._cannot_start(program)
        cut = whole(size, f"output bytes of {program}")
        return Completed(whole(code, f"exit code of {program}"), rest[:cut], rest[cut:])

    def read_file(self, path: str) -> bytes:
        done = self._commands.shell.ask(["cat", "--", path], timeout=120.0)
        if done.exit_code:
            output = done.stderr.decode("utf-8", "replace").strip()
            raise OutputUnreadable(f"cannot read {path} on {self._commands.where}: {output}")
        return done.stdout

    def write_file(self, path: str, content: bytes) -> None:
        self._commands.ask("write", path, stdin=content)

    def close(self) -> None:
        """End running tools. Raises ServerGone; retried before the next start."""
        self._done |= {started.job: "void" for started in self._running.values()}
        self._running.clear()
        self._tidy()

    def _tidy(self) -> None:
        for job, verb in list(self._done.items()):
            self._commands.ask(verb, job)
            del self._done[job]

    def _make_base(self) -> None:
        if self._entry is None and self._journal is not None:
            self._entry = self._journal.open(KIND, left(self._commands, self._base))
        if not self._base_exists:
            self._commands.ask("directory", self._base)
            self._base_exists = True

    def leave(self) -> None:
        """End everything, and remove all files."""
        if self._entry is not None and self._journal is not None:
            self._commands.ask("end", self._base)
            self._journal.close(self._entry)
        self._entry, self._base_exists = None, False
        self._done.clear()


def left(commands: RemoteCommands, path: str) -> dict[str, str]:
    """Return the details of a journal entry of KIND."""
    return {"where": commands.where, "path": path}


def undo_left(commands: RemoteCommands, details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it. Raises DriverError."""
    if details["where"] != commands.where:
        raise VolumeError(
            f"{details['path']} is on {details['where']}, but the settings are for "
            f"{commands.where}",
            next_step=f"start once with `ssh` of {details['where']}, or remove it there by hand",
        )
    commands.ask("end", details["path"])
    return f"removed {details['path']} on {commands.where}"
