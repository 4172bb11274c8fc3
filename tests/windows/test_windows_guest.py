"""The client of Windows guests against the real agent and the real fio, in Wine or recorded there.

Nothing here ran on Windows: PowerShell is a stand-in that knows the lines of each test.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from pvebench.drivers.clocks import START, SimulatedClock, SystemClock
from pvebench.errors import GuestTimeout, OutcomeUnknown, OutputUnreadable, SwitchFailed, ToolFailed
from pvebench.model.environment import FACT_NAMES
from pvebench.model.guest import Completed, Guest, Question
from pvebench.model.units import MIB
from pvebench.model.workload import Workload
from pvebench.workloads import Target
from pvebench.workloads.fio import Fio, FioOptions, check_fill, fill_job
from pvebench.workloads.fio_job import measure_job
from pvebench_lab.windows import powershell
from pvebench_lab.windows.windows_guest import COMMANDS, LETTER, WORK, WindowsGuest, _missing
from windows.conftest import DISK_BYTES, Windows

pytestmark = pytest.mark.lab

ECHO = "C:/witness/echo words.exe"
DEVICE = r"\\.\PhysicalDrive1"
RAW = Target(device=DEVICE, size_bytes=DISK_BYTES, work=WORK, engine="windowsaio")


def disk(**changes: object) -> dict[str, Any]:
    """Return a row of Get-Disk, with the members of MSFT_Disk that are asked for."""
    row = {
        "Number": 1,
        "SerialNumber": "pvebench1",
        "Size": DISK_BYTES,
        "IsOffline": True,
        "IsReadOnly": False,
        "PartitionStyle": "RAW",
    }
    return row | changes


SYSTEM_DISK = disk(Number=0, SerialNumber=None, IsOffline=False, PartitionStyle="GPT")


def ask(guest: Guest, name: str, *arguments: str) -> Completed:
    return guest.ask(Question(name, ()), *arguments)


def end_of(windows: Windows, pid: int) -> Completed:
    while (done := windows.guest.poll(pid)) is None:
        if windows.wine is not None:
            time.sleep(0.1)  # a pause of the loop, not a wait for something
    return done


def run_job(windows: Windows, job: Any) -> Completed:
    windows.answer(powershell.DIRECTORY, {"Exists": True}, path=WORK)
    windows.guest.prepare_job(job.work, job.files, (job.output, *job.logs))
    return end_of(windows, windows.guest.start(job.argv))


@pytest.mark.parametrize(
    "word",
    [
        "plain",
        "two words",
        'a "quoted" word',
        "ends in a backslash\\",
        'backslashes \\\\" before a quote',
        "%PATH%",
        "&|<>^*?",
        r"C\:\Program Files\x",
        "' ` $x ;",
    ],
)
def test_a_program_gets_its_words_unchanged(windows: Windows, word: str) -> None:
    done = windows.guest.run([ECHO, word, "last"])
    lines = done.stdout.decode().replace("\r", "").split("\n")[:-1]
    assert [bytes.fromhex(line).decode() for line in lines] == [word, "last"]


def test_an_empty_word_is_refused_because_the_agent_drops_it(windows: Windows) -> None:
    with pytest.raises(ToolFailed, match="empty"):
        windows.guest.run([ECHO, "", "last"])
    pid = windows.client.start([ECHO, "", "last"])
    while (done := windows.client.poll(pid)) is None:
        continue
    assert bytes.fromhex(done.stdout.decode()) == b"last"


def test_a_word_that_only_utf_16_has_arrives_as_the_code_page_of_the_agent(
    windows: Windows,
) -> None:
    done = windows.guest.run([ECHO, "größe"])
    assert bytes.fromhex(done.stdout.decode().strip()).decode("cp1252") == "größe"


@pytest.mark.parametrize("code", [0, 1, 255, 0x7FFFFFFF, 0xC0000005, 0xFFFFFFFF])
def test_each_exit_code_is_reported(windows: Windows, code: int) -> None:
    assert windows.guest.run([ECHO, "-exit", str(code)]).exit_code == code


def test_a_missing_program_is_named_with_the_documentation(windows: Windows) -> None:
    with pytest.raises(ToolFailed, match=r"(?s)no such tool\.exe.*docs/windows\.md"):
        windows.guest.run(["C:/no such tool.exe"])


def test_a_program_beyond_its_time_limit_is_killed(windows: Windows) -> None:
    with pytest.raises(GuestTimeout, match="did not end within"):
        windows.guest.run([ECHO, "-sleep", "60"], timeout=-1.0)


def test_a_word_for_powershell_cannot_end_a_string() -> None:
    for value in ("x'; Clear-Disk 0 #", 'a"b', "$x", "a b", "", "a\n"):
        with pytest.raises(Exception, match="cannot be part of a PowerShell line"):
            powershell.DIRECTORY.argv(path=value)


def test_the_disk_is_found_by_its_serial_and_taken_offline(windows: Windows) -> None:
    windows.answer(
        powershell.DISKS, [SYSTEM_DISK, disk(SerialNumber="  pvebench1 ", IsOffline=False)]
    )
    windows.answer(powershell.OFFLINE, disk(), number=1)
    windows.answer(powershell.CACHE, {"MediaType": "SSD", "WriteCache": True}, number=1)
    done = ask(windows.guest, "disk", "5", "pvebench1")
    words = dict(word.split("=") for word in done.stdout.decode().split())
    assert words == {
        "device": DEVICE,
        "size_bytes": str(DISK_BYTES),
        "rotational": "0",
        "write_cache": "write-back",
    }


def test_an_unknown_line_is_an_error_and_not_an_empty_answer(windows: Windows) -> None:
    with pytest.raises(ToolFailed, match="does not know the line"):
        windows.guest.line(powershell.LETTER, number=7, letter=LETTER)


def test_fio_fills_a_raw_disk_and_reads_it_back(windows: Windows) -> None:
    job = fill_job(RAW, seed=1)
    done = run_job(windows, job)
    assert done.exit_code == 0, done
    check_fill(windows.guest.read_file(job.output).decode(), RAW)
    assert ask(windows.guest, "filled", DEVICE, "0", str(DISK_BYTES // 4096), "64").stdout == b"64"
    if windows.wine is not None:
        with windows.wine.disk.open("r+b") as image:
            image.write(bytes(DISK_BYTES // 2))
    # The first half holds zeros now; a transcript has what fio counted then.
    counted = int(ask(windows.guest, "filled", DEVICE, "0", str(DISK_BYTES // 4096), "64").stdout)
    assert 30 <= counted <= 34


@pytest.mark.parametrize("rw", ["randrw", "read", "write"])
def test_a_workload_of_linux_measures_with_the_engine_of_windows(windows: Windows, rw: str) -> None:
    workload = workload_of(rw=rw, bs="4k", iodepth=4, numjobs=2)
    job = measure_job(workload, RAW)
    done = run_job(windows, job)
    assert done.exit_code == 0, done
    output = windows.guest.read_file(job.output).decode()
    log = windows.guest.read_file(job.logs[0]).decode()
    parsed = Fio().parse(workload, output, {"fio_iops.log": log})
    iops = {sample.direction for sample in parsed.samples if sample.metric == "iops"}
    assert iops == set(workload.directions)
    assert '"ioengine" : "windowsaio"' in output
    # fio counts neither on Windows: both would be 0.
    assert not {"guest_cpu", "context_switches"} & {sample.metric for sample in parsed.samples}


def workload_of(**options: object) -> Workload:
    parsed = FioOptions.model_validate(options)
    return parsed.workload(ramp_seconds=0.0, runtime_seconds=1.0)


def test_a_file_on_a_letter_is_one_file(windows: Windows) -> None:
    target = Target(
        device="C:/pvebench/test file", size_bytes=MIB, file=True, work=WORK, engine="windowsaio"
    )
    done = run_job(windows, fill_job(target, seed=1))
    assert done.exit_code == 0, done
    if windows.wine is not None:
        drive = windows.wine.prefix / "drive_c"
        assert (drive / "pvebench/test file").stat().st_size == MIB
        assert not [path for path in drive.rglob("C") if path.is_file()]


def test_ntfs_on_the_test_disk_is_made_mounted_measured_and_taken_offline(windows: Windows) -> None:
    """The file is real, its file system is Wine's: the volume of the letter is a directory."""
    test_the_disk_is_found_by_its_serial_and_taken_offline(windows)
    windows.answer(powershell.ONLINE, disk(IsOffline=False), number=1)
    windows.answer(powershell.FORMAT, {"FileSystem": "NTFS"}, number=1, filesystem="NTFS")
    windows.answer(powershell.LETTER, {"FileSystem": "NTFS"}, number=1, letter=LETTER)
    assert ask(windows.guest, "filesystem", "make", DEVICE, "ntfs").exit_code == 0
    assert ask(windows.guest, "filesystem", "mount", DEVICE, "ntfs", "").exit_code == 0
    target = Target(
        device=f"{windows.guest.mount}/test file",
        size_bytes=MIB,
        file=True,
        work=WORK,
        engine="windowsaio",
    )
    done = run_job(windows, fill_job(target, seed=1))
    assert done.exit_code == 0, done
    if windows.wine is not None:
        assert [path.name for path in windows.wine.volume.iterdir()] == ["test file"]
        assert (windows.wine.volume / "test file").stat().st_size == MIB
    assert ask(windows.guest, "filesystem", "unmount").exit_code == 0


