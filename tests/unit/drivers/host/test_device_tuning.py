"""What tools say about a device's settings is understood; real devices are in tests/integration."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.drivers.storages.directory import DirectoryStorage
from pvebench.errors import SwitchFailed
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.run import Sample, Unit
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Direction
from pvebench.store.live_results import LiveResults
from pvebench_lab.host.device_tuning import DEVICE_SETTINGS, Tuner
from testing.packs import SMALL, tool_workload, write_pack
from testing.storages import host_row, storage_context
from testing.stored_runs import ended
from testing.stores import TemporaryStore

START = datetime(2026, 5, 1, tzinfo=UTC)
GOLDEN = Path(__file__).parents[3] / "golden" / "hdparm"
TUNED = Disk(bus=Bus.HOST, format=Format.RAW, cache=Cache.NONE, read_ahead=MIB)


def hdparm_says(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program in front that prints a recorded answer, as no drive here would give it."""
    program = tmp_path / "hdparm"
    program.write_text(f"#!/bin/sh\nexec /bin/cat '{GOLDEN / answer}'\n", "ascii")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    ("answer", "value"),
    [("write_cache_on.txt", "1"), ("write_cache_off.txt", "0"), ("write_cache_set.txt", "0")],
)
def test_what_hdparm_says_of_a_drives_cache_is_understood(
    answer: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdparm_says(answer, tmp_path, monkeypatch)
    assert DEVICE_SETTINGS["drive_cache"].read(Path("/dev/sda")) == value


def test_a_drive_that_says_nothing_of_a_cache_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdparm_says("write_cache_none.txt", tmp_path, monkeypatch)
    with pytest.raises(SwitchFailed, match="does not report its write cache"):
        DEVICE_SETTINGS["drive_cache"].read(Path("/dev/loop0"))


def test_without_hdparm_the_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SwitchFailed, match="cannot start hdparm") as caught:
        DEVICE_SETTINGS["drive_cache"].read(Path("/dev/sda"))
    assert caught.value.next_step == "run `apt-get install hdparm`"


def test_a_file_has_no_settings_to_change(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    (tmp_path / "volumes").mkdir()
    options = storage_context(name="local", kind="dir", owner="me", path=str(tmp_path / "volumes"))
    volume = DirectoryStorage(options, store.journal).create(scenario(TUNED))
    with pytest.raises(SwitchFailed, match="is not a block device, so it has no device settings"):
        Tuner(store.journal).apply(Path(volume.volid), TUNED)
    assert [kind for _, kind, _ in store.journal.pending()] == ["volume"]
    with pytest.raises(SwitchFailed, match="cannot read"):
        DEVICE_SETTINGS["scheduler"].read(Path(volume.volid))


def scenario(disk: Disk) -> Scenario:
    return replace(host_row(16 * MIB), disk=disk)


def test_a_guest_is_compared_with_the_host_row_of_the_same_settings(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c", node="lab", pack="p", tier="core", planned=2)
    workload = tool_workload(
        "fio", {"rw": "randread", "bs": "4k"}, ramp_seconds=1.0, runtime_seconds=1.0
    )
    plain = Disk(bus=Bus.HOST, format=Format.RAW, cache=Cache.NONE)
    for uid, disk, iops in (("a", plain, 100.0), ("b", TUNED, 700.0)):
        row = Case(scenario=scenario(disk), workload=workload)
        sample = Sample("iops", Direction.READ, iops, Unit.IOPS)
        store.add_run(ended(row, START, sample, uid=uid, cycle="c"))
    guest = Disk(bus=Bus.SCSI, format=Format.QCOW2, cache=Cache.NONE, read_ahead=MIB)
    other = Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE)
    for disk, iops in ((guest, 700.0), (other, 100.0)):
        case = Case(scenario=scenario(disk), workload=workload)
        assert LiveResults(store).host_rates(case, START) == {Direction.READ: iops}


def test_check_misses_hdparm_only_where_a_pack_switches_a_drives_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "hdparm" else "/there")
    settings = tmp_path / "pvebench.yaml"
    settings.write_text(
        "driver: host\npacks: [pack.yaml]\nstate: s\nstorages: {local: {kind: block, path: /x}}\n"
    )
    write_pack(tmp_path, SMALL)
    run_cli(["check", "--config", str(settings)])
    found = capsys.readouterr().out
    assert "ok    fio: /there" in found
    assert "  hdparm: " not in found
    write_pack(tmp_path, SMALL.replace("axes:", "fixed: {drive_cache: false}\naxes:"))
    assert run_cli(["check", "--config", str(settings)]) == 3
    assert "FAIL  hdparm: not installed on the host" in capsys.readouterr().out
