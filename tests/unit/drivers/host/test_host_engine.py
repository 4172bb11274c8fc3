"""The host measures on its own, and beside a VM, on the same volume."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import Settings, load_pack
from pvebench.drivers.backend_router import local_router
from pvebench.drivers.clocks import SimulatedClock, SystemClock
from pvebench.drivers.linux.block_devices import users
from pvebench.drivers.linux.host_tools import HostTools
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.qemu import QemuSettings
from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.directory import DirectoryStorage
from pvebench.drivers.storages.own_files import cached_bytes
from pvebench.drivers.storages.qemu_img import run_qemu_img
from pvebench.drivers.storages.storage_settings import flush_facts
from pvebench.errors import SwitchFailed, VolumeError
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.ports import Site
from pvebench.model.rules import Rows
from pvebench.model.run import Outcome
from pvebench.model.units import MIB
from pvebench.model.volume import Plug
from pvebench.runner.runner import Runner
from pvebench.scheduler.plan import expand, make_plan
from pvebench.store.store import Store
from pvebench_lab.host.host_disk import HostDisk
from pvebench_lab.host.host_engine import HOST as OF_HOST
from pvebench_lab.host.host_engine import ThisMachine, undo_scratch
from pvebench_lab.simulated.simulated_hypervisor import SimulatedHypervisor
from pvebench_lab.storages import ceph
from pvebench_lab.storages.loop import loops_of
from testing.captured_logs import captured_logs
from testing.packs import SMALL, Recorder, write_pack
from testing.simulations import simulate
from testing.storages import host_row, storage_context
from testing.stores import TemporaryStore

HOST = Disk(bus=Bus.HOST, format=Format.RAW, cache=Cache.NONE)
GUEST = Disk(bus=Bus.VIRTIO, format=Format.RAW, cache=Cache.NONE)
SCENARIO = host_row(16 * MIB)
HOSTED = SMALL.replace("axes:", "host: true\naxes:")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return TemporaryStore(tmp_path / "pvebench.db", simulated=True)


@pytest.fixture
def host(tmp_path: Path, store: Store) -> HostDisk:
    (tmp_path / "volumes").mkdir()
    options = storage_context(name="local", kind="dir", owner="me", path=str(tmp_path / "volumes"))
    storage = DirectoryStorage(options, store.journal)
    return HostDisk(
        node="lab",
        storages={"local": storage},
        machine=ThisMachine(tmp_path / "run", store.journal),
    )


PROGRAMS: Final = {
    "qemu-img": lambda: run_qemu_img("info", "x"),
    "fincore": lambda: cached_bytes(Path("/x")),
    "losetup": lambda: loops_of(Path("/x")),
    "lsblk": lambda: users(Path("/x")),
    "ceph": lambda: ceph.look(storage_context(name="c", kind="rbd", pool="p")),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_without_end_of_output_is_an_error_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    (tmp_path / program).write_text("#!/bin/sh\nexec /bin/cat /dev/zero >&2\n", "ascii")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VolumeError, match=f"output of {program} exceeds 4"):
        PROGRAMS[program]()


def test_the_host_uses_the_volume_itself_and_leaves_nothing(host: HostDisk, store: Store) -> None:
    volume, new = host.volume(SCENARIO)
    assert new
    attachment = host.attach(volume, HOST)
    assert attachment.device == volume.volid
    assert attachment.effective == {"bus": "host", "size_bytes": str(16 * MIB)}
    scratch = Path(attachment.scratch)
    (scratch / "file").write_bytes(b"x")
    assert host.counters().operations > 0
    host.shutdown()
    assert not scratch.exists()
    assert not Path(volume.volid).exists()
    assert store.journal.pending() == []


def test_a_device_that_is_gone_is_reported_and_not_taken_for_one_that_counts_nothing(
    host: HostDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, _ = host.volume(SCENARIO)
    host.attach(volume, HOST)
    monkeypatch.setattr(ThisMachine, "counters", lambda *_: None)
    with pytest.raises(SwitchFailed, match=r"block device below .* disappeared"):
        host.counters()
    host.shutdown()


def test_what_a_killed_process_left_of_tools_files_is_removed_but_nothing_else(
    tmp_path: Path,
) -> None:
    ours, other = tmp_path / "pvebench-test-x-scratch", tmp_path / "other"
    for folder in (ours, other):
        folder.mkdir()
        undo_scratch({"path": str(folder)})
    assert not ours.exists()
    assert other.exists()


def test_on_a_file_system_that_became_read_only_the_journal_keeps_what_is_left(
    host: HostDisk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on ext4 with errors=remount-ro, after a write to its `trigger_fs_error` in /sys."""
    volume, _ = host.volume(SCENARIO)
    host.attach(volume, HOST)

    def refused(path: Path, **_: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    with monkeypatch.context() as patch, captured_logs() as logs:
        patch.setattr(Path, "unlink", refused)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        host.shutdown()
    assert "Read-only file system" in logs[0]["reason"]
    assert {kind for _, kind, _ in store.journal.pending()} == {"volume", "scratch"}
    undo_local(store.journal, instance="me", runtime=Path(volume.volid).parent)
    assert store.journal.pending() == []
    assert not list(Path(volume.volid).parent.iterdir())


def test_the_host_refuses_a_disk_of_a_vm(host: HostDisk) -> None:
    volume, _ = host.volume(SCENARIO)
    with pytest.raises(SwitchFailed, match="no VM"):
        host.attach(volume, GUEST)
    host.shutdown()


def test_beside_a_vm_the_host_row_boots_nothing_and_the_vm_stays(
    host: HostDisk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored = "pvebench.drivers.storages.storage_settings.flushes_ignored"
    monkeypatch.setattr(ignored, lambda _: "mount option nobarrier of /x")
    settings = QemuSettings(storages={"local": {"path": "/x"}})
    world = SimulatedHypervisor(node="lab", seed=1, clock=SimulatedClock())
    both = local_router(
        world,
        {Bus.HOST: host},
        [replace(OF_HOST, facts=lambda: {"host_fio": "3.33"})],
        partial(flush_facts, settings),
    )
    volume, _ = host.volume(SCENARIO)
    guest = both.boot(SCENARIO.machine)
    assert both.boot_seconds > 0
    assert isinstance(both.boot(SCENARIO.machine, Plug(volume, HOST)), HostTools)
    assert both.replacement is host
    assert both.boot_seconds == 0
    assert both.attach(volume, HOST).device == volume.volid
    both.detach()
    assert both.boot(SCENARIO.machine) is guest
    assert both.boot_seconds == 0
    facts = both.environment().facts
    assert facts["host_fio"] == "3.33"
    assert facts["storage local flushes"] == "ignored by mount option nobarrier of /x"
    both.shutdown()


def test_a_pack_with_host_has_that_row_first(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, HOSTED))
    for seed in range(8):
        matrix = expand(pack, node="lab", storages={"local": KINDS["dir"].holds})
        plan = make_plan(matrix, seed=seed)
        assert plan.cases[0].scenario.slug == "local.host.raw.none"
        assert plan.restarts == 1


def test_each_setting_of_the_device_below_has_a_host_row_to_compare_with(tmp_path: Path) -> None:
    swept = HOSTED.replace("axes:", "axes:\n  read_ahead: [0, 1M]").replace(
        "volume:", "variants:\n  - {scheduler: none}\nvolume:"
    )
    pack = load_pack(write_pack(tmp_path, swept))
    matrix = expand(pack, node="lab", storages={"local": KINDS["block"].holds})
    hosts = [case.scenario.slug for case in matrix.cases if case.scenario.disk.on_host]
    assert hosts == [
        "local.host.raw.none.read_ahead-0",
        "local.host.raw.none.read_ahead-1M",
        "local.host.raw.none.read_ahead-0.scheduler-none",
    ]
    guests = {case.scenario.host_slug for case in matrix.cases}
    assert guests == set(hosts)


def test_without_a_vm_only_the_hosts_rows_are_left(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path))
    matrix = expand(pack, node="lab", storages={"local": KINDS["dir"].holds}, rows=Rows.HOST)
    assert [case.scenario.slug for case in matrix.cases] == ["local.host.raw.none"]
    assert {left.reason for left in matrix.excluded} == {
        "this instance measures without VMs (driver: host)"
    }
    assert Settings(driver="host").driver == "host"


