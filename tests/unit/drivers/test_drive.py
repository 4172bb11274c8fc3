"""Meaning of a drive's options by Proxmox VE's defaults, for a run's read-back and for an audit.

Defaults of aio, cache and controller are those of PVE/QemuServer/DriveDevice.pm and QemuServer.pm
in qemu-server 8.4 and 9.2; the values of options are those of the API's formats `drive:scsi` ….
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pvebench.advice.audit import audit
from pvebench.drivers.driver import AuditedCluster, AuditedVm
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES, drive_text, read_back
from pvebench.model.disk import Aio, Bus, Cache, Disk, Format, ScsiHw
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment
from pvebench.runner.measure import mismatch
from testing.storages import host_row

STORAGES = {
    "thin": {"type": "lvmthin"},
    "lvm": {"type": "lvm"},
    "cifs": {"type": "cifs"},
    "ceph": {"type": "rbd"},
    "krbd": {"type": "rbd", "krbd": "1"},
    "zfs": {"type": "zfs"},
    "iscsi": {"type": "iscsidirect"},
    "btrfs": {"type": "btrfs"},
    "nocow": {"type": "btrfs", "nocow": "1"},
}


def both(
    storage: str, options: str = "", slot: str = "scsi1", scsihw: str = "virtio-scsi-single"
) -> dict[str, str]:
    """Return what a read-back says, which is also what an audit says."""
    text = f"{storage}:vm-100-disk-0{options}"
    known = STORAGES[storage]
    found = read_back(slot, text, scsihw=scsihw, volume_format="raw", storage=known)
    config = {"agent": "1", "scsihw": scsihw, slot: text}
    vm = AuditedVm(node="lab", vmid=100, name="web", config=config, pending={})
    (disk,) = audit(AuditedCluster(vms=(vm,), storages=STORAGES, names={}), (), {})
    audited = {**disk.effective, "scsihw": disk.effective["scsihw"] or "virtio-scsi-single"}
    assert audited == {key: found[key] for key in audited}
    return found


@pytest.mark.parametrize(
    ("storage", "options", "aio"),
    [
        ("thin", "", "io_uring"),
        ("thin", ",cache=writeback", "io_uring"),
        ("lvm", "", "native"),
        ("lvm", ",cache=writethrough", "threads"),
        ("lvm", ",cache=directsync", "native"),
        ("lvm", ",aio=threads", "threads"),
        ("cifs", "", "native"),
        ("krbd", "", "io_uring"),
        ("krbd", ",cache=unsafe", "threads"),
        ("ceph", ",aio=native", ""),
        ("zfs", "", ""),
        ("iscsi", "", ""),
    ],
)
def test_aio_has_the_default_of_the_storage(storage: str, options: str, aio: str) -> None:
    assert both(storage, options)["aio"] == aio


@pytest.mark.parametrize(
    ("storage", "cache"), [("thin", "none"), ("btrfs", "writeback"), ("nocow", "none")]
)
def test_the_default_cache_uses_the_page_cache_on_btrfs_only(storage: str, cache: str) -> None:
    assert both(storage)["cache"] == cache
    assert both(storage, ",cache=unsafe")["cache"] == "unsafe"


@pytest.mark.parametrize(
    ("slot", "scsihw", "threaded"),
    [
        ("scsi1", "virtio-scsi-single", "1"),
        ("scsi1", "virtio-scsi-pci", "0"),
        ("scsi1", "lsi", "0"),
        ("virtio1", "lsi", "1"),
        ("sata1", "virtio-scsi-single", "0"),
    ],
)
def test_an_iothread_exists_only_where_the_controller_has_one(
    slot: str, scsihw: str, threaded: str
) -> None:
    assert both("thin", ",iothread=1", slot, scsihw)["iothread"] == threaded
    assert both("thin", ",iothread=On", slot, scsihw)["iothread"] == threaded
    assert both("thin", "", slot, scsihw)["iothread"] == "0"


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("", "discard", "0"),
        (",discard=ignore", "discard", "0"),
        (",discard=on", "discard", "1"),
        ("", "detect_zeroes", "1"),
        (",detect_zeroes=0", "detect_zeroes", "0"),
        (",ssd=1", "ssd", "1"),
        (",queues=4", "queues", "4"),
        (",iops=100,mbps=10", "mbps", "10"),
    ],
)
def test_other_options_have_one_default_for_all_storages(
    options: str, name: str, value: str
) -> None:
    assert {both(storage, options)[name] for storage in STORAGES} == {value}


@pytest.mark.parametrize("kind", sorted(STORAGE_TYPES))
@pytest.mark.parametrize("cache", list(Cache))
def test_a_drive_that_pvebench_writes_is_read_back_as_requested(kind: str, cache: Cache) -> None:
    disk = Disk(
        bus=Bus.SCSI, format=Format.RAW, cache=cache, aio=Aio.THREADS, iothread=True, discard=True
    )
    text = drive_text(disk, "x:vm-100-disk-0", "pvebench1", kind)
    storage = {"type": kind}
    found = read_back(
        "scsi1", text, scsihw=str(ScsiHw.SINGLE), volume_format="raw", storage=storage
    )
    scenario = replace(host_row(MIB), disk=disk)
    effective = {**found, "size_bytes": str(MIB)}
    unverified = ("aio", "preallocation") if STORAGE_TYPES[kind].network else ("preallocation",)
    attachment = Attachment(device="/dev/sda", effective=effective, unverified=unverified)
    assert mismatch(scenario, attachment) == ""
