"""The host measures on block devices for real, and changes and restores their settings."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.conftest import Lab, scenario
from pvebench.cli.main import run_cli
from pvebench.drivers.backend_router import local_router
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.identity import HEAD_BYTES, claim
from pvebench.model.disk import Bus
from pvebench.model.ports import Site
from pvebench.model.run import Outcome, Run
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench_lab.host.device_tuning import DEVICE_SETTINGS, KIND, undo_setting
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import ThisMachine
from testing.devices import block_device
from testing.packs import Recorder, tool_workload
from testing.real_outcomes import MEASURED
from testing.storages import host_row, storage_context
from testing.stores import TemporaryStore

# A doubt about the numbers of a busy machine is none about the tool.
ROW = host_row(64 * MIB, storage="disk")


def tuned(**options: object) -> Scenario:
    return replace(ROW, disk=replace(ROW.disk, **options))  # type: ignore[arg-type] # options by name


class Host:
    """The host as an instance has it, with one storage `disk` of kind block."""

    def __init__(self, folder: Path, device: Path) -> None:
        self.store = TemporaryStore(folder / "pvebench.db", simulated=False)
        options = storage_context(name="disk", kind="block", owner="test", path=str(device))
        storage = KINDS["block"].make(options, self.store.journal)
        self.disk = HostDisk(
            node="lab",
            storages={"disk": storage},
            machine=ThisMachine(folder / "run", self.store.journal),
        )
        probe = ProcProbe(lambda: None, lambda: self.disk.volume_path)
        site = Site(node="lab", hypervisor=self.disk, probe=probe, clock=SystemClock())
        self.runner = Runner(site, Recorder())

    def run(self, scenario: Scenario, tool: str = "fio", **options: object) -> Run:
        requested = {"rw": "randread", "bs": "4k", "iodepth": 4, **options} if tool == "fio" else {}
        workload = tool_workload(tool, requested, ramp_seconds=0.2, runtime_seconds=1.0)
        case = Case(scenario=scenario, workload=workload)
        return self.runner.run(case, cycle="", conduct=Conduct(settle_seconds=0.1))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    with block_device(tmp_path / "disk.img") as made:
        yield made


@pytest.fixture
def host(tmp_path: Path, device: Path) -> Iterator[Host]:
    made = Host(tmp_path, device)
    yield made
    made.runner.close()
    made.store.close()


def in_force(device: Path) -> dict[str, str]:
    return {name: DEVICE_SETTINGS[name].read(device) for name in ("read_ahead", "scheduler")}


def other_size(device: Path) -> int:
    """Return a read-ahead that the device does not have: its default is the kernel's choice."""
    return next(size for size in (MIB, 2 * MIB) if str(size) != in_force(device)["read_ahead"])


def another(device: Path) -> str:
    """Return a scheduler that the device has but does not use; `none` is always there."""
    path = Path("/sys/block") / device.name / "queue/scheduler"
    known = path.read_text("ascii").split()
    others = [name for name in known if not name.startswith("[")]
    if not others:
        pytest.skip("this kernel has one I/O scheduler only, so nothing can be changed")
    return others[0]


def test_fio_writes_and_reads_a_claimed_device_and_leaves_the_mark(
    host: Host, device: Path
) -> None:
    claim(device, destroy=False)
    claimed = device.read_bytes()[:HEAD_BYTES]
    for pattern in ("randwrite", "randread"):
        run = host.run(ROW, rw=pattern)
        assert run.outcome in MEASURED, run.reason
        assert next(one.value for one in run.samples if one.metric == "iops") > 10
    job = run.evidence["job.fio"]
    assert f"filename={device}" in job
    assert f"offset={HEAD_BYTES}" in job
    with device.open("rb") as opened:
        head = opened.read(HEAD_BYTES)
        assert [at for at, byte in enumerate(head) if byte != claimed[at] and at >= 4096] == []
        assert len(set(opened.read(MIB))) > 200  # full of random data behind the mark


def test_hdparm_times_the_claimed_device_itself(host: Host, device: Path) -> None:
    claim(device, destroy=False)
    run = host.run(ROW, "hdparm")
    assert run.outcome in MEASURED, run.reason
    assert next(one.value for one in run.samples if one.metric == "bandwidth") > MIB