@pytest.mark.parametrize("kind", ["ntfs", "xfs"])
def test_a_file_system_that_windows_did_not_make_is_an_error(windows: Windows, kind: str) -> None:
    test_the_disk_is_found_by_its_serial_and_taken_offline(windows)
    windows.answer(powershell.ONLINE, disk(IsOffline=False), number=1)
    windows.answer(powershell.FORMAT, {"FileSystem": "FAT32"}, number=1, filesystem="NTFS")
    assert ask(windows.guest, "filesystem", "make", DEVICE, kind).exit_code == 1


def test_a_disk_that_stays_online_is_not_written_to(windows: Windows) -> None:
    windows.answer(powershell.DISKS, [SYSTEM_DISK, disk(IsOffline=False)])
    windows.answer(powershell.OFFLINE, disk(IsOffline=False), number=1)
    with pytest.raises(SwitchFailed, match="did not take the test disk offline"):
        ask(windows.guest, "disk", "5", "pvebench1")


def test_the_exit_code_decides_and_not_the_error_in_the_json(windows: Windows) -> None:
    target = Target(device=r"\\.\PhysicalDrive9", size_bytes=MIB, work=WORK, engine="windowsaio")
    assert run_job(windows, measure_job(workload_of(rw="read", bs="4k"), target)).exit_code == 1


