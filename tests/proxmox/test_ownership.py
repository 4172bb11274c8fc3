"""Nothing is touched that pvebench did not make, nothing that it made is left behind."""

from __future__ import annotations

import threading

import pytest

from pve.machines import CheapMachine
from pve.refusals import Refused
from pve.site import MACHINE, POOL, Site, scenario
from pve.vms import Vm
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.errors import (
    AccessDenied,
    Busy,
    DriverError,
    GuestImageError,
    NotOwned,
    OutcomeUnknown,
    PvebenchError,
    SwitchFailed,
)
from pvebench.model.disk import Bus
from pvebench.model.environment import PendingUpdates
from pvebench.model.volume import Plug


def stranger(site: Site, vmid: int, *, pooled: bool = False) -> Vm:
    cluster = site.cluster
    machine = CheapMachine(
        cluster.directory / f"stranger-{vmid}", cluster.volumes, qemu=lambda: "9.0.0"
    )
    vm = Vm(vmid, "pve1", machine, cluster.volumes, config={"name": "theirs", "tags": "pvebench"})
    cluster.vms[vmid] = vm
    if pooled:
        cluster.pools[POOL].add(vmid)
    return vm


def test_numbers_that_are_taken_are_passed_by(site: Site) -> None:
    stranger(site, 9000)
    stranger(site, 9001, pooled=True)
    site.node.boot(MACHINE)
    assert site.node.vmid == 9002
    assert site.cluster.vms[9000].config == {"name": "theirs", "tags": "pvebench"}


def test_a_number_taken_between_look_and_make_is_passed_by(site: Site) -> None:
    site.faults.add(
        "status",
        "POST",
        "/nodes/pve1/qemu",
        text="unable to create VM 9000 - VM 9000 already exists on node 'pve2'",
    )
    site.node.boot(MACHINE)
    assert site.node.vmid == 9001
    assert len(site.store.journal.pending()) == 1


def test_a_range_without_a_free_number_is_said(site: Site) -> None:
    for vmid in range(9000, 9010):
        stranger(site, vmid)
    with pytest.raises(NotOwned, match="9000 to 9009"):
        site.node.boot(MACHINE)


def test_the_vm_is_marked_tagged_and_in_its_pool(both: Site) -> None:
    both.node.boot(MACHINE)
    vm = both.cluster.vms[both.node.vmid]
    assert vm.config["tags"] == "pvebench"
    assert "pvebench-mark: " in vm.config["description"]
    assert both.cluster.pools[POOL] == {vm.vmid}


@pytest.mark.parametrize("what", ["mark", "pool"])
def test_a_vm_that_lost_its_mark_or_its_pool_is_never_removed(site: Site, what: str) -> None:
    site.node.boot(MACHINE)
    vm = site.cluster.vms[site.node.vmid]
    vmid = vm.vmid
    if what == "mark":
        vm.config["description"] = "somebody's work now"
    else:
        site.cluster.pools[POOL].clear()
        for subject in ("pvebench@pve", "pvebench@pve!bench"):
            site.cluster.access.acl.append((f"/vms/{vmid}", subject, "StorageBenchVM"))
    site.node.shutdown()
    assert vm.running
    assert not site.store.journal.pending()


def test_a_vm_with_another_owners_mark_is_not_changed(site: Site) -> None:
    site.node.boot(MACHINE)
    first = site.cluster.vms[site.node.vmid]
    first.config["description"] = f"pvebench-mark: {'0' * 32}\n"
    site.node.boot(MACHINE)
    assert site.node.vmid != first.vmid
    assert first.running


def test_a_disk_that_someone_gave_our_vm_is_not_taken_out(site: Site) -> None:
    site.node.boot(MACHINE)
    vm = site.cluster.vms[site.node.vmid]
    volid = site.cluster.volumes.allocate("local", vm.vmid, f"vm-{vm.vmid}-disk-0.raw", 1024, "raw")
    vm.config["scsi5"] = volid
    volume, _ = site.node.volume(scenario())
    site.machine.agent_dead = True
    with pytest.raises(NotOwned, match="disk-0"):
        site.node.boot(MACHINE, Plug(volume, scenario().disk))
    assert vm.config["scsi5"] == volid