def test_without_the_mark_nothing_is_written(host: Host, device: Path) -> None:
    before = device.read_bytes()
    run = host.run(ROW, rw="randwrite")
    assert run.outcome is Outcome.FAILED
    assert "not changed: not claimed by pvebench" in run.reason
    assert device.read_bytes() == before


def test_a_device_with_data_gets_the_mark_only_with_the_destructive_flag(
    host: Host, device: Path
) -> None:
    subprocess.run(["mkfs.ext4", "-q", str(device)], check=True)
    assert run_cli(["storage", "claim", str(device)]) != 0
    assert host.run(ROW).outcome is Outcome.FAILED
    assert run_cli(["storage", "claim", str(device), "--destroy-data"]) == 0
    run = host.run(ROW)
    assert run.outcome in MEASURED, run.reason


def test_settings_of_the_device_are_made_read_back_and_put_back(host: Host, device: Path) -> None:
    claim(device, destroy=False)
    before, scheduler, size = in_force(device), another(device), other_size(device)
    run = host.run(tuned(read_ahead=size, scheduler=scheduler))
    assert run.outcome in MEASURED, run.reason
    effective = json.loads(run.evidence["effective"])
    assert (effective["read_ahead"], effective["scheduler"]) == (str(size), scheduler)
    options = f"read_ahead-{size // MIB}M.scheduler-{scheduler}"
    assert run.case.scenario.slug == f"disk.host.raw.none.{options}"
    assert in_force(device) == {"read_ahead": str(size), "scheduler": scheduler}
    plain = host.run(ROW)  # the next case does not want them
    assert plain.outcome in MEASURED, plain.reason
    assert in_force(device) == before
    assert host.store.journal.pending() == []


def test_a_setting_that_did_not_take_makes_the_run_invalid(host: Host, device: Path) -> None:
    claim(device, destroy=False)
    before = in_force(device)
    run = host.run(tuned(read_ahead=512))  # less than a page: the kernel makes it 0
    assert run.outcome is Outcome.INVALID
    assert "read_ahead: requested 512, found 0" in run.reason
    host.runner.close()
    assert in_force(device) == before


def test_a_scheduler_that_the_kernel_does_not_have_is_reported_with_those_it_has(
    host: Host, device: Path
) -> None:
    claim(device, destroy=False)
    run = host.run(tuned(scheduler="elevator"))
    assert run.outcome is Outcome.FAILED
    assert "has no I/O scheduler elevator; it has " in run.reason
    assert "none" in run.reason


def test_what_a_killed_process_changed_is_put_back_at_the_next_start(
    host: Host, device: Path
) -> None:
    claim(device, destroy=False)
    before = in_force(device)
    volume, _ = host.disk.volume(ROW)
    requested = tuned(read_ahead=other_size(device), scheduler=another(device))
    host.disk.attach(volume, requested.disk)
    assert in_force(device) != before
    host.disk._machine._tuner._changed.clear()  # as if the process had died here
    lines = undo_local(
        host.store.journal, {KIND: undo_setting}, instance="test", runtime=device.parent
    )
    assert f"restored read_ahead of {device} to {before['read_ahead']}" in lines
    assert in_force(device) == before
    assert host.store.journal.pending() == []


def test_a_journal_entry_about_another_device_of_that_name_changes_nothing(
    host: Host, device: Path
) -> None:
    claim(device, destroy=False)
    volume, _ = host.disk.volume(ROW)
    size = other_size(device)
    host.disk.attach(volume, tuned(read_ahead=size).disk)
    ((_, _, details),) = host.store.journal.pending()
    other = {**details, "identity": "a disk that was pulled out", "before": "0"}
    assert "the device was replaced" in undo_setting(other)
    assert "the machine was restarted" in undo_setting({**details, "boot": "an earlier one"})
    assert in_force(device)["read_ahead"] == str(size)


def test_settings_of_a_device_that_is_not_ours_are_left_alone(host: Host, device: Path) -> None:
    before = in_force(device)
    with pytest.raises(
        Exception, match=r"device settings: .* not changed: not claimed by pvebench"
    ):
        host.disk._machine._tuner.apply(device, tuned(read_ahead=other_size(device)).disk)
    assert in_force(device) == before
    assert host.store.journal.pending() == []