def test_fio_is_killed_by_its_pid(windows: Windows) -> None:
    windows.answer(powershell.DIRECTORY, {"Exists": True}, path=WORK)
    pid = windows.guest.start(
        [
            "fio",
            "--name=x",
            "--thread",
            "--ioengine=null",
            "--size=1m",
            "--time_based",
            "--runtime=600",
        ]
    )
    assert windows.guest.poll(pid) is None
    ask(windows.guest, "kill", str(pid))
    end_of(windows, pid)  # which exit code Windows gives it is not known: Wine's is 0


def test_a_missing_file_is_an_error_that_names_it(windows: Windows) -> None:
    with pytest.raises(OutputUnreadable, match="C:/pvebench/none"):
        windows.guest.read_file("C:/pvebench/none")
    assert not windows.guest.has_file("C:/pvebench/none")


CPUS = [
    {
        "Name": name,
        "PercentUserTime": user,
        "PercentPrivilegedTime": 2 * user,
        "Timestamp_Sys100NS": 133_700_000_000_000_000,
    }
    for name, user in (("0", 10_000_000), ("1", 30_000_000), ("_Total", 20_000_000))
]


def test_the_cpu_seconds_are_those_of_all_cpus(windows: Windows) -> None:
    windows.answer(powershell.CPU, CPUS)
    counters = json.loads(windows.guest.cpu_counters())
    assert counters == {"user": 4.0, "system": 8.0, "at": 13_370_000_000.0}


@pytest.mark.parametrize("reply", ["{}", "[]", '[{"Name": "0"}]', "[7]", "no JSON", "null"])
def test_counters_that_cannot_be_read_are_none(reply: str) -> None:
    class Answering(BlockedAgent):
        def start(self, argv: list[str]) -> int:
            return 7

        def poll(self, pid: int) -> Completed | None:
            return Completed(0, reply.encode(), b"")

    guest = WindowsGuest(Answering(), SimulatedClock(START))  # type: ignore[abstract] # the rest is not called
    assert guest.cpu_counters() == ""


COMPLETE = {
    "Product": "Windows Server 2022 Standard",
    "Build": "20348",
    "Revision": 2700,
    "Good": dict.fromkeys(powershell.REQUIREMENTS, True),
    "Drivers": [
        {"Name": "viostor.sys", "Version": "100.101.104.27100"},
        {"Name": "vioscsi.sys", "Version": "100.101.104.27100"},
    ],
}


def test_the_environment_has_the_versions_of_windows_drivers_and_fio(windows: Windows) -> None:
    windows.answer(powershell.SYSTEM, COMPLETE)
    facts = windows.guest.facts()
    assert facts.keys() <= FACT_NAMES.keys()
    assert facts == {
        "guest_image": "Windows Server 2022 Standard",
        "guest_kernel": "Windows 20348.2700",
        "windows_build": "20348.2700",
        "fio": "fio-3.33",
        "viostor": "100.101.104.27100",
        "vioscsi": "100.101.104.27100",
        "virtio_win": "0.1.271",
    }


def test_each_thing_that_an_image_lacks_is_named_with_the_line_that_adds_it(
    windows: Windows,
) -> None:
    windows.answer(powershell.SYSTEM, COMPLETE | {"Good": {}})
    with pytest.raises(SwitchFailed) as lacking:
        windows.guest.facts()
    for name, need in powershell.REQUIREMENTS.items():
        assert need.missing in str(lacking.value)
        for unknown in (False, None, "True"):
            assert [*_missing({**COMPLETE["Good"], name: unknown}, "fio-3.33")] == [need.missing]
    assert "vioscsi: run `Start-Process -Wait msiexec" in str(lacking.value)
    assert "pages: set a larger guest.memory in the pack" in str(lacking.value)


