"""Chains, backups, moves and snapshots of our own VM, and what is left of them: nothing.

Witnesses: the sources that `pve.operations` names; the recordings `snap.create` (403 with the name
of the missing right), `mv.small` and `read.token.vzdump` (200; the refusal is in the task).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pve.server import RunningApi
from pve.site import MACHINE, QuickClock, Site, scenario
from pve.storage import Volumes
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from pvebench.config.settings import load_settings
from pvebench.drivers.proxmox.api.privileges import (
    OPERATION_PRIVILEGES,
    OPERATION_ROLE,
    vm_privileges,
)
from pvebench.drivers.proxmox.api.tasks import SEARCH_SECONDS, runs_task
from pvebench.drivers.proxmox.cluster import spaces
from pvebench.drivers.proxmox.node.node_activity import OperationGuard
from pvebench.drivers.proxmox.orphans import find_orphans, remove_orphan
from pvebench.drivers.proxmox.proxmox_settings import ClusterStorageSettings, ProxmoxSettings
from pvebench.drivers.proxmox.setup.checks import NodeChecks, needs_of
from pvebench.drivers.proxmox.vm import drive, hotplug, leftover_vms, vm_copies
from pvebench.drivers.proxmox.vm.description import mark_of
from pvebench.drivers.proxmox.vm.drive import OperationTargets, storage_kind
from pvebench.drivers.proxmox.vm.hotplug import unplug
from pvebench.drivers.proxmox.vm.operations_under_load import DiskOperation
from pvebench.drivers.proxmox.vm.vm_copies import KIND, expect_archive, notes
from pvebench.errors import (
    AccessDenied,
    Busy,
    HypervisorGone,
    NoSpace,
    NotOwned,
    OperationFailed,
    OutcomeUnknown,
)
from pvebench.model.disk import ChainKind, Format
from pvebench.model.rules import why_not, why_not_run
from pvebench.model.scenario import Scenario
from pvebench.model.storage_use import RESERVE_BYTES, SpaceNeed, unfit
from pvebench.model.units import GIB, MIB
from pvebench.model.volume import Volume
from pvebench.model.workload import COPIES, SNAPSHOT_OPERATIONS, Case, Workload
from testing.packs import tool_workload
from testing.prepared_cluster import api, config, findings, granted, init_of
from testing.real_outcomes import until
from testing.stores import TemporaryStore

__all__ = ["api", "config", "granted"]
Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

OPERATIONS = (*COPIES, *SNAPSHOT_OPERATIONS)
TARGETS = {"backup_storage": "local", "fleecing_storage": "thin", "move_storage": "thin"}
CHAINS = [
    ("local", Format.QCOW2, ChainKind.INTERNAL),
    ("thin", Format.RAW, ChainKind.STORAGE),
    ("share", Format.QCOW2, ChainKind.VOLUME),
]


def attach(site: Site, asked: Scenario | None = None) -> Volume:
    return site.plug(asked or scenario(kind=Format.QCOW2))


def operate(site: Site, name: str, rate: int = 0) -> DiskOperation:
    one = site.node.operate(name, rate)
    one.prepare()
    one.begin()
    return one


def kinds(site: Site) -> list[str]:
    return [kind for _, kind, _ in site.store.journal.pending()]


def workload(during: str, **options: object) -> Workload:
    job = {"rw": "randwrite", "bs": "4k", "during": during, **options}
    return tool_workload("fio", job, ramp_seconds=1, runtime_seconds=30)


# --- chains


@pytest.mark.parametrize(("storage", "kind", "place"), CHAINS)
def test_a_chain_is_snapshots_of_the_vm_and_is_read_back(
    allowed: Site, storage: str, kind: Format, place: ChainKind
) -> None:
    asked = scenario(kind=kind, storage=storage, chain=3, chain_kind=place)
    volume = allowed.node.volume(asked)[0]
    allowed.node.take_snapshots(volume, asked.disk)
    assert len(allowed.cluster.snapshots(allowed.node.vmid)) == 3
    allowed.node.boot(MACHINE)
    seen = allowed.node.attach(volume, asked.disk).effective
    assert (seen["chain"], seen["chain_kind"]) == ("3", str(place))
    allowed.node.shutdown()
    assert (allowed.cluster.vms, allowed.cluster.volumes.owned(9000)) == ({}, [])


def test_what_was_written_since_the_newest_snapshot_is_removed(allowed: Site) -> None:
    asked = scenario(storage="thin", chain=2, chain_kind=ChainKind.STORAGE)
    volume = allowed.node.volume(asked)[0]
    path = allowed.cluster.volumes.path(volume.volid)
    for content in (b"\1", b"\2"):
        with path.open("r+b") as file:
            file.write(content)
        allowed.node.take_snapshots(volume, asked.disk)
    assert path.read_bytes()[:1] == b"\1"
    assert len(allowed.cluster.snapshots(allowed.node.vmid)) == 2


def test_a_snapshot_that_is_gone_shows_in_the_depth(allowed: Site) -> None:
    asked = scenario(storage="thin", chain=2, chain_kind=ChainKind.STORAGE)
    volume = allowed.node.volume(asked)[0]
    allowed.node.take_snapshots(volume, asked.disk)
    allowed.cluster.snapshots(allowed.node.vmid).popitem()
    allowed.node.boot(MACHINE)
    assert allowed.node.attach(volume, asked.disk).effective["chain"] == "1"


def test_a_volume_is_freed_with_its_snapshots_only(allowed: Site) -> None:
    one, other = (
        scenario(storage="thin", chain=depth, chain_kind=ChainKind.STORAGE) for depth in (1, 2)
    )
    volume = allowed.node.volume(one)[0]
    allowed.node.take_snapshots(volume, one.disk)
    allowed.node.take_snapshots(allowed.node.volume(other)[0], other.disk)
    larger = scenario(
        storage="thin", chain=1, chain_kind=ChainKind.STORAGE, size=2 * one.volume_bytes
    )
    assert allowed.node.volume(larger)[1]
    assert volume.volid not in allowed.cluster.vms[9000].config.values()
    assert len(allowed.cluster.snapshots(9000)) == 2


def test_without_the_right_the_error_names_it(site: Site) -> None:
    asked = scenario(storage="thin", chain=1, chain_kind=ChainKind.STORAGE)
    with pytest.raises(AccessDenied, match=r"VM\.Snapshot"):
        site.node.take_snapshots(site.node.volume(asked)[0], asked.disk)


def test_a_lost_answer_to_a_snapshot_is_looked_for(allowed: Site) -> None:
    asked = scenario(storage="thin", chain=2, chain_kind=ChainKind.STORAGE)
    volume = allowed.node.volume(asked)[0]
    allowed.faults.add("drop_after", "POST", "/snapshot")
    allowed.node.take_snapshots(volume, asked.disk)
    assert len(allowed.cluster.snapshots(allowed.node.vmid)) == 2


def test_a_vm_with_snapshots_is_not_kept(allowed: Site) -> None:
    node = allowed.node = allowed.driver("pve1", keep=True)
    asked = scenario(storage="thin", chain=1, chain_kind=ChainKind.STORAGE)
    volume = attach(allowed, asked)
    node.note(volume, "data")
    node.take_snapshots(volume, asked.disk)
    node.shutdown()
    assert allowed.cluster.vms == {}


# --- operations


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_ends_and_leaves_the_volume_alone(allowed: Site, name: str) -> None:
    volume = attach(allowed)
    one = operate(allowed, name)
    until(lambda: one.look().ended)
    copied = volume.size_bytes if name in COPIES else 0
    assert one.look().bytes == copied
    allowed.node.detach()
    cluster, vmid = allowed.cluster, allowed.node.vmid
    assert cluster.volumes.owned(vmid) == [volume.volid]
    assert (cluster.snapshots(vmid), cluster.volumes.archives(vmid)) == ({}, [])
    assert kinds(allowed) == ["proxmox-vm"]
    allowed.node.attach(volume, scenario(kind=Format.QCOW2).disk)


def test_a_snapshot_with_memory_has_a_volume_for_it(allowed: Site) -> None:
    """`__snapshot_save_vmstate` in PVE/QemuConfig.pm, on the storage of the VM's disk."""
    attach(allowed)
    operate(allowed, "snapshot").cancel()
    assert allowed.cluster.states == []
    operate(allowed, "snapshot-ram").cancel()
    memory = int(allowed.cluster.vms[allowed.node.vmid].config["memory"])
    assert allowed.cluster.states == [("local", (2 * memory + 500) * MIB)]


