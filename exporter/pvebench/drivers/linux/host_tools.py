"""Execution of programs on this machine, as `model.ports.Guest` without a guest."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pvebench.errors import GuestTimeout, OutputUnreadable, ToolFailed
from pvebench.model.ports import Completed, Guest


def tool_version(program: str) -> str:
    """Return a program's version without its name; empty: not installed."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip().removeprefix(f"{program}-").removeprefix(f"{program} ")


@dataclass(frozen=True, slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]


class HostTools(Guest):
    """`model.ports.Guest` without a guest. Owned by one worker thread."""

    def __init__(self) -> None:
        self._running: dict[int, _Started] = {}

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        try:
            done = subprocess.run(
                argv, input=stdin, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise GuestTimeout(f"{argv[0]} did not end within {timeout:.0f} s") from error
        except OSError as error:
            raise _cannot_start(argv[0], error) from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def start(self, argv: list[str]) -> int:
        # Closed in `poll`. Files never block a tool with much output, pipes do.
        stdout, stderr = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 # see above
        try:
            process = subprocess.Popen(
                [*_tied_to_parent(), *argv],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise _cannot_start(argv[0], error) from error
        self._running[process.pid] = _Started(process, stdout, stderr)
        return process.pid

    def poll(self, pid: int) -> Completed | None:
        started = self._running[pid]
        code = started.process.poll()
        if code is None:
            return None
        del self._running[pid]
        return Completed(code, _content(started.stdout), _content(started.stderr))

    def read_file(self, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise OutputUnreadable(f"cannot read {path}: {error.strerror}") from error

    def write_file(self, path: str, content: bytes) -> None:
        Path(path).write_bytes(content)

    def close(self) -> None:
        """End all running programs and their children."""
        for pid, started in list(self._running.items()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            started.process.wait()
            started.stdout.close()
            started.stderr.close()
            del self._running[pid]


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
