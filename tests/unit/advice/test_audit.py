"""Audit of disks: defaults of Proxmox VE, findings, and what the measurements say.

The defaults of drives have tests of their own, in `test_drive.py`.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pvebench.advice.audit import AuditedDisk, audit, audit_data, audit_lines
from pvebench.advice.recommendation import recommendations
from pvebench.advice.recommendation_text import ids_text
from pvebench.advice.vm_findings import vm_findings
from pvebench.drivers.driver import AuditedCluster, AuditedVm
from pvebench.store.live_results import View
from pvebench.verdicts.ranking import EMULATED, LEAST_RUNS
from testing.simulated_results import case, trend, view_of

STORAGES = {
    "thin": {"type": "lvmthin"},
    "lvm": {"type": "lvm"},
    "ceph": {"type": "rbd"},
    "krbd": {"type": "rbd", "krbd": "1"},
    "btrfs": {"type": "btrfs"},
    "chain": {"type": "dir", "snapshot-as-volume-chain": "1"},
    "nfs": {"type": "nfs"},
    "san": {"type": "lvm", "shared": "1"},
    "thick": {"type": "zfspool"},
    "zpool": {"type": "zfspool", "sparse": "1"},
    "iscsi": {"type": "zfs", "sparse": "1"},
    "full": {"type": "dir", "preallocation": "full"},
    "off": {"type": "dir", "disable": "1"},
    "far": {"type": "dir", "nodes": "b,c"},
}


def vm(slot: str, drive: str, **config: str) -> AuditedVm:
    known = {"agent": "1", "scsihw": "virtio-scsi-single", **config, slot: drive}
    return AuditedVm(node="lab", vmid=100, name="web", config=known, pending={})


def cluster(*vms: AuditedVm) -> AuditedCluster:
    names = dict.fromkeys(("thin", "nfs", "san"), ("local",))
    return AuditedCluster(vms=vms, storages=STORAGES, names=names)


def disk(one: AuditedVm, view: View | None = None) -> AuditedDisk:
    advice = recommendations(view) if view else ()
    (found,) = audit(cluster(one), advice, view.trends if view else {})
    return found


def test_a_path_has_the_format_of_its_option_and_a_volume_that_of_its_name() -> None:
    forms = {
        "/mnt/x.qcow2": "raw",
        "/mnt/x,format=qcow2": "qcow2",
        "nfs:1/base.raw/b.qcow2": "qcow2",
    }
    assert {drive: disk(vm("scsi0", drive)).effective["format"] for drive in forms} == forms


def texts(one: AuditedDisk) -> str:
    return "; ".join(it.text for it in (*one.findings, *vm_findings(one.vm, cluster(one.vm))))


@pytest.mark.parametrize(
    ("machine", "newer"),
    [
        ({"machine": "pc-i440fx-9.2+pve1"}, "pc-i440fx-10.0"),
        ({"machine": "type=pc-q35-8.1.2,viommu=intel"}, "type=pc-q35-10.0,viommu=intel"),
        ({"machine": "pc-q35-10.0"}, ""),
        ({"machine": "q35"}, ""),
        ({}, ""),
        ({"ostype": "win11", "meta": "creation-qemu=9.2.0,ctime=1"}, "pc-i440fx-10.0"),
        ({"ostype": "win11", "meta": "creation-qemu=10.1.2,ctime=1"}, ""),
        ({"ostype": "win11", "machine": "q35"}, "pc-q35-10.0"),
    ],
)
def test_a_chain_needs_a_machine_that_the_next_start_has(
    machine: dict[str, str], newer: str
) -> None:
    found = disk(vm("scsi0", "chain:100/vm-100-disk-0.qcow2,discard=on", **machine))
    assert ("needs machine version 10.0" in texts(found)) is bool(newer)
    assert [line.split()[-1].strip("'") for line in found.commands] == ([newer] if newer else [])


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (vm("scsi0", "nfs:100/vm-100-disk-0.qcow2,discard=on"), "stops the VM for minutes"),
        (vm("scsi0", "lvm:vm-100-disk-0", parent="before"), "the newest is before"),
        (vm("scsi0", "lvm:vm-100-disk-0", agent="0"), "no guest agent"),
        (vm("scsi0", "lvm:vm-100-disk-0", scsihw="lsi"), "emulated controller lsi"),
        (vm("sata1", "lvm:vm-100-disk-0"), "emulated controller sata"),
        (vm("ide3", "lvm:vm-100-disk-0,snapshot=on"), "all writes are lost"),
        (
            vm("scsi0", "lvm:vm-100-disk-0", agent="fstrim_cloned_disks=1,enabled=0"),
            "no guest agent",
        ),
        (vm("scsi0", "lvm:vm-1-disk-0", agent="1,freeze-fs-on-backup=0"), "do not freeze"),
        (vm("scsi0", "lvm:vm-1-disk-0", agent="1,freeze-fs=off"), "freeze-fs=0: backups do not"),
        (vm("scsi0", "lvm:vm-1-disk-0", agent="guest-fsfreeze=0,enabled=1"), "do not freeze"),
        (vm("scsi0", "lvm:vm-100-disk-0", lock="backup"), "locked (backup): "),
        (vm("scsi0", "lvm:vm-100-disk-0", lock="migrate"), "`qm unlock 100` removes the lock"),
        (vm("scsi0", "lvm:vm-100-disk-0", lock="suspended"), "its start resumes it"),
        (vm("scsi0", "lvm:vm-100-disk-0", hookscript="gone:snippets/x"), "gone does not exist"),
        (vm("scsi0", "lvm:vm-100-disk-0", args="-drive file=/x"), "args passes options to QEMU"),
        (vm("scsi0", "gone:vm-100-disk-0"), "storage gone does not exist"),
        (vm("scsi0", "lvm:vm-100-disk-0", tpmstate0="gone:x"), "storage gone does not exist"),
        (vm("scsi0", "off:100/vm-100-disk-0.raw"), "storage off is disabled"),
        (vm("scsi0", "far:100/vm-100-disk-0.raw"), "storage far is not available on node lab"),
        (vm("scsi0", "zpool:vm-100-disk-0"), "discard is off on thin storage"),
        (vm("scsi0", "iscsi:vm-100-disk-0"), "discard is off on thin storage"),
    ],
)
def test_a_finding_is_stated(one: AuditedVm, text: str) -> None:
    assert text in texts(disk(one))


@pytest.mark.parametrize(
    "drive",
    [
        "thin:vm-100-disk-0,discard=on,iothread=1,size=32G,ssd=1",
        "thick:vm-100-disk-0",
        "lvm:vm-100-disk-0.qcow2",
        "full:100/vm-100-disk-0.qcow2",
        "/dev/disk/by-path/pci-0000:00:1f.2-ata-1",
    ],
)
def test_a_disk_as_proxmox_recommends_it_has_no_finding_and_no_command(drive: str) -> None:
    found = disk(vm("scsi0", drive, agent="fstrim_cloned_disks=1,enabled=1"))
    assert (texts(found), found.commands) == ("", ())


@pytest.mark.parametrize(
    ("pending", "text"),
    [
        ({"scsi0": "lvm:vm-100-disk-0,cache=unsafe"}, "pending change: cache=unsafe ignores"),
        ({"scsi0": "gone:vm-100-disk-0"}, "pending change: storage gone does not exist"),
        ({"agent": ""}, "pending change: no guest agent"),
        ({"sata1": "lvm:vm-100-disk-1,cache=unsafe"}, "pending change: cache=unsafe ignores"),
    ],
)
def test_what_a_pending_change_brings_is_stated(pending: dict[str, str], text: str) -> None:
    one = replace(vm("scsi0", "lvm:vm-100-disk-0"), pending=pending)
    assert text in "\n".join(audit_lines(cluster(one), audit(cluster(one), (), {})))


def test_what_concerns_the_vm_is_printed_once() -> None:
    config = {"scsihw": "lsi", "parent": "a", "machine": "pc-q35-9.2"}
    config |= dict.fromkeys(("scsi0", "scsi1", "virtio0"), "chain:1/vm-1-disk-0.qcow2,discard=on")
    one = AuditedVm(node="lab", vmid=1, name="web", config=config, pending={})
    text = "\n".join(audit_lines(cluster(one), audit(cluster(one), (), {})))
    counted = ("no guest agent", "the newest is a", "emulated controller lsi", "qm set 1 --machine")
    assert [text.count(part) for part in counted] == [1] * 4


def measured(**levels: float) -> View:
    noise = random.Random(1)
    names = {"default": "scsi.raw.none", "thread": "scsi.raw.none.iothread-1"}
    return view_of(
        (case(names[name], fsync=1), trend(level, noise, sd=0.01)) for name, level in levels.items()
    )


def test_a_slower_setting_gets_the_whole_line_that_changes_it() -> None:
    view = measured(default=700, thread=1000)
    one = vm("scsi0", "thin:vm-100-disk-0,backup=0,discard=on,serial=a b,size=32G")
    found = disk(one, view)
    assert found.exact
    assert found.gain is not None
    assert found.gain.ratio == pytest.approx(1 / 0.7 - 1, abs=0.05)
    assert found.commands == (
        "qm set 100 --scsi0 "
        "'thin:vm-100-disk-0,backup=0,discard=on,serial=a b,size=32G,iothread=1'",
    )
    lines = "\n".join(audit_lines(cluster(one, replace(one, vmid=101)), [found]))
    assert "- 1 VM with scsi, raw, cache none on thin, measured 30% slower here." in lines
    assert "- Measured with the same options, databases and mail: scsi, raw" in lines
    assert found.measured is not None
    assert found.advice is not None
    assert f"Run IDs: {ids_text(found.advice.chosen.runs)}; of the slower one: " in lines
    (row,) = audit_data(cluster(one), [found])["disks"]
    assert row["purpose"] == "database"
    assert row["best_runs"] == [*found.advice.chosen.runs]
    assert row["nearest_runs"] == [*found.measured.runs]
    assert len(row["best_runs"]) >= LEAST_RUNS


def measure_first() -> dict[str, View]:
    """Return results by which `advise` recommends nothing, or only to a simulation."""
    good = measured(default=700, thread=1000)
    period = replace(good.periods[0], facts={"accel": EMULATED})
    return {
        "emulated": replace(good, periods=(period,)),
        "simulated": replace(good, simulated=True),
    }


@pytest.mark.parametrize("kind", ["emulated", "simulated"])
def test_what_advise_does_not_recommend_is_no_advice_for_a_disk(kind: str) -> None:
    found = disk(vm("scsi0", "thin:vm-1-disk-0,discard=on,cache=none"), measure_first()[kind])
    assert (found.exact, found.gain, found.advice, found.commands) == (True, None, None, ())


def test_a_disk_whose_writes_stay_in_host_memory_is_compared_with_nothing() -> None:
    noise = random.Random(1)
    levels = {"scsi.raw.none": 700, "scsi.raw.none.iothread-1": 1000}
    view = view_of((case(slug), trend(level, noise, sd=0.01)) for slug, level in levels.items())
    found = disk(vm("scsi0", "thin:vm-1-disk-0,discard=on,cache=writeback"), view)
    assert (found.gain, found.advice, found.commands) == (None, None, ())


def test_an_unknown_difference_is_no_advice() -> None:
    found = disk(vm("scsi0", "thin:vm-100-disk-0,discard=on"), measured(default=1000, thread=1001))
    assert (found.gain, found.commands) == (None, ())
    assert (
        disk(vm("scsi0", "lvm:vm-100-disk-0"), measured(default=700, thread=1000)).measured is None
    )


@pytest.mark.parametrize(("storage", "known"), [("thin", False), ("nfs", True), ("san", True)])
def test_results_of_another_node_count_for_a_shared_storage_only(storage: str, known: bool) -> None:
    one = replace(vm("scsi0", f"{storage}:vm-100-disk-0,discard=on"), node="other")
    found = disk(one, measured(default=700, thread=1000))
    assert (found.measured is not None, found.gain is not None) == (known, known)


def test_results_of_the_same_node_are_better_than_those_of_another() -> None:
    noise = random.Random(1)
    levels = {"lab": (1, 900), "a": (2, 9000)}
    view = view_of(
        (replace(case(slug, fsync=sync), node=node), trend(value, noise, sd=0.01))
        for node, (sync, level) in levels.items()
        for slug, value in (("scsi.raw.none", 700), ("scsi.raw.none.iothread-1", level))
    )
    found = disk(vm("scsi0", "nfs:vm-100-disk-0,discard=on"), view)
    assert found.advice is not None
    assert found.advice.node == "lab"


@pytest.mark.parametrize(
    ("controller", "command"),
    [
        ("virtio-scsi-pci", "qm set 100 --scsihw virtio-scsi-single"),
        (
            "lsi",
            "# scsihw lsi -> virtio-scsi-single: needs the driver in the guest for all SCSI disks",
        ),
        ("megasas", "# scsihw megasas -> virtio-scsi-single: needs the driver in the guest "),
    ],
)
def test_a_guest_may_lack_the_driver_of_another_controller(controller: str, command: str) -> None:
    drive = "thin:vm-100-disk-0,discard=on,size=8G"
    found = disk(vm("scsi0", drive, scsihw=controller), measured(default=700, thread=1000))
    assert found.commands[0].startswith(command)
    runs = [line for line in found.commands if line.startswith("qm")]
    assert bool(runs) is (controller == "virtio-scsi-pci")


@pytest.mark.parametrize(
    ("pending", "commands"),
    [
        ((), ("qm set 100 --scsihw virtio-scsi-single", "qm set 100 --scsi0 {drive},iothread=1")),
        (("scsi0",), ("qm set 100 --scsihw virtio-scsi-single",)),
        (("scsihw",), ("qm set 100 --scsi0 {drive},iothread=1",)),
    ],
)
def test_no_command_discards_a_pending_change(
    pending: tuple[str, ...], commands: tuple[str, ...]
) -> None:
    drive = "thin:vm-100-disk-0,discard=on"
    one = replace(
        vm("scsi0", drive, scsihw="virtio-scsi-pci"), pending=dict.fromkeys(pending, drive)
    )
    expected = tuple(line.format(drive=drive) for line in commands)
    assert disk(one, measured(default=700, thread=1000)).commands == expected


def test_the_largest_gain_comes_first_then_what_risks_data() -> None:
    view = measured(default=700, thread=1000)
    slow = vm("scsi0", "thin:vm-100-disk-0,discard=on")
    plain = replace(vm("scsi0", "lvm:vm-99-disk-0"), vmid=99)
    unsafe = replace(vm("scsi0", "lvm:vm-101-disk-0,cache=unsafe"), vmid=101)
    found = audit(cluster(plain, unsafe, slow), recommendations(view), view.trends)
    assert [one.vm.vmid for one in found] == [100, 101, 99]


def test_text_of_a_guest_does_not_reach_the_terminal_raw() -> None:
    one = replace(vm("scsi0", "lvm:\x1b[2J,cache=unsafe"), name="a\x1b[31mb\nc")
    lines = list(audit_lines(cluster(one), [disk(one)]))
    assert not [line for line in lines if "\x1b" in line or "\n" in line]