def test_an_operation_on_a_chain_leaves_the_chain(allowed: Site) -> None:
    asked = scenario(storage="local", kind=Format.QCOW2, chain=2, chain_kind=ChainKind.INTERNAL)
    volume = allowed.node.volume(asked)[0]
    allowed.node.take_snapshots(volume, asked.disk)
    for name in ("snapshot", "delete-snapshot", "move"):
        attach(allowed, asked)
        one = operate(allowed, name)
        until(lambda one=one: one.look().ended)  # type: ignore[misc] # mypy cannot infer it
        allowed.node.detach()
    assert len(allowed.cluster.snapshots(allowed.node.vmid)) == 2
    assert allowed.cluster.volumes.owned(allowed.node.vmid) == [volume.volid]


def test_a_backup_keeps_older_ones_and_no_other_disk_option_changes(allowed: Site) -> None:
    attach(allowed)
    one = operate(allowed, "backup-fleecing")
    until(lambda: bool(allowed.cluster.backups))
    (sent,) = allowed.cluster.backups
    assert (sent["remove"], sent["mode"]) == ("0", "snapshot")
    assert sent["fleecing"] == "enabled=1,storage=thin"
    assert not {"bwlimit", "prune-backups", "prune_backups", "performance"} & set(sent)
    one.cancel()


def test_a_snapshot_that_blocks_qemus_monitor_is_a_pause_without_io(
    allowed: Site, monkeypatch: Patch
) -> None:
    """Without an answer from QEMU, `vmstatus` in PVE/QemuServer.pm has its status only."""
    attach(allowed)
    allowed.cluster.seconds = 1.0
    one = allowed.node.operate("delete-snapshot", 0)
    one.prepare()
    before = one.look()
    vm = allowed.node.vm
    assert vm is not None
    whole = vm.status
    silent = {"status": "running", "qmpstatus": "running"}
    monkeypatch.setattr(vm, "status", lambda: silent)
    with pytest.raises(HypervisorGone):
        one.look()  # nothing explains it yet
    with pytest.raises(HypervisorGone):
        allowed.node.counters()
    one.begin()
    assert one.look() == before
    assert allowed.node.counters() is None  # as the window ends during the snapshot
    until(lambda: allowed.cluster.snapshots(vm.vmid) == {})
    monkeypatch.setattr(vm, "status", whole)
    until(lambda: one.look().ended)


def test_a_monitor_that_does_not_answer_during_a_copy_is_no_pause(
    allowed: Site, monkeypatch: Patch
) -> None:
    attach(allowed)
    allowed.cluster.seconds = 5.0
    one = operate(allowed, "move")
    assert one.look().is_read
    vm = allowed.node.vm
    monkeypatch.setattr(vm, "status", lambda: {"status": "running", "qmpstatus": "running"})
    assert not one.look().is_read


def test_a_snapshot_operation_that_fails_after_the_window_is_a_failure(allowed: Site) -> None:
    attach(allowed)
    allowed.cluster.tasks.doomed["qmdelsnapshot"] = "block-commit: I/O error"
    one = operate(allowed, "delete-snapshot")
    with pytest.raises(OperationFailed, match="block-commit: I/O error"):
        one.cancel()