@pytest.mark.parametrize("version", ["", "fio-2.21", "fio-1.59", "3.33"])
def test_a_fio_whose_output_cannot_be_read_is_missing(version: str) -> None:
    (line,) = _missing(dict(COMPLETE["Good"]), version)
    assert line.startswith("fio 3 or later at C:/Program Files/fio/fio.exe: run ")


def with_file(windows: Windows, path: Path, content: bytes, reply: str) -> WindowsGuest:
    """Return a guest of an image without fio, for which the pack has a file of it."""
    path.write_bytes(content)
    windows.answer(powershell.SYSTEM, COMPLETE | {"Good": {**COMPLETE["Good"], "fio": False}})
    windows.answer(powershell.DIRECTORY, {"Exists": True}, path=WORK)
    windows.answer(powershell.JOIN, {"Hash": reply}, path=f"{WORK}/put.", last=2)
    clock = SystemClock() if windows.wine else SimulatedClock(START)
    return WindowsGuest(windows.client, clock, fio=str(path))


def test_an_image_without_fio_gets_the_file_of_the_pack_whose_digest_is_a_fact(
    windows: Windows, tmp_path: Path
) -> None:
    content = bytes(number % 251 for number in range(100_000))
    digest = hashlib.sha256(content).hexdigest()
    guest = with_file(windows, tmp_path / "fio.exe", content, digest.upper())
    assert guest.facts()["fio_sha256"] == digest
    if windows.wine is not None:
        parts = [windows.wine.prefix / f"drive_c/pvebench/put.{number}" for number in range(3)]
        assert b"".join(part.read_bytes() for part in parts) == content


def test_a_copy_of_fio_that_differs_is_refused(windows: Windows, tmp_path: Path) -> None:
    guest = with_file(windows, tmp_path / "fio.exe", bytes(100_000), "0" * 64)
    with pytest.raises(SwitchFailed, match=r"fio\.exe in the guest differs"):
        guest.facts()


@pytest.mark.parametrize("size", [None, 0, 32 * MIB])
def test_a_file_of_fio_that_cannot_be_one_is_an_error_with_the_key(
    tmp_path: Path, size: int | None
) -> None:
    path = tmp_path / "fio.exe"
    if size is not None:
        with path.open("wb") as file:
            file.truncate(size)
    guest = WindowsGuest(BlockedAgent(), SimulatedClock(START), fio=str(path))  # type: ignore[abstract] # not called
    with pytest.raises(SwitchFailed, match=r"guest\.fio") as wrong:
        guest._put_fio()
    assert str(path) in str(wrong.value)


class BlockedAgent(Guest):
    """Agent that may not run programs."""

    def commands(self) -> dict[str, bool]:
        return {**dict.fromkeys(COMMANDS, True), "guest-exec": False, "guest-file-write": False}

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        raise ToolFailed("The command guest-exec has been disabled for this instance")


def test_each_command_that_the_agent_refuses_is_named_before_anything_is_asked() -> None:
    guest = WindowsGuest(BlockedAgent(), SimulatedClock(START))  # type: ignore[abstract] # the rest is not called
    with pytest.raises(SwitchFailed, match="block-rpcs") as lacking:
        guest.facts()
    assert "command guest-exec: " in str(lacking.value)
    assert "guest-file-write" in str(lacking.value)
    assert "guest-file-read" not in str(lacking.value)
    assert "others: unknown" in str(lacking.value)


class DeadAgent(BlockedAgent):
    """Agent that stops to answer with the start of a program."""

    def start(self, argv: list[str]) -> int:
        raise OutcomeUnknown("the reply to guest-exec was lost")

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        raise GuestTimeout("taskkill did not end either")


def test_a_failed_kill_does_not_hide_the_error_before_it() -> None:
    guest = WindowsGuest(DeadAgent(), SimulatedClock(START))  # type: ignore[abstract] # the rest is not called
    with pytest.raises(OutcomeUnknown, match="guest-exec was lost"):
        guest.start(["fio", "--version"])


class SlowAgent(DeadAgent):
    """Agent whose program does not end."""

    def start(self, argv: list[str]) -> int:
        return 7

    def poll(self, pid: int) -> Completed | None:
        return None


def test_a_failed_kill_does_not_hide_a_time_limit() -> None:
    guest = WindowsGuest(SlowAgent(), SimulatedClock(START))  # type: ignore[abstract] # the rest is not called
    with pytest.raises(GuestTimeout, match=r"fio did not end within 3 s"):
        guest.run(["fio", "--version"], timeout=3.0)