def test_guests_are_compared_with_the_hosts_own_row(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, HOSTED))
    simulation.worker.run()
    ratios = {
        run.case.scenario.slug: [s.value for s in run.samples if s.metric == "guest_to_host"]
        for run in simulation.recorder.runs
    }
    assert ratios.pop("local.host.raw.none") == []
    assert len(ratios) == 2
    assert all(0.5 < values[0] < 1.1 for values in ratios.values())


def real_site(host: HostDisk, folder: Path) -> Site:
    probe = ProcProbe(lambda: None, lambda: folder)
    return Site(node="lab", hypervisor=host, probe=probe, clock=SystemClock())


def test_a_workload_measures_on_the_host_for_real(tmp_path: Path, host: HostDisk) -> None:
    text = HOSTED.replace("size: 64M", "size: 16M").replace("ramp: 1s", "ramp: 200ms")
    pack = load_pack(write_pack(tmp_path, text))
    matrix = expand(pack, node="lab", storages={"local": KINDS["dir"].holds}, rows=Rows.HOST)
    runner = Runner(real_site(host, tmp_path), Recorder())
    run = runner.run(matrix.cases[0], cycle="", conduct=pack.conduct)
    runner.close()
    assert run.outcome in (Outcome.OK, Outcome.NOISY, Outcome.IMPLAUSIBLE), run.reason
    found = {sample.metric for sample in run.samples}
    assert {"iops", "device_share", "host_cpu"} <= found
    assert not any(metric.startswith("qemu_") for metric in found)
    # What the device moved before is not this run's: the wear of a month is counted from it.
    assert run.written_bytes < 1024 * MIB


def test_check_names_the_tools_that_the_hosts_own_rows_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = write_pack(tmp_path, HOSTED + "  - ioping: {}\n  - idle: {}\n")
    arguments = ["check", "--state", str(tmp_path / "state"), "--pack", str(pack), "--format=json"]
    monkeypatch.setattr(shutil, "which", lambda name, **_: "/bin/fio" if name == "fio" else None)
    assert run_cli([*arguments, "--driver", "host"]) == 3
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["fio"]["ok"]
    assert "apt-get install ioping" in found["ioping"]["found"]
    assert "idle" not in found