@pytest.mark.parametrize("name", ["backup", "move"])
def test_a_detach_ends_what_others_could_see_of_an_operation(allowed: Site, name: str) -> None:
    """A job of all VMs would archive a disk with backup=1, and a copy needs space."""
    attach(allowed)
    one = operate(allowed, name)
    until(lambda: one.look().ended)
    one.cancel()
    allowed.node.detach()
    assert "backup=1" not in str(allowed.cluster.vms[9000].config)
    assert len(allowed.cluster.volumes.owned(9000)) == 1


def test_a_restore_is_a_second_vm_that_never_starts(allowed: Site) -> None:
    attach(allowed)
    allowed.cluster.seconds = 1.0
    one = operate(allowed, "restore")
    (second,) = [vm for vm in allowed.cluster.vms.values() if vm.vmid != allowed.node.vmid]
    assert second.vmid in allowed.cluster.pools["bench"]
    until(lambda: one.look().ended)
    assert len(allowed.cluster.volumes.owned(second.vmid)) == 1
    assert not second.running
    assert mark_of(second.config) not in ("", mark_of(allowed.cluster.vms[9000].config))
    one.cancel()
    assert set(allowed.cluster.vms) == {allowed.node.vmid}
    assert allowed.cluster.volumes.owned(second.vmid) == []


def test_a_restore_overwrites_no_vm_of_others(allowed: Site) -> None:
    attach(allowed)
    one = allowed.node.operate("restore", 0)
    one.prepare()
    (second,) = [vm for vm in allowed.cluster.vms.values() if vm.vmid != allowed.node.vmid]
    second.config["description"] = "made again by an administrator"
    with pytest.raises(NotOwned):
        one.begin()
    one.cancel()
    assert second.vmid in allowed.cluster.vms
    assert kinds(allowed) == ["proxmox-vm", "proxmox-vm"]  # the next cleanup reports it


def test_a_restore_that_is_stopped_leaves_nothing(allowed: Site) -> None:
    attach(allowed)
    one = allowed.node.operate("restore", 0)
    one.prepare()
    allowed.cluster.seconds = 30.0
    one.begin()
    one.cancel()
    assert set(allowed.cluster.vms) == {allowed.node.vmid}
    assert allowed.cluster.volumes.archives(allowed.node.vmid) == []
    assert kinds(allowed) == ["proxmox-vm"]


def test_a_restore_that_fails_says_why_and_leaves_nothing(allowed: Site) -> None:
    attach(allowed)
    one = allowed.node.operate("restore", 0)
    one.prepare()
    allowed.cluster.tasks.doomed["qmrestore"] = "vma: unexpected end of file"
    one.begin()
    with pytest.raises(OperationFailed, match="unexpected end of file"):
        until(lambda: one.look().ended)
    for vm in allowed.cluster.vms.values():
        vm.config.pop("lock", None)  # removed by the worker that failed
    one.cancel()
    assert set(allowed.cluster.vms) == {allowed.node.vmid}


def test_a_restore_that_runs_at_a_crash_is_removed_once_it_has_ended(
    allowed: Site, monkeypatch: Patch
) -> None:
    """Its VM has an empty configuration without marker for as long as it runs."""
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 1.0)
    monkeypatch.setattr(vm_copies, "SEARCH_SECONDS", 1.0)
    attach(allowed)
    one = allowed.node.operate("restore", 0)
    one.prepare()
    allowed.cluster.seconds = 8.0
    one.begin()
    until(lambda: EMPTY in [vm.config for vm in allowed.cluster.vms.values()])
    lines = allowed.undo()
    assert any("could not remove VM 9001 yet: VM 9001 is still restored" in line for line in lines)
    until(lambda: all(mark_of(vm.config) for vm in allowed.cluster.vms.values()))
    allowed.undo()
    assert (allowed.cluster.vms, kinds(allowed)) == ({}, [])


EMPTY = {"memory": "128"}


def restored_in_vain(site: Site, monkeypatch: Patch) -> int:
    """Crash beside a restore that fails after its start; return the ID of its VM."""
    monkeypatch.setattr(leftover_vms, "_BIRTH_SECONDS", 1.0)
    monkeypatch.setattr(vm_copies, "SEARCH_SECONDS", 1.0)
    attach(site)
    one = site.node.operate("restore", 0)
    one.prepare()
    site.cluster.seconds = 8.0
    upid = one.begin()
    (second,) = [vm for vm in site.cluster.vms.values() if vm.vmid != site.node.vmid]
    until(lambda: second.config == EMPTY)
    for task in site.connect().get("/nodes/pve1/tasks", source="active", typefilter="qmrestore"):
        site.connect().delete(f"/nodes/pve1/tasks/{task['upid']}")
    until(lambda: not runs_task(site.connect(), "pve1", "qmrestore"))
    assert second.config == EMPTY, upid
    return second.vmid


def test_the_empty_vm_of_a_restore_that_failed_at_a_crash_is_removed(
    allowed: Site, monkeypatch: Patch
) -> None:
    restored_in_vain(allowed, monkeypatch)
    lines = allowed.undo()
    assert (allowed.cluster.vms, kinds(allowed)) == ({}, []), lines


@pytest.mark.parametrize("what", ["content", "later task", "another user", "another pool"])
def test_a_vm_that_only_looks_like_one_of_a_restore_is_not_changed(
    allowed: Site, monkeypatch: Patch, what: str
) -> None:
    vmid = restored_in_vain(allowed, monkeypatch)
    vm, tasks = allowed.cluster.vms[vmid], allowed.cluster.tasks
    if what == "content":
        vm.config["name"] = "precious"
    elif what == "later task":
        tasks.run("pve1", "qmcreate", str(vmid), "root@pam", lambda _: None)
    elif what == "another user":
        tasks.run("pve1", "qmrestore", str(vmid), "root@pam", lambda _: None)
    else:
        allowed.cluster.pools["bench"].remove(vmid)
        subjects = ("pvebench@pve", "pvebench@pve!bench")
        own = [(f"/vms/{vmid}", subject, "StorageBenchVM") for subject in subjects]
        allowed.cluster.access.acl += own  # the pool is its own proof, beside the rights
    before = dict(vm.config)
    allowed.undo()
    assert allowed.cluster.vms == {vmid: vm}
    assert vm.config == before