def test_after_a_crash_the_vm_and_its_volumes_are_removed(both: Site) -> None:
    both.node.boot(MACHINE)
    both.node.volume(scenario())
    vmid = both.node.vmid
    assert both.undo() == [f"removed VM {vmid} with its volumes"]
    assert not both.cluster.vms
    assert not both.cluster.volumes.owned(vmid)
    assert both.undo() == []


def test_another_nodes_vm_is_left_to_its_worker(site: Site) -> None:
    site.node.boot(MACHINE)
    assert site.undo(node="pve2") == []
    assert site.node.vmid in site.cluster.vms


def test_a_locked_vm_is_removed_later(site: Site) -> None:
    site.node.boot(MACHINE)
    vm = site.cluster.vms[site.node.vmid]
    vm.config["lock"] = "backup"
    (line,) = site.undo()
    assert "could not remove" in line
    assert site.store.journal.pending()
    del vm.config["lock"]
    assert site.undo() == [f"removed VM {vm.vmid} with its volumes"]


def test_a_journalled_vm_that_never_came_to_be_is_no_trouble(site: Site) -> None:
    site.cluster.tasks.doomed["qmcreate"] = "unable to create VM 9000 - storage is full"
    with pytest.raises(Rejected, match="storage is full"):
        site.node.boot(MACHINE)
    site.cluster.vms.clear()
    assert site.undo() in ([], ["VM 9000 already gone"])
    assert not site.store.journal.pending()


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
def test_a_vm_whose_making_was_not_answered_is_not_lost(site: Site, kind: str) -> None:
    site.faults.add(kind, "POST", "/nodes/pve1/qemu")  # type: ignore[arg-type] # a literal
    if kind == "drop_after":
        site.node.boot(MACHINE)
    else:
        with pytest.raises(OutcomeUnknown):
            site.node.boot(MACHINE)
    site.undo()
    assert not site.cluster.vms
    assert not site.store.journal.pending()


@pytest.mark.parametrize(
    "path", ["/status/start", "/status/stop", "/config", "/storage/local/content", "/upload"]
)
def test_a_lost_answer_is_looked_up_and_the_call_never_repeated(site: Site, path: str) -> None:
    site.faults.add("drop_after", "PUT" if path == "/config" else "POST", path)
    site.plug(scenario())
    site.node.power_off()
    assert site.faults.hits
    kinds = [task.kind for task in site.cluster.tasks.all]
    assert kinds.count("qmstart") == kinds.count("qmstop") == 1
    assert kinds.count("imgcopy") == 1
    assert len(site.cluster.volumes.owned(site.node.vmid)) == 1


def test_a_task_that_fails_says_why(site: Site) -> None:
    site.cluster.tasks.doomed["qmstart"] = "start failed: org.freedesktop.systemd1 is away"
    with pytest.raises(DriverError, match=r"systemd1 is away"):
        site.node.boot(MACHINE)
    site.node.boot(MACHINE)


