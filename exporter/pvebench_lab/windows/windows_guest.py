"""Windows guest: disks and tools through QEMU's agent and PowerShell.

It answers the questions that pvebench has of its own guest image. The agent's client is that of the
driver: over the API of Proxmox VE, or over QEMU's virtio-serial port.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.clocks import attempts
from pvebench.drivers.vm_lifecycle import GuestSystem
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    OutcomeUnknown,
    OutputUnreadable,
    PvebenchError,
    SwitchFailed,
    ToolFailed,
)
from pvebench.model.guest import Completed, Guest, Question
from pvebench.model.ports import Clock
from pvebench.model.units import GIB, MIB, whole_number
from pvebench.workloads.fio_report import read_report
from pvebench_lab.windows import powershell
from pvebench_lab.windows.powershell import FIO, FIO_VERSION, REQUIREMENTS, Line

TASKKILL: Final = r"C:\Windows\System32\taskkill.exe"
"""Absolute: the agent's search for a program drops a backslash of its path."""
WORK: Final = "C:/pvebench"
LETTER: Final = "T"
DOCS: Final = "see docs/windows.md"
COMMANDS: Final = (
    *("guest-exec", "guest-exec-status"),
    *(f"guest-file-{name}" for name in ("open", "read", "write", "close")),
)
"""Commands of the agent that a guest needs."""
_LINE_SECONDS: Final = 60.0
_FILESYSTEM_SECONDS: Final = 120.0
_FIO_BYTES: Final = 32 * MIB
_PIECE_BYTES: Final = 45_000
"""Limit of a file that Proxmox VE writes into a guest."""
_FILESYSTEMS: Final = {"ntfs": "NTFS", "refs": "ReFS"}


