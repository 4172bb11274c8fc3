"""Which volumes are ours: what is removed with the VM, and what only carries its number.

Witness: `destroy_vm` in qemu-server's src/PVE/QemuServer.pm, and the recordings `destroy.0`,
`destroy.default` and `destroy.1` of an administrator's calls on 8.4.1 and 9.2.11.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import pvebench.drivers.proxmox
from pve.cluster import Cluster
from pve.site import MACHINE, Site, scenario
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.proxmox.orphans import find_orphans, remove_orphan
from pvebench.errors import NotOwned, ServerGone, VolumeError
from pvebench.model.disk import Bus, Format
from pvebench.model.ports import REMAINS
from pvebench.model.volume import Plug


def neighbour(site: Site, tmp_path: Path) -> Cluster:
    """Another cluster on the same server, with volumes of a VM of the same number."""
    other = Cluster(tmp_path / "other", major=9, nodes=("pve1",))
    site.cluster.share_with(other)
    return other


def theirs(other: Cluster, *names: str) -> list[str]:
    return [other.volumes.allocate("share", 9000, name, 1 << 20, "raw") for name in names]


@pytest.mark.parametrize("name", ["vm-9000-disk-0.raw", "vm-9000-pvebench-0123456789ab-raw-0.raw"])
def test_another_clusters_disk_of_the_same_number_stays(
    both: Site, tmp_path: Path, name: str
) -> None:
    other = neighbour(both, tmp_path)
    (disk,) = theirs(other, name)
    both.plug(scenario(storage="share"))
    assert both.node.vmid == 9000
    both.node.shutdown()
    assert both.cluster.vms == {}
    assert other.volumes.owned(9000) == [disk]
    assert other.volumes.path(disk).exists()


def test_it_stays_when_a_killed_process_is_tidied_up_after(site: Site, tmp_path: Path) -> None:
    other = neighbour(site, tmp_path)
    (disk,) = theirs(other, "vm-9000-disk-0.raw")
    site.node.volume(scenario(storage="share"))
    site.undo()
    assert site.cluster.vms == {}
    assert other.volumes.owned(9000) == [disk]


def test_it_stays_when_a_stray_is_swept_and_is_not_reported_as_the_strays(
    site: Site, tmp_path: Path
) -> None:
    other = neighbour(site, tmp_path)
    (disk,) = theirs(other, "vm-9000-pvebench-0123456789ab-raw-7.raw")
    volume, _ = site.node.volume(scenario(storage="share"))
    (stray,) = find_orphans(site.connect(), pool="bench", known={})
    assert stray.volumes == (volume.volid,)
    remove_orphan(site.access(clock=SystemClock()), stray)
    assert site.cluster.vms == {}
    assert other.volumes.owned(9000) == [disk]


def test_a_volume_that_was_never_plugged_in_goes_with_its_vm(both: Site) -> None:
    made = [
        both.node.volume(scenario(kind=kind, storage=storage))[0].volid
        for kind, storage in ((Format.RAW, "local"), (Format.QCOW2, "local"), (Format.RAW, "thin"))
    ]
    assert sorted(both.cluster.volumes.owned(both.node.vmid)) == sorted(made)
    both.node.shutdown()
    assert both.cluster.vms == {}
    assert both.cluster.volumes.owned(9000) == []


def test_a_volume_whose_making_was_not_answered_is_not_taken_for_another_clusters(
    site: Site, tmp_path: Path
) -> None:
    other = neighbour(site, tmp_path)
    theirs(other, "vm-9000-pvebench-0123456789ab-raw-0.raw")
    site.faults.add("drop_before", "POST", "/storage/share/content")
    with pytest.raises(VolumeError, match="did not respond"):
        site.node.volume(scenario(storage="share"))


def test_a_vm_that_someone_gave_a_disk_is_not_removed_with_it(site: Site) -> None:
    site.node.boot(MACHINE)
    vm = site.cluster.vms[site.node.vmid]
    disk = site.cluster.volumes.allocate("local", vm.vmid, "vm-9000-disk-0.raw", 1024, "raw")
    vm.config["scsi5"] = disk
    (line,) = site.undo()
    assert "vm-9000-disk-0.raw was not created by pvebench" in line
    assert vm.vmid in site.cluster.vms
    assert site.cluster.volumes.path(disk).exists()
    (stray,) = find_orphans(site.connect(), pool="bench", known={})
    with pytest.raises(NotOwned, match="disk-0"):
        remove_orphan(site.access(clock=SystemClock()), stray)


def test_a_vm_with_a_disk_of_someone_stays_in_the_journal_until_it_is_gone(site: Site) -> None:
    site.node.boot(MACHINE)
    vm = site.cluster.vms[site.node.vmid]
    disk = site.cluster.volumes.allocate("local", vm.vmid, "vm-9000-disk-0.raw", 1024, "raw")
    vm.config["scsi5"] = disk
    with pytest.raises(ServerGone, match=f"{disk} was not created by pvebench"):
        site.node.shutdown()
    for _ in range(2):
        (line,) = site.undo()
        assert f"{disk} was not created by pvebench" in line
        assert [details["vmid"] for _, _, details in site.store.journal.pending()] == ["9000"]
    del vm.config["scsi5"]
    lines = site.undo()
    assert lines[0].startswith(f"removed VM 9000 with its volumes; not removed: {disk} on pve1, ")
    assert [kind for _, kind, _ in site.store.journal.pending()] == [REMAINS]
    assert site.cluster.volumes.path(disk).exists()


HOLDS = {
    "a slot": {"scsi5": "{}"},
    "unused": {"unused7": "{}"},
    "firmware's variables": {"efidisk0": "{},size=1M"},
    "the state of a TPM": {"tpmstate0": "{},version=v2.0"},
}


@pytest.mark.parametrize("where", [*HOLDS, "pending"])
@pytest.mark.parametrize("name", ["vm-9000-disk-0", "vm-9000-pvebench-0123456789ab-raw-0"])
def test_whatever_it_holds_that_was_not_made_for_it_stays(
    site: Site, where: str, name: str
) -> None:
    """As an admin's `qm disk rescan` does it: `update_disk_config` in qemu-server, same file.

    On a storage that two clusters share it finds the volumes of the other one's pvebench.
    """
    site.node.volume(scenario())
    vm = site.cluster.vms[site.node.vmid]
    disk = site.cluster.volumes.allocate("thin", vm.vmid, name, 1 << 20, "raw")
    if where == "pending":
        vm.pending["sata3"] = disk
    else:
        vm.config |= {key: text.format(disk) for key, text in HOLDS[where].items()}
    (line,) = site.undo()
    assert f"{disk} was not created by pvebench" in line
    assert site.cluster.volumes.path(disk).exists()
    assert vm.vmid in site.cluster.vms


def test_another_pvebenchs_volume_is_neither_taken_out_nor_freed(site: Site) -> None:
    volume = site.plug(scenario())
    vm = site.cluster.vms[site.node.vmid]
    name = f"vm-{vm.vmid}-pvebench-0123456789ab-raw-0"
    disk = site.cluster.volumes.allocate("thin", vm.vmid, name, 1 << 20, "raw")
    site.clock.skip(6)
    vm.config["scsi5"] = disk
    with pytest.raises(NotOwned, match=f"its disk {disk} was not created"):
        site.node.boot(MACHINE, Plug(volume, scenario(bus=Bus.SATA).disk))
    assert vm.config["scsi5"] == disk


def test_proxmox_is_never_asked_to_free_by_number() -> None:
    package = Path(pvebench.drivers.proxmox.__file__).parent
    for module in package.rglob("*.py"):
        assert "unreferenced" not in module.read_text("utf-8"), module
