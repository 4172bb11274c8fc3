"""Interface to a benchmark guest: programs and files in it, through its agent."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Completed:
    """Result of a program in the guest."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class Question:
    """Command of pvebench's guest image; guests of other systems find the answer in their own way.

    Attributes:
        argv: the command, before its arguments.
    """

    name: str
    argv: tuple[str, ...]


class Guest(Protocol):
    """Benchmark guest, reached through its agent.

    Attributes:
        work: directory for jobs; empty: that of pvebench's guest image.
        mount: directory of the test disk's file system; empty: likewise.
        engine: fio's engine for asynchronous I/O; empty: that of Linux.
    """

    work: str = ""
    mount: str = ""
    engine: str = ""

    def ask(self, question: Question, *arguments: str, timeout: float = 60.0) -> Completed:
        """Run a command of pvebench's guest image, or its equivalent. Raises as `run`."""
        return self.run([*question.argv, *arguments], timeout=timeout)

    def facts(self) -> Mapping[str, str]:
        """Return facts of a system other than the guest image, for the environment."""
        return {}

    def cpu_counters(self) -> str:
        """Return CPU seconds of the whole guest where fio counts none; empty: not read.

        It is an object in JSON, with `user`, `system` and `at`, all in seconds.
        """
        return ""

    def commands(self) -> Mapping[str, bool]:
        """Return the agent's commands, and whether each is enabled; empty: unknown."""
        return {}

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a short program to its end.

        Raises:
            GuestTimeout: no answer within `timeout` seconds.
            ToolFailed: the program does not exist in the guest.
        """

    def start(self, argv: list[str]) -> int:
        """Start a long program detached; return its pid. Raises as `run`."""

    def poll(self, pid: int) -> Completed | None:
        """Return the result of `pid`, or None while it runs. Call it only once after the end."""

    def read_file(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            OutputUnreadable: it does not exist or cannot be read.
        """

    def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file."""

    def prepare_job(self, work: str, files: Mapping[str, bytes], results: Sequence[str]) -> None:
        """Empty directory `work` and write `files` (ASCII), for the programs started next.

        A guest with slow communication overrides this: it writes them with the next `start`, and
        gets the `results` that exist with the end of each program.
        """
        del results
        directory = shlex.quote(work)
        self.run(["/bin/sh", "-c", f"rm -rf {directory} && mkdir -p {directory}"])
        for path, content in files.items():
            self.write_file(path, content)

    def has_file(self, path: str) -> bool:
        """Return whether a file exists."""
        return self.run(["/bin/sh", "-c", f"test -f {shlex.quote(path)}"]).exit_code == 0