class WindowsGuest(Guest):
    """`model.ports.Guest` on Windows. Owned by one worker thread.

    Args:
        client: the driver's client of the agent.
        fio: file of fio for an image without it; empty: none.
    """

    work = WORK
    mount = f"{LETTER}:"
    engine = "windowsaio"

    def __init__(self, client: Guest, clock: Clock, *, fio: str = "") -> None:
        self._client = client
        self._clock, self._fio_file = clock, fio
        self._number = -1
        self._made = False
        self._answers: Mapping[str, Callable[..., Completed]] = {
            "disk": self._disk,
            "filesystem": self._filesystem,
            "state": self._state,
            "kill": self._kill,
            "filled": self._filled,
        }

    def ask(self, question: Question, *arguments: str, timeout: float = _LINE_SECONDS) -> Completed:
        """As `Guest.ask`; what Windows cannot do ends with code 1."""
        del timeout
        reply = self._answers.get(question.name)
        return reply(*arguments) if reply else _failed(f"{question.name}: not possible on Windows")

    # --- programs and files

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a program; kill it if it does not end. Raises as `Guest.run`."""
        if stdin:
            return self._client.run(_located(argv), stdin=stdin, timeout=timeout)
        pid = self.start(argv)
        for _ in attempts(self._clock, seconds=timeout, pause=0.05, longest=0.5):
            if (done := self.poll(pid)) is not None:
                return done
        self._try_to_kill("/pid", str(pid))
        raise GuestTimeout(f"{argv[0]} did not end within {timeout:.0f} s in the guest")

    def start(self, argv: list[str]) -> int:
        located = _located(argv)
        try:
            return self._client.start(located)
        except ToolFailed as error:
            raise ToolFailed(
                f"cannot start {located[0]} in the guest: {error.happened}",
                cause="the program is missing from the image, or the agent may not start it",
                next_step=f"install it there; {DOCS}",
            ) from error
        except OutcomeUnknown:
            # It may run: two of them must never measure at the same time.
            self._try_to_kill("/im", located[0].rpartition("/")[2])
            raise

    def poll(self, pid: int) -> Completed | None:
        return self._client.poll(pid)

    def read_file(self, path: str) -> bytes:
        """Return a file; a program must not write it at present, as Windows locks it."""
        return self._client.read_file(path)

    def write_file(self, path: str, content: bytes) -> None:
        self._client.write_file(path, content)

    def has_file(self, path: str) -> bool:
        try:
            self.read_file(path)
        except OutputUnreadable:
            return False
        return True

    def prepare_job(self, work: str, files: Mapping[str, bytes], results: Sequence[str]) -> None:
        """Write the files; those of an earlier job with the same names are replaced."""
        del results
        if not self._made:
            self.line(powershell.DIRECTORY, path=work)
            self._made = True
        for path, content in files.items():
            self.write_file(path, content)

    # --- questions

    def line(self, line: Line, *, timeout: float = _LINE_SECONDS, **values: str | int) -> Any:
        """Return the answer of a PowerShell line.

        Raises:
            ToolFailed: it failed.
            OutputUnreadable: it printed no JSON.
        """
        done = self.run(line.argv(**values), timeout=timeout)
        if done.exit_code:
            raise ToolFailed(
                f"PowerShell ended with status {done.exit_code}: {powershell.fault(done.stderr)}",
                evidence=powershell.text_of(done.stderr)[:2000],
            )
        return powershell.answer(done.stdout)

    def _kill(self, pid: str) -> Completed:
        # Without /f, Windows only asks: fio has no window that could answer.
        return self._client.run([TASKKILL, "/f", "/pid", pid])

    def _try_to_kill(self, *program: str) -> None:
        """Kill a program after an error, which a further one must not hide."""
        with contextlib.suppress(PvebenchError):
            self._client.run([TASKKILL, "/f", *program])

    def _state(self, pid: str) -> Completed:
        done = self.run(powershell.STUCK.argv(pid=int(pid)), timeout=_LINE_SECONDS)
        return Completed(0, powershell.text_of(done.stdout).encode(), done.stderr)

    def _disk(self, seconds: str, serial: str) -> Completed:
        """Find the test disk and take it offline; return what the guest image's script prints."""
        waits = attempts(self._clock, seconds=float(seconds), pause=1.0)
        disk = next((disk for _ in waits if (disk := self._with_serial(serial))), None)
        if disk is None:
            return _failed(f"no disk has the serial number {serial}")
        self._number = _count(disk, "Number")
        self._require(self.line(powershell.OFFLINE, number=self._number), offline=True)
        view = self.line(powershell.CACHE, number=self._number)
        words = {"device": rf"\\.\PhysicalDrive{self._number}"}
        words["size_bytes"] = str(_count(disk, "Size"))
        words["rotational"] = str(int(view.get("MediaType") != "SSD"))
        if isinstance(cached := view.get("WriteCache"), bool):
            words["write_cache"] = "write-back" if cached else "write-through"
        text = " ".join(f"{name}={value}" for name, value in words.items())
        return Completed(0, text.encode(), b"")

    def _with_serial(self, serial: str) -> Mapping[str, Any] | None:
        disks = self.line(powershell.DISKS)
        disks = disks if isinstance(disks, list) else [disks]
        same = [disk for disk in disks if str(disk.get("SerialNumber") or "").strip() == serial]
        if len(same) > 1:
            raise SwitchFailed(f"{len(same)} disks in the guest have the serial number {serial}")
        nameless = sum(not disk.get("SerialNumber") for disk in disks)
        if not same and nameless > 1:  # the disk of the system may be one of them
            raise SwitchFailed(
                f"{nameless} disks in the guest report no serial number",
                cause="their driver does not answer the request for it",
                next_step=f"install the virtio-win drivers in the image; {DOCS}",
            )
        return same[0] if same else None

    @staticmethod
    def _require(disk: Mapping[str, Any], *, offline: bool) -> None:
        """Raise SwitchFailed unless Windows has applied the change to the disk."""
        if disk.get("IsOffline") is not offline or disk.get("IsReadOnly") is not False:
            raise SwitchFailed(
                f"Windows did not take the test disk {'offline' if offline else 'online'}: "
                f"IsOffline {disk.get('IsOffline')}, IsReadOnly {disk.get('IsReadOnly')}",
                cause="a policy for new disks, or a program in the guest uses the disk",
            )

    def _filesystem(self, verb: str, *arguments: str) -> Completed:
        """Make, mount or unmount the file system of the test disk, as the image's script does."""
        number = self._number
        if verb == "unmount":
            self._require(self.line(powershell.OFFLINE, number=number), offline=True)
            return Completed(0, b"", b"")
        kind = _FILESYSTEMS.get(arguments[1], "")
        if not kind or any(arguments[2:]):
            return _failed(f"Windows has no file system {' '.join(arguments[1:])}")
        self._require(self.line(powershell.ONLINE, number=number), offline=False)
        if verb == "make":
            line = powershell.FORMAT
            made = self.line(line, timeout=_FILESYSTEM_SECONDS, number=number, filesystem=kind)
        else:
            made = self.line(powershell.LETTER, number=number, letter=LETTER)
        if made.get("FileSystem") != kind:
            return _failed(f"the disk has the file system {made.get('FileSystem')}, not {kind}")
        return Completed(0, b"", b"")

    def _filled(self, device: str, first: str, blocks: str, samples: str) -> Completed:
        """Count sampled blocks with data: fio compares each with zeros, and counts differences."""
        step = max(1, (int(blocks) - 1) // max(1, int(samples) - 1))
        skipped = f":{(step - 1) * 4096}" if step > 1 else ""
        argv = [
            *("fio", "--name=zeros", "--thread", "--direct=1", "--allow_file_create=0"),
            *(f"--filename={device.replace(':', chr(92) + ':')}", f"--ioengine={self.engine}"),
            *(f"--rw=read{skipped}", "--bs=4096", f"--offset={int(first) * 4096}"),
            *(f"--size={int(blocks) * 4096}", f"--io_size={int(samples) * 4096}"),
            *("--verify=pattern", "--verify_pattern=0x00", "--verify_state_save=0"),
            *("--continue_on_error=verify", "--output-format=json"),
        ]
        done = self.run(argv, timeout=_LINE_SECONDS)
        job = read_report(powershell.text_of(done.stdout)).jobs[0]
        if int(job["read"]["total_ios"]) != int(samples):
            return _failed(f"{job['read']['total_ios']} of {samples} blocks read")
        return Completed(0, str(job.get("total_err", 0)).encode(), b"")

    def cpu_counters(self) -> str:
        """Return the CPU seconds of all CPUs since boot, as `Guest.cpu_counters`.

        They include PowerShell, of which one starts before and one after the tool.
        """
        try:
            rows = [row for row in self.line(powershell.CPU) if row["Name"] != "_Total"]
            ticks = {
                "user": sum(_count(row, "PercentUserTime") for row in rows),
                "system": sum(_count(row, "PercentPrivilegedTime") for row in rows),
                "at": max(_count(row, "Timestamp_Sys100NS") for row in rows),
            }
        except (PvebenchError, KeyError, TypeError, ValueError):
            return ""
        return json.dumps({name: count / 1e7 for name, count in ticks.items()})

    # --- facts and requirements

    def facts(self) -> Mapping[str, str]:
        """Return versions of Windows, its drivers and fio.

        Raises:
            SwitchFailed: the image lacks something, with the line that adds it.
        """
        commands = self._client.commands()  # none: the agent lists no commands
        blocked = [name for name in COMMANDS if commands and not commands.get(name)]
        lacks = [f"the agent's command {name}: {_ALLOW}" for name in blocked]
        if {*blocked} & {*COMMANDS[:2]}:
            raise _lacking([*lacks, "others: unknown while guest-exec is blocked"])
        system = self.line(powershell.SYSTEM)
        good, put = dict(system.get("Good") or {}), {}
        if self._fio_file and good.get("fio") is False and not lacks:
            try:
                put, good["fio"] = {"fio_sha256": self._put_fio()}, True
            except SwitchFailed as error:
                lacks.append(f"{error.reason}: {error.next_step}")
        version = self._fio()
        drivers = {
            str(row["Name"]).lower().removesuffix(".sys"): str(row["Version"] or "").strip()
            for row in system.get("Drivers") or ()
        }
        if lacks := [*lacks, *_missing(good, version)]:
            raise _lacking(lacks)
        build = f"{system['Build']}.{system['Revision']}"
        release = str(system["Product"])
        if (whole_number(str(system["Build"])) or 0) >= 22000:
            release = release.replace("Windows 10", "Windows 11")  # the registry still says 10
        return {
            "guest_image": release,
            "guest_kernel": f"Windows {build}",
            "windows_build": build,
            "fio": version,
            **put,
            **{name: text for name, text in drivers.items() if text and name in _STORAGE},
            **virtio_win(drivers),
        }

    def _put_fio(self) -> str:
        """Copy the user's fio to its place in the guest; return its digest."""
        path, content = Path(self._fio_file), b""
        if path.is_file() and os.access(path, os.R_OK):
            with path.open("rb") as file:
                content = file.read(_FIO_BYTES)
        if not 0 < len(content) < _FIO_BYTES:
            raise SwitchFailed(
                f"{path} is missing, not readable, empty or larger than {_FIO_BYTES // MIB} MiB",
                next_step="set guest.fio in the pack to fio.exe",
            )
        digest, place = hashlib.sha256(content).hexdigest(), f"{WORK}/put."
        pieces = range(0, len(content), _PIECE_BYTES)
        files = {f"{place}{at // _PIECE_BYTES}": content[at : at + _PIECE_BYTES] for at in pieces}
        self.prepare_job(WORK, files, ())
        made = self.line(
            powershell.JOIN, timeout=_FILESYSTEM_SECONDS, last=len(files) - 1, path=place
        )
        if str(made.get("Hash")).lower() != digest:
            raise SwitchFailed(
                f"fio.exe in the guest differs from {self._fio_file}",
                next_step="look for a virus scanner in the image that changes or locks it",
            )
        return digest

    def _fio(self) -> str:
        try:
            return powershell.text_of(self.run(["fio", "--version"]).stdout).strip()
        except (ToolFailed, DriverError):
            return ""


_STORAGE: Final = ("viostor", "vioscsi")


def virtio_win(drivers: Mapping[str, str]) -> dict[str, str]:
    """Return the release of virtio-win: 0.1.271 has drivers of version 100.x.104.27100."""
    last = [text.rpartition(".")[2] for name, text in drivers.items() if name in _STORAGE]
    builds = {number // 100 for text in last if (number := whole_number(text))}
    return {"virtio_win": f"0.1.{builds.pop()}"} if len(builds) == 1 else {}


def _missing(good: Mapping[str, Any], fio: str) -> Iterator[str]:
    """Yield what an image lacks, each with the line that adds it.

    Args:
        good: name of each requirement -> whether it is met. fio: output of `fio --version`.
    """
    met = {**good, "fio": good.get("fio") is True and bool(re.match(FIO_VERSION, fio))}
    for name, need in REQUIREMENTS.items():
        if met.get(name) is not True:
            yield need.missing


_ALLOW: Final = "allow it in qemu-ga.conf (block-rpcs, allow-rpcs)"


def _lacking(lines: Sequence[str]) -> SwitchFailed:
    return SwitchFailed(
        "the Windows image lacks:\n    " + ";\n    ".join(lines),
        next_step="add them in the image, or in a full clone that replaces the template, and shut "
        f"it down ($virtio: drive of the virtio-win disc, $here: of fio); {DOCS}",
    )


def _located(argv: list[str]) -> list[str]:
    """Return the command with the place of its program. Raises ToolFailed: a word is empty."""
    if "" in argv:
        raise ToolFailed(f"{argv[0]} has an empty argument, which the guest agent drops")
    return [FIO if argv[0] == "fio" else argv[0], *argv[1:]]


def _failed(text: str) -> Completed:
    return Completed(1, b"", text.encode())


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise OutputUnreadable(f"Windows reports {name} {value!r:.50}")
    return value


WINDOWS: Final = GuestSystem(
    guest=lambda client, clock, machine: WindowsGuest(client, clock, fio=machine.fio),
    min_memory=2 * GIB,
    boot_seconds=120.0,
    if_silent="boot the image by hand, run setup.ps1 and check.ps1, allow guest-ping in "
    "qemu-ga.conf, shut it down, run `pvebench check --boot`; see docs/windows.md",
)