def test_the_vm_of_a_restore_that_the_token_does_not_see_is_reported_until_it_is_gone(
    allowed: Site, monkeypatch: Patch
) -> None:
    vmid = restored_in_vain(allowed, monkeypatch)
    allowed.cluster.pools["bench"].remove(vmid)
    for _ in range(2):
        lines = allowed.undo()
        (line,) = [line for line in lines if f"VM {vmid}" in line]
        assert "is not visible after a restore by pvebench" in line
        assert f"run `qm destroy {vmid}`" in line
        assert allowed.cluster.vms[vmid].config == EMPTY
        assert kinds(allowed) == ["proxmox-vm"]
    del allowed.cluster.vms[vmid]
    lines = allowed.undo()
    assert (lines, kinds(allowed)) == ([f"VM {vmid} already gone"], [])


def test_a_disk_that_takes_the_slot_of_a_moved_one_during_the_unplug_stays(
    allowed: Site, monkeypatch: Patch
) -> None:
    attach(allowed)
    one = operate(allowed, "move")
    until(lambda: one.look().ended)
    one.cancel()
    vm, config = allowed.node.vm, allowed.cluster.vms[9000].config
    assert vm is not None
    (slot,) = drive.test_slots(config)
    theirs = allowed.cluster.volumes.allocate("local", 9000, "vm-9000-disk-7.raw", MIB, "raw")

    def judge(drive: str, vmid: int) -> bool:
        config[slot] = theirs
        vm._seen = None  # its time is over
        return True

    monkeypatch.setattr(hotplug, "is_moved", judge)
    with pytest.raises(Busy):
        unplug(vm, slot)
    assert config[slot] == theirs
    assert theirs in allowed.cluster.volumes.owned(9000)


def test_a_volume_of_the_vm_of_a_restore_is_named_too(allowed: Site, capsys: Captured) -> None:
    attach(allowed)
    one = operate(allowed, "restore")
    volumes = allowed.cluster.volumes_on["pve1"]
    left = volumes.allocate("thin", 9001, "vm-9001-disk-7", 4 * MIB, "raw")
    one.cancel()
    assert left in "".join(capsys.readouterr())
    assert (list(allowed.cluster.vms), volumes.owned(9001)) == ([9000], [left])


def test_an_archive_without_notes_is_removed_if_the_log_of_the_own_task_names_it(
    allowed: Site, monkeypatch: Patch
) -> None:
    """Witness: `exec_backup_task` in PVE/VZDump.pm renames first; missing notes are a warning."""
    attach(allowed)
    keep, volumes = Volumes.keep_backup, allowed.cluster.volumes
    monkeypatch.setattr(Volumes, "keep_backup", lambda *call: keep(*call[:-1], ""))
    one = operate(allowed, "backup")
    until(lambda: one.look().ended)
    for user in ("admin", "root"):  # one without a task in the list, one with
        theirs = volumes.keep_backup("local", 9000, f"by-{user}.vma.zst", 1, "")
    task = allowed.cluster.tasks.foreign("pve1", "vzdump", "9000")
    task.log.append("INFO: creating vzdump archive '/x/dump/by-root.vma.zst'")
    task.end = "OK"
    assert len(volumes.archives(9000)) == 3
    allowed.node.detach()
    left = ["local:backup/by-admin.vma.zst", theirs]
    assert (sorted(volumes.archives(9000)), kinds(allowed)) == (left, ["proxmox-vm"])


def test_the_backups_of_a_vm_with_a_lost_journal_are_removed_with_it(
    allowed: Site, tmp_path: Path
) -> None:
    attach(allowed)
    volumes = allowed.cluster.volumes
    theirs = volumes.keep_backup("local", 9000, "by-hand.vma.zst", 1, "by an admin")
    one = operate(allowed, "backup")
    until(lambda: one.look().ended)
    api = allowed.connect()
    (orphan,) = find_orphans(api, pool="bench", known={})
    journal = TemporaryStore(tmp_path / "other.db", simulated=False).journal
    line = remove_orphan(allowed.access(journal=journal), orphan)
    assert line == "removed VM 9000 on pve1 with its volumes and 1 of its backups"
    assert (allowed.cluster.vms, volumes.archives(9000)) == ({}, [theirs])


def test_backups_of_others_stay(allowed: Site) -> None:
    attach(allowed)
    vmid = allowed.node.vmid
    theirs = allowed.cluster.volumes.keep_backup("local", vmid, "by-hand.vma.zst", 1, "by an admin")
    one = operate(allowed, "backup")
    until(lambda: one.look().ended)
    assert len(allowed.cluster.volumes.archives(vmid)) == 2
    one.cancel()
    assert allowed.cluster.volumes.archives(vmid) == [theirs]


@pytest.mark.parametrize("name", ["backup", "move"])
def test_a_copy_that_does_not_end_is_stopped(allowed: Site, name: str) -> None:
    volume = attach(allowed)
    allowed.cluster.seconds = 60.0
    one = operate(allowed, name)
    assert not one.look().ended
    one.cancel()
    vm = allowed.cluster.vms[allowed.node.vmid]
    assert "lock" not in vm.config
    assert allowed.cluster.volumes.owned(vm.vmid) == [volume.volid]
    assert allowed.cluster.volumes.archives(vm.vmid) == []


def test_a_move_is_limited_by_the_settings_or_by_the_workload(allowed: Site) -> None:
    allowed.node.targets = OperationTargets(move_storage="thin", move_rate=8 << 20)
    for rate, sent in ((0, "8192"), (1 << 20, "1024")):
        attach(allowed)
        one = operate(allowed, "move", rate)
        until(lambda one=one: one.look().ended)  # type: ignore[misc] # mypy cannot infer it
        allowed.node.detach()
        assert allowed.cluster.moves[-1]["bwlimit"] == sent


