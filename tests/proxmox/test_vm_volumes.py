"""Volumes that stay filled from one start to the next: found by their marks, believed by proof."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from pve.instance import write_settings
from pve.site import MACHINE, POOL, Site, scenario
from pve.storage import Storage
from pve.vms import Vm
from pvebench.cli.main import run_cli
from pvebench.drivers.proxmox.hypervisor import ProxmoxHypervisor
from pvebench.drivers.proxmox.vm.bench_vm import KIND
from pvebench.drivers.proxmox.vm.description import filled_of
from pvebench.drivers.proxmox.vm.leftover_vms import KEPT, undo_vms
from pvebench.errors import DriverError, OutcomeUnknown, StoreError
from pvebench.model.disk import Bus, Format
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Volume
from pvebench.runner.prepare import Contents
from pvebench.store.state_directory import StateDirectory
from pvebench.workloads import Target
from testing.packs import write_pack
from testing.stores import TemporaryStore


def begin(site: Site, **options: object) -> ProxmoxHypervisor:
    """A start of pvebench: another driver on the same journal."""
    site.node = site.driver("pve1", keep=True, **options)
    return site.node


def fill(site: Site, wanted: Scenario) -> Volume:
    """Measure as far as matters here: plug it in, write it from end to end, note that."""
    volume = site.plug(wanted)
    site.cluster.volumes.path(volume.volid).write_bytes(
        os.urandom(MIB) * (volume.size_bytes // MIB)
    )
    site.node.note(volume, "data")
    return volume


def vm_of(site: Site) -> Vm:
    (found,) = site.cluster.vms.values()
    return found


def kinds(site: Site) -> list[str]:
    return [kind for _, kind, _ in site.store.journal.pending()]


def crash(site: Site) -> list[str]:
    """Forget the driver, as kill -9 does, and tidy up as the next start does."""
    return undo_vms(site.access(), keep=True)


def test_a_filled_volume_stays_and_is_known_as_filled_at_the_next_start(both: Site) -> None:
    begin(both)
    first = fill(both, scenario())
    both.node.shutdown()
    vm = vm_of(both)
    assert not vm.running
    assert [key for key in vm.config if key.startswith(("scsi1", "unused"))] == ["unused0"]
    assert kinds(both) == [KEPT]
    node = begin(both)
    volume, new = node.volume(scenario())
    assert (volume, new) == (first, False)
    assert node.content(volume) == "data"
    node.boot(MACHINE)
    node.attach(volume, scenario().disk)
    assert kinds(both) == [KIND]
    assert vm_of(both).vmid == vm.vmid


def test_it_stays_however_often_pvebench_starts_and_its_journal_entry_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(site)
    first, full = fill(site, scenario()), Mock(side_effect=StoreError("disk full"))
    for _ in range(3):
        site.node.shutdown()
        begin(site)
        with monkeypatch.context() as patch:
            patch.setattr(type(site.store.journal), "open", full)
            with pytest.raises(StoreError):
                site.node.volume(scenario())
        assert site.node.volume(scenario()) == (first, False)
    assert kinds(site) == [KIND]


def test_a_volume_whose_size_is_approximate_while_its_vm_is_off_stays(site: Site) -> None:
    place = site.cluster.directory / "vg"
    site.cluster.storages["vg"] = Storage("vg", "lvm", place, content="images", volume_chain=True)
    site.cluster.pool_storages[POOL].add("vg")
    wanted = scenario(kind=Format.QCOW2, storage="vg")
    begin(site)
    volume = site.plug(wanted)
    site.node.note(volume, "data")
    site.node.shutdown()
    assert begin(site).volume(wanted) == (volume, False)


def test_without_the_choice_nothing_stays(site: Site) -> None:
    fill(site, scenario())
    site.node.shutdown()
    assert site.cluster.vms == {}
    assert kinds(site) == []


def test_a_vm_without_any_filled_volume_is_removed(site: Site) -> None:
    begin(site)
    site.plug(scenario())
    site.node.shutdown()
    assert site.cluster.vms == {}
    assert kinds(site) == []


def test_what_is_about_to_be_spoiled_is_no_longer_said_to_be_filled(site: Site) -> None:
    begin(site)
    volume = fill(site, scenario())
    assert [one.volid for one in filled_of(vm_of(site).config)] == [volume.volid]
    site.node.note(volume, "")
    assert filled_of(vm_of(site).config) == []
    before = len(site.api.calls)
    site.node.note(volume, "")
    assert len(site.api.calls) == before


def test_a_note_that_was_not_answered_is_looked_up(site: Site) -> None:
    begin(site)
    volume = fill(site, scenario())
    site.faults.add("drop_after", "PUT", "/config")
    site.node.note(volume, "")
    assert filled_of(vm_of(site).config) == []


def test_a_note_that_was_not_made_stops_the_run(site: Site) -> None:
    begin(site)
    volume = fill(site, scenario())
    site.faults.add("drop_before", "PUT", "/config")
    with pytest.raises(OutcomeUnknown):
        Contents(site.node).lost(volume)
    assert site.node.content(volume) == "data"


def path(site: Site, volume: Volume) -> Path:
    return site.cluster.volumes.path(volume.volid)


def _shrink(site: Site, volume: Volume) -> None:
    os.truncate(path(site, volume), 32 * MIB)


def _remove(site: Site, volume: Volume) -> None:
    site.cluster.volumes.free(volume.volid)
    vm_of(site).config.pop("unused0")


def _other_format(site: Site, volume: Volume) -> None:
    book = site.cluster.volumes._own
    book[volume.volid] = (book[volume.volid][0], "vmdk", book[volume.volid][2])


def _other_options(site: Site, volume: Volume) -> None:
    site.cluster.storages["local"].options = {"preallocation": "full"}


def _break_the_note(site: Site, volume: Volume) -> None:
    vm = vm_of(site)
    vm.config["description"] = vm.config["description"].replace('"data"', "data")


@pytest.mark.parametrize(
    "change", [_shrink, _remove, _other_format, _other_options, _break_the_note]
)
def test_a_volume_that_is_not_what_it_was_is_not_used_again(
    site: Site, change: Callable[[Site, Volume], None]
) -> None:
    begin(site)
    first = fill(site, scenario())
    site.node.shutdown()
    change(site, first)
    node = begin(site)
    volume, new = node.volume(scenario())
    assert new
    assert node.content(volume) == ""
    assert filled_of(vm_of(site).config) == []
    assert site.cluster.volumes.owned(vm_of(site).vmid) == [volume.volid]


def test_a_storage_that_the_settings_name_otherwise_now_is_another_one(site: Site) -> None:
    begin(site)
    fill(site, scenario())
    site.node.shutdown()
    node = begin(site)
    node._storages["local"] = node._storages["share"]
    volume, new = node.volume(scenario())
    assert new
    assert volume.volid.startswith("share:")


def test_another_size_replaces_the_volume_that_was_kept(site: Site) -> None:
    begin(site)
    fill(site, scenario())
    site.node.shutdown()
    node = begin(site)
    wanted = scenario(size=128 * MIB)
    volume, new = node.volume(wanted)
    assert (volume.size_bytes, new) == (128 * MIB, True)
    assert site.cluster.volumes.owned(node.vmid) == [volume.volid]
    assert filled_of(vm_of(site).config) == []


def test_a_volume_that_was_not_filled_to_its_end_is_freed(site: Site) -> None:
    begin(site)
    first = fill(site, scenario())
    site.node.detach()
    site.plug(scenario(Bus.VIRTIO, Format.QCOW2))
    site.node.shutdown()
    assert len(site.cluster.volumes.owned(vm_of(site).vmid)) == 2
    begin(site).volume(scenario())
    assert site.cluster.volumes.owned(vm_of(site).vmid) == [first.volid]


def test_a_volume_of_another_pvebench_in_a_kept_vm_is_not_freed(site: Site) -> None:
    begin(site)
    fill(site, scenario())
    site.node.shutdown()
    name = "vm-9000-pvebench-0123456789ab-raw-0"
    disk = site.cluster.volumes.allocate("thin", 9000, name, MIB, "raw")
    vm_of(site).config["unused7"] = disk  # as `qm disk rescan` does
    begin(site).volume(scenario())
    assert site.cluster.volumes.path(disk).exists()


def test_after_a_crash_a_vm_that_still_runs_keeps_its_volumes(both: Site) -> None:
    begin(both)
    first = fill(both, scenario())
    (line,) = crash(both)
    assert f"kept VM 9000 on pve1, switched off, with {first.volid}" in line
    assert kinds(both) == [KEPT]
    assert not vm_of(both).running
    assert begin(both).volume(scenario()) == (first, False)


def test_after_a_crash_that_the_node_shared_nothing_is_believed(site: Site) -> None:
    begin(site)
    fill(site, scenario())
    vm_of(site).machine.stop()  # the node's memory may have held part of the fill
    assert crash(site) == ["removed VM 9000 with its volumes"]
    assert site.cluster.vms == {}


@pytest.mark.parametrize("what", ["mark", "pool", "gone"])
def test_a_kept_vm_that_is_someone_elses_by_now_is_left_alone(site: Site, what: str) -> None:
    begin(site)
    first = fill(site, scenario())
    site.node.shutdown()
    vm = vm_of(site)
    if what == "mark":
        vm.config["description"] = f"pvebench-mark: {'0' * 32}\n"
    elif what == "pool":
        site.cluster.pools[POOL].clear()
    else:
        vm.remove()
        site.cluster.vms.clear()
        site.cluster.pools[POOL].clear()
    before = dict(vm.config)
    volume, new = begin(site).volume(scenario())
    assert new
    assert volume.volid != first.volid or what == "gone"
    assert vm.config == before
    assert kinds(site) == [KIND]


def test_a_kept_vm_that_was_migrated_is_removed_where_it_is_now(site: Site) -> None:
    begin(site)
    fill(site, scenario(storage="share"))
    site.node.shutdown()
    vm_of(site).node = "pve2"
    _, new = begin(site).volume(scenario(storage="share"))
    assert new
    assert sorted(vm.node for vm in site.cluster.vms.values()) == ["pve1", "pve2"]
    crash(site)
    assert site.cluster.vms == {}
    assert kinds(site) == []


def test_a_note_in_a_foreign_vm_is_no_reason_to_touch_it(site: Site) -> None:
    begin(site)
    fill(site, scenario())
    site.node.shutdown()
    for number, _, _ in site.store.journal.pending():
        site.store.journal.close(number)  # another state directory
    begin(site).volume(scenario())
    assert set(site.cluster.vms) == {9000, 9001}


def test_a_kept_vm_gets_what_the_settings_say_today(site: Site) -> None:
    begin(site, machine="q35")
    fill(site, scenario())
    site.node.shutdown()
    site.image.iso.write_bytes(b"another image")
    begin(site, cpu="x86-64-v3").boot(MACHINE)
    config = vm_of(site).config
    assert config["cpu"] == "x86-64-v3"
    assert "machine" not in config
    images = [row["volid"] for row in site.cluster.volumes.listed("local", "iso", None)]
    assert config["ide2"].partition(",")[0] == images[-1]
    assert len(images) == 2


def test_a_kept_vm_has_its_one_cpu_with_and_without_kvm(site: Site) -> None:
    begin(site, kvm=False, cpu="max")
    fill(site, scenario())
    assert str(vm_of(site).config["vcpus"]) == "1"
    site.node.shutdown()
    begin(site).boot(MACHINE)
    config = vm_of(site).config
    assert str(config["cores"]) == "1"
    assert not {"kvm", "vcpus"} & config.keys()
    site.node.shutdown()
    begin(site, kvm=False, cpu="max").boot(MACHINE)
    config = vm_of(site).config
    assert (str(config["cores"]), str(config["vcpus"])) == ("2", "1")


def test_a_kept_vm_that_is_locked_is_waited_for_not_replaced(site: Site) -> None:
    begin(site)
    first = fill(site, scenario())
    site.node.shutdown()
    vm = vm_of(site)
    vm.config["lock"] = "backup"
    site.image.iso.write_bytes(b"another image")
    node = begin(site)
    with pytest.raises(DriverError, match="locked"):
        node.volume(scenario())
    del vm.config["lock"]
    assert node.volume(scenario()) == (first, False)
    assert set(site.cluster.vms) == {vm.vmid}


def test_each_node_finds_its_own(site: Site) -> None:
    begin(site)
    first = fill(site, scenario())
    site.node.shutdown()
    other = site.driver("pve2", keep=True)
    other.volume(scenario())
    assert other.vmid != vm_of_node(site, "pve1").vmid
    assert begin(site).volume(scenario()) == (first, False)


def vm_of_node(site: Site, node: str) -> Vm:
    (found,) = [vm for vm in site.cluster.vms.values() if vm.node == node]
    return found


@pytest.mark.parametrize(("hole", "believed"), [(False, True), (True, False)])
def test_a_volume_is_believed_to_be_filled_only_if_it_reads_so(
    site: Site, *, hole: bool, believed: bool
) -> None:
    begin(site)
    volume = fill(site, scenario())
    site.node.shutdown()
    node = begin(site)
    volume, _ = node.volume(scenario())
    if hole:  # a thin pool that lost the last half
        size = volume.size_bytes
        os.truncate(path(site, volume), size // 2)
        os.truncate(path(site, volume), size)
    guest = node.boot(MACHINE)
    device = node.attach(volume, scenario().disk).device
    contents = Contents(node)
    target = Target(device=device, size_bytes=volume.size_bytes)
    contents.verify(volume, scenario().layout, guest, target)
    assert contents.holds(volume, scenario().layout) is believed


@pytest.fixture
def config(site: Site, tmp_path: Path) -> Path:
    found = write_settings(tmp_path, site.api, packs=[write_pack(tmp_path)], keep_volumes="true")
    site.keep_token(tmp_path)
    begin(site)
    fill(site, scenario())
    StateDirectory(tmp_path / "state", exclusive=False)
    return found


def leave(site: Site, tmp_path: Path) -> None:
    """Have the journal where the commands look for it."""
    site.close()
    (tmp_path / "pvebench.db").rename(tmp_path / "state" / "pvebench.db")


def test_sweep_shows_what_is_kept_and_removes_it_only_when_asked(
    site: Site, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.node.shutdown()
    leave(site, tmp_path)
    assert run_cli(["cleanup", "--orphans", "--config", str(config)]) == 0
    assert "VM 9000 on pve1, stopped, kept by setting, with local:" in capsys.readouterr().out
    assert set(site.cluster.vms) == {9000}
    assert run_cli(["cleanup", "--orphans", "--config", str(config), "--remove", "9000"]) == 0
    assert site.cluster.vms == {}
    assert site.cluster.volumes.owned(9000) == []
    store = TemporaryStore(tmp_path / "state" / "pvebench.db", simulated=False)
    assert store.journal.pending() == []
    store.close()
    capsys.readouterr()
    assert run_cli(["cleanup", "--orphans", "--config", str(config), "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_abort_keeps_what_is_to_be_kept_and_says_so(
    site: Site, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(site, tmp_path)  # as after kill -9
    assert run_cli(["abort", "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert "kept VM 9000 on pve1, switched off" in out
    assert "`pvebench cleanup --orphans` lists and removes it" in out
    assert not vm_of(site).running


def test_check_takes_no_other_pvebenchs_volume_for_room_that_is_there(
    site: Site, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for volid in site.cluster.volumes.owned(9000):
        site.cluster.volumes.free(volid)
    name = "vm-9000-pvebench-0123456789ab-raw-0.raw"
    site.cluster.volumes.allocate("local", 9000, name, 64 * MIB, "raw")
    site.cluster.storages["local"].avail = 257 * MIB
    run_cli(["check", "--config", str(config), "--format=json"])
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert "64.0 MiB needed, 257.0 MiB free" in rows["storage local"]["found"]


def test_check_counts_what_is_kept_as_room_that_is_there(
    site: Site, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The pack wants 64 MiB beside 256 that stay free; the kept volume has them already.
    site.cluster.storages["local"].avail = 257 * MIB
    run_cli(["check", "--config", str(config), "--format=json"])
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["storage local"]["ok"], rows["storage local"]