def test_a_guest_on_the_device_has_the_settings_too(own_lab: Lab, device: Path) -> None:
    claim(device, destroy=False)
    before = in_force(device)
    options = storage_context(name="disk", kind="block", owner="test", path=str(device))
    storages = {"disk": KINDS["block"].make(options, own_lab.store.journal)}
    own_lab.qemu._storages |= storages
    host = HostDisk(
        node="lab",
        storages=storages,
        machine=ThisMachine(own_lab.directory / "run", own_lab.store.journal),
    )
    both = local_router(own_lab.qemu, {Bus.HOST: host}, [])
    probe = ProcProbe(lambda: own_lab.qemu.pid, lambda: own_lab.qemu.volume_path)
    runner = Runner(Site(node="lab", hypervisor=both, probe=probe, clock=SystemClock()), Recorder())
    size = other_size(device)
    requested = replace(scenario(read_ahead=size), storage="disk")
    workload = tool_workload(
        "fio", {"rw": "read", "bs": "64k"}, ramp_seconds=0.2, runtime_seconds=1.0
    )
    run = runner.run(Case(scenario=requested, workload=workload), cycle="", conduct=Conduct())
    assert run.outcome in MEASURED, run.reason
    assert json.loads(run.evidence["effective"])["read_ahead"] == str(size)
    assert in_force(device)["read_ahead"] == str(size)
    runner.close()
    assert in_force(device) == before


FAKE_HDPARM = """\
#!/bin/sh
# Stands in for hdparm: no drive of the machines that run these tests has a cache to switch
# (loop devices and virtual disks answer nothing). The answers are those of tests/golden/hdparm.
state="$0.state"
case "$1" in
-W0) [ -n "$STUBBORN" ] || echo 0 > "$state" ;;
-W1) [ -n "$STUBBORN" ] || echo 1 > "$state" ;;
-W) ;;
*) exit 22 ;;
esac
read -r now < "$state"
[ "$now" = 1 ] && word=on || word=off
printf '\\n%s:\\n write-caching =  %s (%s)\\n' "$2" "$now" "$word"
"""


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that holds what the stand-in drive's cache is."""
    program = tmp_path / "bin" / "hdparm"
    program.parent.mkdir()
    program.write_text(FAKE_HDPARM, "ascii")
    program.chmod(0o755)
    state = program.with_name("hdparm.state")
    state.write_text("1\n", "ascii")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return state


def test_the_drives_cache_is_switched_off_for_the_run_and_on_again(
    host: Host, device: Path, drive: Path
) -> None:
    claim(device, destroy=False)
    run = host.run(tuned(drive_cache=False))
    assert run.outcome in MEASURED, run.reason
    assert json.loads(run.evidence["effective"])["drive_cache"] == "0"
    assert drive.read_text("ascii") == "0\n"
    host.runner.close()
    assert drive.read_text("ascii") == "1\n"
    assert host.store.journal.pending() == []


def test_a_drive_that_ignores_the_switch_makes_the_run_invalid(
    host: Host, device: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(device, destroy=False)
    monkeypatch.setenv("STUBBORN", "1")
    run = host.run(tuned(drive_cache=False))
    assert run.outcome is Outcome.INVALID
    assert "drive_cache: requested 0, found 1" in run.reason


def test_a_cache_that_does_not_go_back_stays_in_the_journal(
    host: Host, device: Path, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(device, destroy=False)
    assert host.run(tuned(drive_cache=False)).outcome in MEASURED
    monkeypatch.setenv("STUBBORN", "1")
    host.runner.close()
    (line,) = undo_local(
        host.store.journal, {KIND: undo_setting}, instance="test", runtime=device.parent
    )
    assert f"drive_cache of {device} is still 0, cannot restore 1" in line
    monkeypatch.delenv("STUBBORN")
    (line,) = undo_local(
        host.store.journal, {KIND: undo_setting}, instance="test", runtime=device.parent
    )
    assert line == f"restored drive_cache of {device} to 1"
    assert drive.read_text("ascii") == "1\n"


def test_a_device_without_such_a_cache_is_reported(host: Host, device: Path) -> None:
    claim(device, destroy=False)
    run = host.run(tuned(drive_cache=False))  # the real hdparm: a loop device answers nothing
    assert run.outcome is Outcome.FAILED
    assert "does not report its write cache" in run.reason