def test_a_moved_disk_is_freed_with_a_vm_that_a_crash_left(allowed: Site) -> None:
    attach(allowed)
    one = operate(allowed, "move")
    until(lambda: one.look().ended)
    lines = allowed.undo()
    assert lines == ["removed VM 9000 with its volumes"]
    assert allowed.cluster.volumes.owned(9000) == []


def test_a_disk_without_our_serial_number_is_no_moved_one(allowed: Site) -> None:
    attach(allowed)
    vm = allowed.cluster.vms[allowed.node.vmid]
    disk = allowed.cluster.volumes.allocate("thin", vm.vmid, "vm-9000-disk-0", 1 << 20, "raw")
    vm.config["scsi5"] = f"{disk},serial=pvebenchmark"
    allowed.clock.skip(6)
    with pytest.raises(NotOwned, match="not created by pvebench"):
        allowed.node.boot(MACHINE.__class__(memory_bytes=256 << 20, cpus=1))
    assert allowed.cluster.volumes.path(disk).exists()


def test_a_backup_that_runs_at_a_crash_is_removed_before_its_vm(allowed: Site) -> None:
    attach(allowed)
    operate(allowed, "backup")
    until(lambda: bool(allowed.cluster.backups))
    lines = allowed.undo()
    assert lines == ["removed 1 backups of VM 9000 on local", "removed VM 9000 with its volumes"]
    assert allowed.cluster.volumes.archives(9000) == []
    assert kinds(allowed) == []


class Waits(QuickClock):
    """Only waits take time; `third` is called in the third one."""

    def __init__(self, third: Callable[[], None] = lambda: None) -> None:
        self.third = third
        self.count = 0
        self.waited = 0.0

    def monotonic(self) -> float:
        return self.waited

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waited += seconds
        self.count += 1
        if self.count == 3:
            self.third()


def test_a_backup_whose_request_was_on_its_way_at_a_crash_is_removed(allowed: Site) -> None:
    """The node's task appears in its list only after the restart."""
    attach(allowed)
    one = operate(allowed, "backup")  # an earlier one, whose task is known
    until(lambda: one.look().ended)
    one.cancel()
    vm, api = allowed.node.vm, allowed.connect()
    assert vm is not None
    expect_archive(vm, "local")

    def arrive() -> None:
        sent = {"vmid": vm.vmid, "storage": "local", "mode": "snapshot", "compress": "zstd"}
        api.post("/nodes/pve1/vzdump", **sent, remove=0, **{"notes-template": notes(vm.mark)})
        until(lambda: len(allowed.cluster.backups) == 2)

    lines = allowed.undo(Waits(arrive))
    assert lines == ["removed 1 backups of VM 9000 on local", "removed VM 9000 with its volumes"]
    assert allowed.cluster.volumes.archives(9000) == []


def test_a_backup_that_was_never_requested_is_awaited_as_long_as_a_task(allowed: Site) -> None:
    attach(allowed)
    assert allowed.node.vm is not None
    clock = Waits()
    expect_archive(allowed.node.vm, "local")
    lines = allowed.undo(clock)
    assert lines[0] == "removed 0 backups of VM 9000 on local"
    assert SEARCH_SECONDS <= clock.waited < SEARCH_SECONDS + 60
    assert kinds(allowed) == []


def test_a_backup_on_a_storage_that_is_offline_blocks_nothing_and_is_removed_later(
    allowed: Site,
) -> None:
    volume = attach(allowed)
    one = operate(allowed, "backup")
    until(lambda: one.look().ended)
    # Text of `activate_storage` in PVE/Storage.pm.
    offline = "storage 'local' is not online"
    allowed.faults.add("status", "GET", "/storage/local/content", times=9, text=offline)
    allowed.node.detach()
    allowed.node.attach(volume, scenario(kind=Format.QCOW2).disk)
    assert kinds(allowed) == [KIND, "proxmox-vm"]
    allowed.faults.active.clear()
    allowed.clock.skip(601)
    allowed.node.boot(MACHINE)
    assert allowed.cluster.volumes.archives(allowed.node.vmid) == []
    assert kinds(allowed) == ["proxmox-vm"]


def test_a_backup_on_a_storage_that_is_gone_does_not_keep_the_vm(allowed: Site) -> None:
    attach(allowed)
    operate(allowed, "backup")
    until(lambda: bool(allowed.cluster.backups))
    _, _, details = next(one for one in allowed.store.journal.pending() if one[1] == KIND)
    allowed.store.journal.open(KIND, {**details, "storage": "deleted"})
    lines = allowed.undo()
    assert "on deleted of VM 9000 not checked: the storage is gone" in lines[0]
    assert notes(details["mark"]) in lines[0]
    assert lines[1:] == [
        "removed 1 backups of VM 9000 on local",
        "removed VM 9000 with its volumes",
    ]
    assert kinds(allowed) == ["remains"]


def test_a_backup_that_waits_for_another_one_keeps_its_record(allowed: Site) -> None:
    """Until it has the node's lock, it does not lock its VM (`exec_backup` in PVE/VZDump.pm)."""
    attach(allowed)
    allowed.faults.add("drop_before", "POST", "/vzdump")
    with pytest.raises(OutcomeUnknown):
        operate(allowed, "backup")
    waiting = allowed.cluster.tasks.foreign("pve1", "vzdump", str(allowed.node.vmid))
    allowed.node.detach()
    assert kinds(allowed) == [KIND, "proxmox-vm"]
    waiting.end = "OK"
    allowed.cluster.tasks.foreign("pve1", "vzdump", "100")
    allowed.clock.skip(601)
    allowed.node.boot(MACHINE)
    assert kinds(allowed) == ["proxmox-vm"]


