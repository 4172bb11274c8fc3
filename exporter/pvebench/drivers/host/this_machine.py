"""This machine as the place where the host's own rows are measured."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pvebench.drivers.host.host_machine import Found
from pvebench.drivers.host.procfs import counters_of, host_facts
from pvebench.drivers.host.tuning import KIND as SETTING_KIND
from pvebench.drivers.host.tuning import Tuner, undo_setting
from pvebench.drivers.lxc.container import KIND as CONTAINER_KIND
from pvebench.drivers.lxc.container import ROOT_KIND, undo_container, undo_root
from pvebench.drivers.storages.below import devices_below
from pvebench.drivers.storages.contract import MARK, Undo
from pvebench.errors import GuestSilent, OutputUnreadable, ToolFailed
from pvebench.files import remove_tree
from pvebench.model.disk import Disk
from pvebench.model.ports import Completed, Journal
from pvebench.model.volume import BlockCounters

KIND: Final = "scratch"
"""Kind of the journal entries made here: a directory for tools' own files."""


class ThisMachine:
    """`host_machine.HostMachine` without a way to it. Owned by one worker thread.

    Args:
        runtime: directory for jobs and their output.
    """

    def __init__(self, runtime: Path, journal: Journal) -> None:
        self.tools = HostTools()
        self.work = str(runtime / "host-work")
        self._journal = journal
        self._tuner = Tuner(journal)
        self._scratch: tuple[Path, int] | None = None

    def find(self, path: str) -> Found:
        with Path(path).open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
        return Found(size_bytes=size, is_device=Path(path).is_block_device())

    def counters(self, path: str) -> BlockCounters | None:
        return counters_of(Path("/"), devices_below(Path(path)))

    def tune(self, path: str, disk: Disk) -> dict[str, str]:
        return self._tuner.apply(Path(path), disk)

    def untune(self) -> None:
        self._tuner.undo()

    def make_scratch(self, volume: str) -> str:
        path = Path(f"{volume}-scratch")
        remove_scratch(path)  # ours by our id in its name, left by a crash
        self._scratch = (path, self._journal.open(KIND, {"path": str(path)}))
        path.mkdir(parents=True)
        return str(path)

    def remove_scratch(self) -> None:
        if self._scratch is not None:
            path, entry = self._scratch
            remove_scratch(path)
            self._journal.close(entry)
            self._scratch = None

    def facts(self) -> dict[str, str]:
        return host_facts() | {"fio": tool_version("fio")}

    def close(self) -> None:
        self.tools.close()
        remove_tree(Path(self.work))


def remove_scratch(path: Path) -> None:
    """Remove a directory of tools' files, but only if its name carries our mark."""
    if path.name.startswith(MARK):
        if path.is_symlink():
            path.unlink()  # somebody's; what it leads to is not ours
        remove_tree(path)


def undo_scratch(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND."""
    remove_scratch(Path(details["path"]))
    return f"removed the tools' files in {details['path']}"


UNDO: Final[dict[str, Undo]] = {
    KIND: undo_scratch,
    SETTING_KIND: undo_setting,
    CONTAINER_KIND: undo_container,
    ROOT_KIND: undo_root,
}
"""Kind of a journal entry of this room -> what undoes it and says so."""


def tool_version(program: str) -> str:
    """Return a program's version as it says it, without its name; empty if it is not there."""
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


class HostTools:
    """`model.ports.Guest` without a guest. Owned by one worker thread."""

    def __init__(self) -> None:
        self._running: dict[int, _Started] = {}

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        try:
            done = subprocess.run(
                argv, input=stdin, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise GuestSilent(f"{argv[0]} does not end within {timeout:.0f} s") from error
        except OSError as error:
            raise _cannot_start(argv[0], error) from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def start(self, argv: list[str]) -> int:
        # Closed when the end is polled: files never block a tool that says much, pipes do.
        stdout, stderr = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 # see above
        try:
            process = subprocess.Popen(
                [*_ending_with_us(), *argv],
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
            raise OutputUnreadable(f"{path} cannot be read: {error.strerror}") from error

    def write_file(self, path: str, content: bytes) -> None:
        Path(path).write_bytes(content)

    def close(self) -> None:
        """End whatever still runs, with all that it started."""
        for pid, started in list(self._running.items()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            started.process.wait()
            started.stdout.close()
            started.stderr.close()
            del self._running[pid]


def _ending_with_us() -> list[str]:
    """Return what makes the kernel end a tool when this process is killed."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _content(file: IO[bytes]) -> bytes:
    with file:
        file.seek(0)
        return file.read()


def _cannot_start(program: str, error: OSError) -> ToolFailed:
    return ToolFailed(
        f"{program} cannot be started on the host: {error.strerror}",
        cause="it is not installed here",
        next_step=f"install it (Debian: the package of the same name as {Path(program).name})",
    )
