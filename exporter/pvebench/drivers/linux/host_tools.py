"""Execution of programs on this machine, as `model.ports.Guest` without a guest."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pvebench.errors import GuestTimeout, OutputUnreadable, ToolFailed
from pvebench.model.ports import Completed, Guest
from pvebench.model.units import MIB, show_bytes

MAX_BYTES: Final = 64 * MIB
"""Maximum of a program's output; the logs of a long job are the largest."""
_CHECK_SECONDS: Final = 0.1
"""Interval of the checks of a short program's output."""


def tool_version(program: str) -> str:
    """Return a program's version without its name; empty: not installed."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip().removeprefix(f"{program}-").removeprefix(f"{program} ")


@dataclass(frozen=True, slots=True)
class _Started:
    """A running program. Its output goes to files: they never block it, pipes do."""

    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def check_size(self, program: str) -> None:
        """End the program if its output is too large: it may run in a container of others."""
        if max(os.fstat(file.fileno()).st_size for file in (self.stdout, self.stderr)) > MAX_BYTES:
            self.end()
            raise OutputUnreadable(
                f"output of {program} exceeds {show_bytes(MAX_BYTES)}",
                cause="it failed or was replaced",
                next_step="run it by hand",
            )

    def completed(self, program: str) -> Completed:
        """Return the result of an ended program."""
        self.check_size(program)
        return Completed(self.process.returncode, _content(self.stdout), _content(self.stderr))

    def end(self) -> None:
        """Kill the program, with its children if it has a session of its own."""
        if self.process.returncode is None:  # otherwise its ID may be reused
            if os.getsid(self.process.pid) == self.process.pid:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
        for file in (self.process.stdin, self.stdout, self.stderr):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()


def _launch(argv: list[str], *, stdin: int, own_session: bool) -> _Started:
    stdout, stderr = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 # closed with it
    try:
        process = subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=own_session
        )
    except OSError as error:
        stdout.close()
        stderr.close()
        raise _cannot_start(argv[0], error) from error
    return _Started(process, stdout, stderr)


class HostTools(Guest):
    """`model.ports.Guest` without a guest. Owned by one worker thread."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, _Started]] = {}

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        started = _launch(argv, stdin=subprocess.PIPE, own_session=False)
        deadline = time.monotonic() + timeout
        rest: bytes | None = stdin
        while True:
            try:
                started.process.communicate(rest, timeout=min(_CHECK_SECONDS, timeout))
            except subprocess.TimeoutExpired as error:
                rest = None
                started.check_size(argv[0])
                if time.monotonic() >= deadline:
                    started.end()
                    message = f"{argv[0]} did not end within {timeout:.0f} s"
                    raise GuestTimeout(message) from error
            else:
                return started.completed(argv[0])

    def start(self, argv: list[str]) -> int:
        tied = [*_tied_to_parent(), *argv]
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
        """End all running programs and their children."""
        for _, started in self._running.values():
            started.end()
        self._running.clear()


def _tied_to_parent() -> list[str]:
    """Return the prefix of a command that the kernel ends when this process is killed."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _content(file: IO[bytes]) -> bytes:
    with file:
        file.seek(0)
        return file.read()


def _cannot_start(program: str, error: OSError) -> ToolFailed:
    return ToolFailed(
        f"cannot start {program} on the host: {error.strerror}",
        cause="it is not installed",
        next_step=f"install it (Debian: the package of the same name as {Path(program).name})",
    )
