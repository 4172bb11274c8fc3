"""The host itself as the place to measure: `model.ports.Hypervisor` and `Guest` without a VM.

The volume is the one that VMs get too: a file of ours in a directory, or the room between our
marks on a device (`pvebench storage claim`). So a host row and a guest row differ in nothing but
the virtualisation. Nothing else on the machine is touched; settings of the device below the
volume (`drivers.host.tuning`) are put back.
"""

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

from pvebench.drivers.host.procfs import device_counters, host_facts
from pvebench.drivers.host.tuning import KIND as SETTING_KIND
from pvebench.drivers.host.tuning import Tuner, undo_setting
from pvebench.drivers.storages.contract import MARK, Storage, Undo
from pvebench.errors import GuestSilent, OutputUnreadable, SwitchFailed, ToolFailed
from pvebench.model.disk import DEVICE_OPTIONS, Disk
from pvebench.model.environment import Environment
from pvebench.model.ports import Completed, Guest, Journal
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume

KIND: Final = "scratch"
"""Kind of the journal entries made here: a directory for tools' own files."""
_READ_BACK: Final = ("bus", *DEVICE_OPTIONS)


class HostDisk:
    """Measures on this machine. Owned by one worker thread.

    Args:
        runtime: directory for jobs and their output.
    """

    def __init__(
        self, *, node: str, storages: Mapping[str, Storage], runtime: Path, journal: Journal
    ) -> None:
        self._node = node
        self._storages = dict(storages)
        self._work = runtime / "host-work"
        self._journal = journal
        self._tools = HostTools()
        self._tuner = Tuner(journal)
        self._volumes: dict[str, Volume] = {}
        self._attached: Volume | None = None
        self._counted = BlockCounters(
            read_operations=0, write_operations=0, flush_operations=0, read_bytes=0, write_bytes=0
        )
        self._scratch: tuple[Path, int] | None = None

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the tools. Raises VolumeError if the volume in use is not what it was."""
        if self._attached is not None:
            self._storages[self._attached.storage].check(self._attached)
        return self._tools

    @property
    def volume_path(self) -> Path | None:
        """The file or device of the volume in use."""
        if self._attached is None:
            return None
        return Path(self._storages[self._attached.storage].opened(self._attached))

    @property
    def boot_seconds(self) -> float:
        return 0.0

    def power_off(self) -> None:
        self._tools.close()

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        known = self._volumes.get(scenario.volume)
        if known is not None and known.size_bytes == scenario.volume_bytes:
            return known, False
        storage = self._storages[scenario.storage]
        if known is not None:
            del self._volumes[scenario.volume]
            storage.remove(known)
        self._volumes[scenario.volume] = storage.create(scenario)
        return self._volumes[scenario.volume], True

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Open nothing, but look at what is there."""
        if not disk.on_host:
            raise SwitchFailed("the host has no VM to plug a disk into")
        self._storages[volume.storage].check(volume)
        path = Path(self._storages[volume.storage].opened(volume))
        with path.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END) - volume.offset_bytes
        # A device may be larger than the volume; beyond it nothing is touched.
        size = min(size, volume.size_bytes) if path.is_block_device() else size
        self.detach()
        tuned = self.tune(volume, disk)
        self._attached, self._counted = volume, device_counters(path)
        scratch = self._make_scratch(path) if path.is_file() else ""
        return Attachment(
            device=str(path),
            effective={"size_bytes": str(size), "bus": str(disk.bus), **tuned},
            unverified=tuple(set(Disk.__dataclass_fields__) - set(_READ_BACK)),
            raw=f"{path}: {size} bytes from {volume.offset_bytes}",
            offset_bytes=volume.offset_bytes,
            scratch=scratch,
            work=str(self._work),
        )

    def tune(self, volume: Volume, disk: Disk) -> dict[str, str]:
        """Give the device below `volume` the settings of `disk`; return them as read back.

        They are put back when the disk is detached. Raises SwitchFailed.
        """
        return self._tuner.apply(Path(self._storages[volume.storage].opened(volume)), disk)

    def _make_scratch(self, volume: Path) -> str:
        path = volume.with_name(f"{volume.name}-scratch")
        remove_scratch(path)  # ours by our id in its name, left by a crash
        self._scratch = (path, self._journal.open(KIND, {"path": str(path)}))
        path.mkdir(parents=True)
        return str(path)

    def detach(self) -> None:
        self._tools.close()
        self._tuner.undo()
        self._attached = None
        if self._scratch is not None:
            path, entry = self._scratch
            remove_scratch(path)
            self._journal.close(entry)
            self._scratch = None

    def drop_caches(self, volume: Volume) -> int | None:
        return self._storages[volume.storage].drop_caches(volume)

    def counters(self) -> BlockCounters:
        """Return the counters of the device below the volume, whoever uses it.

        They begin at 0 with each attachment, as QEMU's do: what the device moved before is none
        of this case's business.
        """
        path = self.volume_path
        if path is None:
            raise SwitchFailed("no volume is in use on the host")
        return device_counters(path).since(self._counted)

    def environment(self) -> Environment:
        facts = host_facts() | {"accel": "host", "fio": tool_version("fio")}
        return Environment(node=self._node, facts={k: v for k, v in facts.items() if v})

    def host_environment(self) -> Environment:
        return self.environment()

    def shutdown(self) -> None:
        self.detach()
        shutil.rmtree(self._work, ignore_errors=True)
        for volume in self._volumes.values():
            self._storages[volume.storage].remove(volume)
        self._volumes.clear()
        for storage in self._storages.values():
            storage.close()


def remove_scratch(path: Path) -> None:
    """Remove a directory of tools' files, but only if its name carries our mark."""
    if path.name.startswith(MARK):
        if path.is_symlink():
            path.unlink()  # somebody's; what it leads to is not ours
        shutil.rmtree(path, ignore_errors=True)


def undo_scratch(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND."""
    remove_scratch(Path(details["path"]))
    return f"removed the tools' files in {details['path']}"


UNDO: Final[dict[str, Undo]] = {KIND: undo_scratch, SETTING_KIND: undo_setting}
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