@pytest.fixture
def warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU starts, but the task has a warning."""
    original = CheapMachine.start

    def warn(self: CheapMachine, config: dict[str, object]) -> list[str]:
        return [*original(self, config), "WARN: iothread is ignored"]

    monkeypatch.setattr(CheapMachine, "start", warn)


def test_a_warning_at_start_is_no_failure(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    start = CheapMachine.start

    def grumble(self: CheapMachine, config: dict[str, object]) -> list[str]:
        start(self, config)
        return ["WARN: the machine type is old"]

    monkeypatch.setattr(CheapMachine, "start", grumble)
    site.node.boot(MACHINE)
    assert site.cluster.tasks.all[-1].end == "WARNINGS: 1"


@pytest.mark.usefixtures("warning")
def test_an_io_thread_that_is_ignored_with_a_warning_is_one(site: Site) -> None:
    wanted = scenario(Bus.SATA)
    volume, _ = site.node.volume(wanted)
    with pytest.raises(SwitchFailed, match="iothread is ignored"):
        site.node.boot(MACHINE, Plug(volume, wanted.disk))


def test_a_vm_held_by_a_backup_is_waited_for_not_broken(site: Site) -> None:
    site.node.boot(MACHINE)
    vm = site.cluster.vms[site.node.vmid]
    vm.config["lock"] = "backup"
    site.machine.agent_dead = True
    with pytest.raises(Busy):
        site.node.boot(MACHINE)
    del vm.config["lock"]
    site.node.boot(MACHINE)


def test_a_configuration_lock_is_waited_for(site: Site) -> None:
    site.faults.add(
        "status",
        "POST",
        "/status/start",
        times=2,
        text="can't lock file '/var/lock/qemu-server/lock-9000.conf' - got timeout",
    )
    site.node.boot(MACHINE)
    assert len(site.faults.hits) == 2


def test_the_image_is_uploaded_once_and_found_again(site: Site) -> None:
    site.node.boot(MACHINE)
    site.node.shutdown()
    site.node.boot(MACHINE)
    assert len([task for task in site.cluster.tasks.all if task.kind == "imgcopy"]) == 1


def test_an_image_that_was_cut_off_is_uploaded_again(site: Site) -> None:
    site.node.boot(MACHINE)
    site.node.shutdown()
    (row,) = site.cluster.volumes.listed("local", "iso", None)
    site.cluster.volumes.path(row["volid"]).write_bytes(b"half")
    site.node.boot(MACHINE)
    assert len([task for task in site.cluster.tasks.all if task.kind == "imgcopy"]) == 2


def test_an_image_that_vanishes_is_said(site: Site) -> None:
    site.cluster.volumes.upload = lambda *_: ""  # type: ignore[method-assign,assignment] # loses it
    with pytest.raises(GuestImageError, match="not found on storage local"):
        site.node.boot(MACHINE)


def test_a_vm_deleted_by_hand_is_made_again(site: Site) -> None:
    site.node.boot(MACHINE)
    vm = site.cluster.vms.pop(site.node.vmid)
    vm.machine.stop()
    vm.remove()
    site.cluster.pools[POOL].clear()
    wanted = scenario()
    site.node.boot(MACHINE)
    volume, new = site.node.volume(wanted)
    assert new
    site.node.attach(volume, wanted.disk)


def test_a_vm_that_was_migrated_is_removed_where_it_is_now(site: Site) -> None:
    site.node.volume(scenario(storage="share"))
    site.cluster.vms[9000].node = "pve2"
    assert site.undo() == ["removed VM 9000 with its volumes"]
    assert site.cluster.vms == {}
    assert site.cluster.volumes.owned(9000) == []
    assert site.store.journal.pending() == []


def test_somebodys_change_in_between_is_not_written_over(site: Site) -> None:
    site.node.boot(MACHINE)
    vm = site.node.vm
    assert vm is not None
    vm.verify_owner()
    site.cluster.vms[9000].config["name"] = "theirs"
    with pytest.raises(Busy, match="checksum mismatch"):
        vm.change("rename", name="ours")
    assert site.cluster.vms[9000].config["name"] == "theirs"


def test_a_token_that_is_revoked_is_no_vm_that_is_gone(site: Site) -> None:
    site.node.boot(MACHINE)
    site.cluster.access.users[site.token.user].tokens[site.token.name].secret = "another"
    site.clock.skip(6)
    with pytest.raises(AccessDenied, match="credentials") as found:
        site.node.boot(MACHINE)
    assert "token" in found.value.cause
    site.cluster.access.users[site.token.user].tokens[site.token.name].secret = site.token.secret
    site.node.boot(MACHINE)
    assert site.node.vmid == 9000


def test_a_server_in_trouble_is_no_vm_that_is_gone(site: Site) -> None:
    site.node.boot(MACHINE)
    site.clock.skip(6)
    site.faults.add("status", "GET", "/pending", status=500, text="got timeout")
    with pytest.raises(Rejected, match="got timeout"):
        site.node.boot(MACHINE)
    site.node.boot(MACHINE)
    assert site.node.vmid == 9000


def test_two_nodes_have_a_vm_each(site: Site) -> None:
    other = site.driver("pve2")
    site.node.boot(MACHINE)
    other.boot(MACHINE)
    assert {vm.node for vm in site.cluster.vms.values()} == {"pve1", "pve2"}
    other.shutdown()
    assert {vm.node for vm in site.cluster.vms.values()} == {"pve1"}
    with pytest.raises(Refused):
        site.cluster.vm("pve2", site.node.vmid)


def test_a_node_that_reboots_is_survived(site: Site) -> None:
    site.node.boot(MACHINE)
    node = site.cluster.all_nodes["pve1"]
    node.online = False
    site.machine.stop()
    with pytest.raises(DriverError, match="Proxmox API unreachable"):
        site.node.boot(MACHINE)
    node.online = True
    site.node.boot(MACHINE)


def test_what_runs_is_reported_from_what_is_installed(both: Site) -> None:
    both.node.boot(MACHINE)
    before = both.node.environment()
    node = both.cluster.all_nodes["pve1"]
    node.installed["pve-qemu-kvm"] = "99.1.0-1"
    node.installed["proxmox-kernel-99.0.1-1-pve-signed"] = "99.0.1-1"
    waiting = both.node.environment()
    assert both.node.upkeep().pending["kernel"] == "99.0.1-1-pve"
    assert waiting.facts["qemu"] == before.facts["qemu"]
    assert waiting.facts["kernel"] == before.facts["kernel"]
    assert before.facts.keys() - waiting.facts.keys() == {"qemu_package"}


def test_an_upgrade_needs_a_cold_start_and_is_in_effect_after_it(both: Site) -> None:
    both.node.boot(MACHINE)
    before = both.node.environment()
    assert both.node.upkeep() == PendingUpdates()
    both.cluster.all_nodes["pve1"].installed["pve-qemu-kvm"] = "99.1.0-1"
    assert both.node.upkeep() == PendingUpdates()  # looked at less than a minute ago
    both.clock.skip(61)
    upkeep = both.node.upkeep()
    assert upkeep.pending == {"qemu_package": "99.1.0-1"}
    assert upkeep.restart == "qemu_package 99.1.0-1"
    both.node.power_off()
    both.node.boot(MACHINE)
    after = both.node.environment()
    both.clock.skip(61)
    assert both.node.upkeep() == PendingUpdates()
    assert (after.facts["qemu"], after.facts["qemu_package"]) == ("99.1.0", "99.1.0-1")
    assert before.facts["qemu"] != "99.1.0"


def test_a_lost_answer_is_no_upgrade(site: Site) -> None:
    site.node.boot(MACHINE)
    site.node.environment()
    site.clock.skip(31)
    site.faults.add("status", "GET", "/apt/versions", times=9, status=595)
    assert site.node.upkeep() == PendingUpdates()


def test_a_new_kernel_is_pending_until_the_node_reboots_and_no_reason_to_restart(
    site: Site,
) -> None:
    site.node.boot(MACHINE)
    site.node.environment()
    node = site.cluster.all_nodes["pve1"]
    node.installed["proxmox-kernel-99.0.1-1-pve-signed"] = "99.0.1-1"
    site.clock.skip(31)
    assert site.node.upkeep() == PendingUpdates(pending={"kernel": "99.0.1-1-pve"})


def test_without_the_right_to_look_at_the_node_less_is_known_but_all_works(site: Site) -> None:
    site.cluster.access.acl = [entry for entry in site.cluster.access.acl if entry[0] != "/nodes"]
    site.node.boot(MACHINE)
    assert "kernel" not in site.node.environment().facts
    assert site.node.environment().facts["qemu"]


def test_two_nodes_upload_to_a_shared_storage_once(site: Site) -> None:
    site.cluster.storages["local"].shared = True
    drivers = [site.node, site.driver("pve2")]
    threads = [threading.Thread(target=one.volume, args=(scenario(),)) for one in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(call.endswith("/upload") for call in site.api.calls) == 1
    assert {one.vmid for one in drivers} == {9000, 9001}


def test_a_vm_whose_tag_is_refused_is_taken_back(site: Site) -> None:
    site.cluster.tasks.doomed["qmconfig"] = "tags are not allowed"
    with pytest.raises(Rejected, match="tags are not allowed"):
        site.node.volume(scenario())
    assert site.cluster.vms == {}
    assert site.store.journal.pending() == []


def test_a_vm_that_was_made_though_its_tasks_end_is_not_reported_stays_in_the_journal(
    site: Site,
) -> None:
    site.faults.add("status", "GET", "/tasks/.*qmcreate.*/status", times=9, status=403)
    with pytest.raises(PvebenchError):
        site.node.volume(scenario())
    site.faults.active.clear()
    site.cluster.idle()
    site.undo()
    assert site.cluster.vms == {}


def test_the_servers_own_trouble_says_nothing_about_a_task(site: Site) -> None:
    site.faults.add("status", "GET", "/tasks/.*qmcreate.*/status", times=2, status=500)
    site.node.volume(scenario())
    assert set(site.cluster.vms) == {9000}