def test_backups_of_a_vm_that_is_gone_are_named(allowed: Site) -> None:
    details = {"node": "pve1", "vmid": "9000", "storage": "local", "mark": "0" * 32}
    allowed.store.journal.open(KIND, details)
    (line,) = allowed.undo()
    assert "backups on local of VM 9000 not checked: the VM is gone" in line
    assert notes("0" * 32) in line
    assert kinds(allowed) == ["remains"]


def test_a_stop_during_a_backup_ends_it(allowed: Site) -> None:
    attach(allowed)
    allowed.cluster.seconds = 60.0
    operate(allowed, "backup")
    until(lambda: bool(allowed.cluster.backups))
    allowed.node.shutdown()
    assert (allowed.cluster.vms, kinds(allowed)) == ({}, [])


def test_no_backup_begins_while_another_one_runs(allowed: Site) -> None:
    attach(allowed)
    allowed.cluster.tasks.foreign("pve1", "vzdump", "100")
    with pytest.raises(Busy, match="another backup runs on pve1"):
        operate(allowed, "backup")
    assert kinds(allowed) == ["proxmox-vm"]


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        ("backup", "local"),
        ("backup-fleecing", "thin"),
        ("move", "thin"),
        ("snapshot", "local"),
        ("snapshot-ram", "local"),
        ("delete-snapshot", "local"),
    ],
)
def test_a_copy_that_does_not_fit_is_not_begun(allowed: Site, name: str, storage: str) -> None:
    attach(allowed)
    allowed.cluster.storages[storage].avail = 1 << 20
    with pytest.raises(NoSpace, match=f"storage {storage}"):
        operate(allowed, name)
    assert allowed.cluster.snapshots(allowed.node.vmid) == {}


def test_a_backup_and_its_fleecing_image_on_one_storage_need_space_for_both(allowed: Site) -> None:
    allowed.node.targets = OperationTargets(backup_storage="thin", fleecing_storage="thin")
    size = attach(allowed).size_bytes
    allowed.cluster.storages["thin"].avail = RESERVE_BYTES + 2 * size - 1
    allowed.node.operate("backup", 0).prepare()
    with pytest.raises(NoSpace, match="storage thin"):
        allowed.node.operate("backup-fleecing", 0).prepare()
    allowed.cluster.storages["thin"].avail += 1
    allowed.node.operate("backup-fleecing", 0).prepare()


def test_the_check_adds_what_one_operation_needs_on_one_storage() -> None:
    targets = dict.fromkeys(TARGETS, "fast")
    cluster = ProxmoxSettings.model_validate({**SETTINGS, "operations": targets})
    one = scenario(kind=Format.QCOW2)
    both, size = frozenset({"backup", "images"}), one.volume_bytes
    for name, copies in (
        ("backup", 1),
        ("backup-fleecing", 2),
        ("restore", 1),
        ("move", 1),
        ("snapshot", 0),
    ):
        cases = [Case(scenario=one, workload=workload(name))]
        assert needs_of(cluster, cases).operations == {"fast": (both, copies * size)}


def test_the_check_counts_the_space_of_the_snapshots_of_operations() -> None:
    cluster = ProxmoxSettings.model_validate({**SETTINGS, "operations": {}})
    one = scenario(kind=Format.QCOW2)
    sizes = {
        name: needs_of(cluster, [Case(scenario=one, workload=workload(name))]).volumes
        for name in ("", "move", "snapshot", "snapshot-ram", "delete-snapshot")
    }
    once, twice = {"local": one.volume_bytes}, {"local": 2 * one.volume_bytes}
    memory = {"local": twice["local"] + 2 * one.machine.memory_bytes + 500 * MIB}
    assert sizes == {
        "": once,
        "move": once,
        "snapshot": twice,
        "snapshot-ram": memory,
        "delete-snapshot": twice,
    }


def test_a_backup_without_the_right_fails_with_the_tasks_log(site: Site) -> None:
    site.cluster.storages["local"].content = "images,iso,backup"
    site.node.targets = OperationTargets(backup_storage="local")
    attach(site)
    one = operate(site, "backup")
    with pytest.raises(OperationFailed, match="job errors") as caught:
        until(lambda: one.look().ended)
    assert "Permission check failed" in caught.value.evidence


@pytest.mark.parametrize("name", ["backup", "move", "snapshot"])
def test_an_answer_that_is_lost_is_looked_for(allowed: Site, name: str) -> None:
    attach(allowed)
    path = {"backup": "/vzdump", "move": "/move_disk", "snapshot": "/snapshot"}[name]
    allowed.faults.add("drop_after", "POST", path)
    one = operate(allowed, name)
    until(lambda: one.look().ended)
    allowed.node.detach()
    assert len(allowed.cluster.volumes.owned(allowed.node.vmid)) == 1
    assert kinds(allowed) == ["proxmox-vm"]


def test_a_request_that_never_arrived_begins_nothing(allowed: Site) -> None:
    attach(allowed)
    allowed.faults.add("drop_before", "POST", "/vzdump")
    with pytest.raises(OutcomeUnknown):
        operate(allowed, "backup")
    allowed.node.detach()
    assert (allowed.cluster.backups, kinds(allowed)) == ([], ["proxmox-vm"])


# --- limits


def test_backups_and_moves_are_limited_by_the_nodes_own_history(allowed: Site) -> None:
    attach(allowed)
    user = str(allowed.token)
    guard = OperationGuard(allowed.connect(), "pve1", user, per_day=1)
    cases = {name: Case(scenario=scenario(), workload=workload(name)) for name in OPERATIONS}
    allowed.cluster.tasks.foreign("pve1", "vzdump", "9000").end = "OK"
    assert all(guard.enter(case) is None for case in cases.values())
    operate(allowed, "backup").cancel()
    later = OperationGuard(
        allowed.connect(), "pve1", user, per_day=1, now=lambda: time.time() + 86401
    )
    held = {name: guard.enter(case) for name, case in cases.items()}
    assert [name for name, hold in held.items() if hold] == ["backup", "backup-fleecing", "restore"]
    hold = held["backup"]
    assert hold is not None
    assert hold.skip
    assert "operations.per_day allows 1; the next one in 24.0 h" in hold.reason
    assert later.enter(cases["backup"]) is None


