"""Execution of programs on this machine, as `model.ports.Guest` without a guest."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pvebench.errors import GuestTimeout, OutputUnreadable, StorageHangs, ToolFailed, VolumeError
from pvebench.model.guest import Completed, Guest
from pvebench.model.units import MIB, show_bytes

MAX_BYTES: Final = 64 * MIB
"""Maximum of a program's output; the logs of a long job are the largest."""
MAX_TEXT_BYTES: Final = 4 * MIB
"""Maximum of the output of a program that reports or changes something, such as `ceph status`."""
END_SECONDS: Final = 30.0
"""Time limit for the end of a killed program. The kernel completes its I/O first."""
_CHECK_SECONDS: Final = 0.1
"""Interval of the checks of a short program's output."""


def tool_version(program: str) -> str:
    """Return a program's version without its name; empty: unknown, such as not installed."""
    try:
        done = run_program([program, "--version"])
    except (OSError, VolumeError):
        return ""
    return done.stdout.strip().removeprefix(f"{program}-").removeprefix(f"{program} ")


def run_program(
    command: Sequence[str], *, seconds: float = math.inf
) -> subprocess.CompletedProcess[str]:
    """Run a program that reports or changes something; return its exit status and its output.

    Raises:
        OSError: it cannot be started.
        VolumeError: its output is too large.
        StorageHangs: it did not end in time, and does not end after SIGKILL.
        subprocess.TimeoutExpired: it did not end in time.
    """
    try:
        started = _launch([*command], stdin=subprocess.DEVNULL, most=MAX_TEXT_BYTES)
        done = started.wait(command[0], None, seconds)
    except OutputUnreadable as error:
        raise VolumeError(error.happened, cause=error.cause, next_step=error.next_step) from error
    output, errors = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
    return subprocess.CompletedProcess([*command], done.exit_code, output, errors)


@dataclass(frozen=True, slots=True)
class _Started:
    """A running program. Its output goes to files: they never block it, pipes do."""

    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    most: int

    def wait(self, program: str, stdin: bytes | None, seconds: float) -> Completed:
        """Return the result; end the program if it exceeds a limit."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.process.communicate(stdin, timeout=min(_CHECK_SECONDS, seconds))
            except subprocess.TimeoutExpired:
                stdin = None
                self.check_size(program)
                if time.monotonic() >= deadline:
                    self.end(program)
                    raise
            else:
                return self.completed(program)

    def check_size(self, program: str) -> None:
        """End the program if its output is too large: it may run in a container of others."""
        if max(os.fstat(file.fileno()).st_size for file in (self.stdout, self.stderr)) > self.most:
            self.end(program)
            raise OutputUnreadable(
                f"output of {program} exceeds {show_bytes(self.most)}",
                cause="it failed or was replaced",
                next_step="run it by hand",
            )

    def completed(self, program: str) -> Completed:
        """Return the result of an ended program."""
        self.check_size(program)
        return Completed(self.process.returncode, _content(self.stdout), _content(self.stderr))

    def end(self, program: str) -> None:
        """Kill the program, with its children if it has a session of its own.

        Raises StorageHangs: it is still there after `END_SECONDS`.
        """
        if self.process.returncode is None:  # otherwise its ID may be reused
            if os.getsid(self.process.pid) == self.process.pid:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise StorageHangs(
                    f"{program} (process {self.process.pid}) does not end after SIGKILL"
                ) from error
        for file in (self.process.stdin, self.stdout, self.stderr):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()


def _launch(
    argv: list[str], *, stdin: int, most: int | None = None, own_session: bool = False
) -> _Started:
    stdout, stderr = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 # closed with it
    try:
        process = subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=own_session
        )
    except OSError:
        stdout.close()
        stderr.close()
        raise
    return _Started(process, stdout, stderr, most or MAX_BYTES)


class HostTools(Guest):
    """`model.ports.Guest` without a guest. Owned by one worker thread."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, _Started]] = {}

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        with _start_errors(argv[0]):
            started = _launch(argv, stdin=subprocess.PIPE)
        try:
            return started.wait(argv[0], stdin, timeout)
        except subprocess.TimeoutExpired as error:
            raise GuestTimeout(f"{argv[0]} did not end within {timeout:.0f} s") from error

    def start(self, argv: list[str]) -> int:
        # The kernel ends the command when this process is killed.
        tied = [*(["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else ()), *argv]
        with _start_errors(tied[0]):
            started = _launch(tied, stdin=subprocess.DEVNULL, own_session=True)
        self._running[started.process.pid] = argv[0], started
        return started.process.pid

    def poll(self, pid: int) -> Completed | None:
        program, started = self._running[pid]
        code = started.process.poll()
        if code is None:
            started.check_size(program)
            return None
        del self._running[pid]
        return started.completed(program)

    def read_file(self, path: str) -> bytes:
        try:
            with Path(path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise OutputUnreadable(f"cannot read {path}: {error.strerror}") from error
        if len(content) > MAX_BYTES:
            raise OutputUnreadable(f"{path} exceeds {show_bytes(MAX_BYTES)}")
        return content

    def write_file(self, path: str, content: bytes) -> None:
        Path(path).write_bytes(content)

    def close(self) -> None:
        """End all running programs and their children. Raises StorageHangs: one stays."""
        with contextlib.ExitStack() as ends:  # the others are ended all the same
            for pid in self._running:
                ends.callback(self._end, pid)

    def _end(self, pid: int) -> None:
        program, started = self._running[pid]
        started.end(program)
        del self._running[pid]


def _content(file: IO[bytes]) -> bytes:
    with file:
        file.seek(0)
        return file.read()


@contextlib.contextmanager
def _start_errors(program: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ToolFailed(
            f"cannot start {program} on the host: {error.strerror}",
            cause="it is not installed",
            next_step=f"install it (Debian: the package of the same name as {Path(program).name})",
        ) from error