def test_a_node_that_does_not_answer_holds_the_operation(allowed: Site) -> None:
    allowed.cluster.all_nodes["pve1"].online = False
    guard = OperationGuard(allowed.connect(), "pve1", str(allowed.token), per_day=1)
    hold = guard.enter(Case(scenario=scenario(), workload=workload("move")))
    assert hold is not None
    assert hold.skip


SETTINGS = {"host": "pve1", "storages": {"local": {"type": "dir"}}}
FULL = {"backup_storage": "pbs1", "fleecing_storage": "fast", "move_storage": "fast"}


@pytest.mark.parametrize(
    ("operations", "during", "reason"),
    [
        (None, "backup", "requires the section proxmox.operations"),
        ({}, "backup", "requires proxmox.operations.backup_storage"),
        ({"fleecing_storage": "fast"}, "backup-fleecing", "requires proxmox.operations.fleecing"),
        ({}, "move", "requires proxmox.operations.move_storage"),
        ({"move_storage": "local"}, "move", "is the storage of the volume itself"),
        ({**FULL, "max_size": "32M"}, "backup", "larger than max_size of operations, 32M"),
        (FULL, "backup", None),
        (FULL, "snapshot", None),
        (FULL, "neighbor", None),
        (None, "neighbor", None),
    ],
)
def test_the_plan_says_what_an_operation_lacks(
    operations: dict[str, str] | None, during: str, reason: str | None
) -> None:
    cluster = ProxmoxSettings.model_validate({**SETTINGS, "operations": operations})
    kind = cluster.kind_of(cluster.storages["local"])
    reason_given = why_not_run(scenario(kind=Format.QCOW2), workload(during), kind)
    assert reason_given == reason or (reason and reason in (reason_given or ""))


def test_the_plan_says_that_only_moves_can_be_limited() -> None:
    cluster = ProxmoxSettings.model_validate({**SETTINGS, "operations": FULL})
    kind = cluster.kind_of(cluster.storages["local"])
    reasons = {
        name: why_not_run(scenario(), workload(name, target_rate="1M"), kind)
        for name in ("backup", "move")
    }
    assert reasons == {
        "backup": "pvebench cannot limit the target of a backup on this storage",
        "move": None,
    }


@pytest.mark.parametrize(
    ("storage", "version", "machine", "possible"),
    [
        ({"type": "dir"}, 8, "", {"internal"}),
        ({"type": "dir", "snapshot_as_volume_chain": True}, 9, "", {"volume"}),
        ({"type": "lvm", "snapshot_as_volume_chain": True}, 9, "q35", {"volume"}),
        ({"type": "lvm", "snapshot_as_volume_chain": True}, 9, "pc-q35-10.1+pve0", {"volume"}),
        ({"type": "lvm", "snapshot_as_volume_chain": True}, 9, "pc-q35-9.2+pve1", set()),
        ({"type": "dir", "snapshot_as_volume_chain": True}, 8, "", set()),
        ({"type": "lvm"}, 9, "", set()),
        ({"type": "zfspool"}, 9, "", {"storage"}),
        ({"type": "lvmthin"}, 8, "", {"storage"}),
        ({"type": "rbd"}, 9, "", {"storage"}),
        ({"type": "zfs"}, 9, "", set()),
    ],
)
def test_the_kinds_of_chains_are_those_of_storage_version_and_machine(
    storage: dict[str, object], version: int, machine: str, possible: set[str]
) -> None:
    cluster = ProxmoxSettings.model_validate(
        {"host": "h", "storages": {"one": storage}, "operations": {}, "version": version}
        | {"machine": machine}
    )
    assert cluster.kind_of(cluster.storages["one"]).chains == possible


def test_an_old_machine_type_is_the_reason_for_no_chain() -> None:
    entry = {"type": "dir", "snapshot_as_volume_chain": True}
    cluster = ProxmoxSettings.model_validate(
        {"host": "h", "storages": {"one": entry}, "operations": {}, "machine": "pc-i440fx-9.2"}
    )
    reason_given = why_not(
        scenario(kind=Format.QCOW2, chain=1), cluster.kind_of(cluster.storages["one"])
    )
    assert (
        reason_given
        == "snapshot_as_volume_chain needs Proxmox VE 9 and a machine type from 10.0 on"
    )


def test_a_type_without_volume_chains_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ValueError, match="storages of type rbd do not have it"):
        ClusterStorageSettings.model_validate({"type": "rbd", "snapshot_as_volume_chain": True})


@pytest.mark.parametrize(("storage", "copies"), [("local", 2), ("lvm", 4)])
def test_a_chain_on_lvm_needs_the_space_of_all_levels(
    allowed: Site, storage: str, copies: int
) -> None:
    one = allowed.cluster.storages["local" if storage == "local" else "thin"]
    one.type = "lvm" if storage == "lvm" else "dir"
    one.volume_chain = True
    one.avail = copies * GIB  # 256 MiB must stay free
    allowed.node = allowed.driver("pve1")
    asked = scenario(kind=Format.QCOW2, storage=one.name, chain=3, size=GIB)
    assert allowed.node.needs_bytes(asked) == copies * GIB
    case = Case(scenario=asked, workload=workload(""))
    kinds_of_storages = {one.name: storage_kind(one.type)}
    assert SpaceNeed(kinds_of_storages).add(case).total() == {one.name: copies * GIB}
    with pytest.raises(NoSpace):
        allowed.node.volume(asked)
    one.avail += GIB
    allowed.node.volume(asked)


def test_plan_excludes_what_does_not_fit_on_the_cluster(
    api: RunningApi, granted: Path, capsys: Captured
) -> None:
    api.cluster.storages["local"].avail = 1 << 20
    assert run_cli(["plan", "--config", str(granted)]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "storage local: 64.0 MiB needed, 1.0 MiB free on pve1 (256.0 MiB must stay" in said
    api.cluster.storages["local"].avail = GIB
    assert run_cli(["plan", "--config", str(granted)]) == 0
    assert "free space" not in capsys.readouterr().out
    (granted.parent / "token").unlink()
    assert run_cli(["plan", "--config", str(granted)]) == 0
    assert "free space not checked: " in capsys.readouterr().out


def test_the_space_of_storages_that_only_operations_write_to_is_read(
    api: RunningApi, granted: Path
) -> None:
    text = granted.read_text("utf-8").replace("    fast: {type: lvmthin, id: thin}\n", "")
    granted.write_text(text, "utf-8")
    api.cluster.storages["thin"].avail = 7 * GIB
    known = spaces(load_settings(granted))
    assert known["pve1", "thin"].lacks("thin", 7 * GIB)
    assert not known["pve1", "thin"].lacks("thin", 7 * GIB - RESERVE_BYTES)


@pytest.mark.parametrize("during", OPERATIONS)
def test_plan_and_check_need_what_a_run_with_an_operation_requires(
    allowed: Site, during: str
) -> None:
    cluster = ProxmoxSettings.model_validate({**SETTINGS, "operations": TARGETS})
    one = scenario(kind=Format.QCOW2)
    case = Case(scenario=one, workload=workload(during))
    planned = SpaceNeed(cluster.kinds()).add(case).total()
    needs = needs_of(cluster, [case])
    assert needs.volumes == {"local": planned["local"]}
    assert needs.operations is not None
    assert needs.operations["thin"][1] == planned.get("thin", 0)
    assert needs.operations["local"][1] == 0  # it is in that of the volumes
    allowed.node.targets = OperationTargets(**TARGETS)
    attach(allowed, one)
    storages = allowed.cluster.storages
    whole = {"local": planned["local"] - one.volume_bytes, "thin": planned.get("thin", 0)}
    for name, other in (("local", "thin"), ("thin", "local")):
        storages[other].avail = 100 * GIB
        storages[name].avail = RESERVE_BYTES + whole[name]
        if whole[name]:
            storages[name].avail -= 1
            with pytest.raises(NoSpace, match=f"storage {name}"):
                allowed.node.operate(during, 0).prepare()
            storages[name].avail += 1
    allowed.node.operate(during, 0).prepare()


@pytest.mark.parametrize("min_free", [0, GIB])
def test_storages_of_one_zfs_pool_have_its_space_once_for_all_of_them(
    allowed: Site, min_free: int
) -> None:
    """Witness: `zfs_statvfs` in zfs_vfsops.c of OpenZFS reports the pool's free bytes."""
    entry = {"type": "dir", "min_free": min_free}
    cluster = ProxmoxSettings.model_validate(
        {"host": "h", "pool": "bench", "storages": {"local": entry}, "operations": TARGETS}
    )
    one = scenario(kind=Format.QCOW2)
    case = Case(scenario=one, workload=workload("backup-fleecing"))
    allowed.node = allowed.driver("pve1")
    allowed.node.targets = OperationTargets(**TARGETS)
    allowed.node.context = replace(allowed.node.context, storages=cluster.storages_on("pve1"))
    attach(allowed, one)

    def answers() -> list[bool]:
        """Return whether plan, check and run let it pass."""
        checks = NodeChecks(allowed.connect(), cluster, "pve1", [case])
        checked = {name: good for name, good, _ in checks.all()}
        planned = unfit([case], checks.spaces, cluster.kinds())
        try:
            allowed.node.operate("backup-fleecing", 0).prepare()
        except NoSpace:
            return [not planned, checked["storage local"], False]
        return [not planned, checked["storage local"], True]

    least = max(RESERVE_BYTES, min_free) + 2 * one.volume_bytes
    storages = allowed.cluster.storages
    storages["local"].avail = least - 1
    storages["thin"].avail = least - 1 + 10 * MIB  # `local` is rounded to records
    assert answers() == [False, False, False]
    storages["local"].avail = storages["thin"].avail = least
    assert answers() == [True, True, True]


# --- rights


def test_the_rights_for_operations_are_granted_by_name_and_missing_ones_named(
    api: RunningApi, granted: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    assert findings(granted, capsys)["rights"][0]
    whole = vm_privileges(api.cluster.major)
    assert api.cluster.access.roles["StorageBenchVM"] == whole
    api.cluster.storages["share"].content = "images"
    settings = granted.read_text("utf-8")
    granted.write_text(f"{settings}  operations: {{backup_storage: share}}\n", "utf-8")
    found = findings(granted, capsys)
    good, text = found["rights"]
    assert not good
    assert "/pool/bench: VM.Backup VM.Snapshot" in text
    assert init_of(text, granted)[-1] == "--with-operations"
    assert "share not on pve1 or not in the pool" in found["operations on share"][1]
    granted.write_text(settings, "utf-8")
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    init = ["proxmox", "init", "--config", str(granted), "--apply"]
    assert run_cli([*init, "--with-operations"]) == 0
    assert api.cluster.access.roles[OPERATION_ROLE] == OPERATION_PRIVILEGES
    assert run_cli([*init, "--with-advice"]) == 0  # nor do other rights remove those
    granted.write_text(f"{settings}  operations: {{backup_storage: share}}\n", "utf-8")
    assert run_cli(init) == 0  # the settings have the section: the rights stay
    assert api.cluster.access.roles[OPERATION_ROLE] == OPERATION_PRIVILEGES
    assert api.cluster.access.roles["StorageBenchVM"] == whole  # that of all instances
    found = findings(granted, capsys)
    assert found["rights"][0]
    assert found["operations on share"][1].startswith("share does not allow backup; run pvesm set")
    api.cluster.storages["share"].content = "images,backup"
    assert findings(granted, capsys)["operations on share"][0]
