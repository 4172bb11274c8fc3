"""What keeps a run from being made, told by its cause: a full storage, a VM that is held.

Witness: qmpstatus `io-error` with a silent agent is what a real node said of a full disk
(behaviours.md, "Host disk full"); locks are the recordings `locked.*`.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pve.instance import write_settings
from pve.machines import CheapMachine
from pve.site import MACHINE, Site, scenario
from pvebench.cli.main import run_cli
from pvebench.drivers.proxmox import hypervisor
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.orphans import find_orphans
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm
from pvebench.errors import AccessDenied, Busy, HypervisorGone, NoSpace, VolumeError
from pvebench.model.disk import Bus
from pvebench.model.ports import Site as Place
from pvebench.model.run import Outcome, Run
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from testing.packs import tool_workload, write_pack

FIO = tool_workload("fio", {"rw": "read", "bs": "4k"}, ramp_seconds=1, runtime_seconds=1)


def run_once(site: Site, **options: Any) -> Run:
    place = Place(node="pve1", hypervisor=site.node, probe=None, clock=site.clock)  # type: ignore[arg-type] # not asked
    case = Case(scenario=scenario(**options), workload=FIO)
    return Runner(place, lambda *_: None).run(case, cycle="", conduct=Conduct())


def fill_up(site: Site) -> None:
    """Have the storage become full under the guest's writes."""
    site.plug(scenario())
    guest = site.node.boot(MACHINE)
    site.machine.full = True
    stopped = f"stopped VM {site.node.vmid}: .*io-error"
    with pytest.raises(VolumeError, match=stopped) as caught:
        guest.run(["/bin/true"])
    assert caught.value.cause.startswith("the storage is full")
    assert not caught.value.retryable


def test_a_full_storage_is_named_before_the_agent_is_blamed(both: Site) -> None:
    fill_up(both)
    assert len([task for task in both.cluster.tasks.all if task.kind == "qmstart"]) == 1


def test_the_volume_that_filled_its_storage_is_freed_at_once(site: Site) -> None:
    fill_up(site)
    assert site.cluster.volumes.owned(site.node.vmid) == []
    assert not site.cluster.vms[site.node.vmid].running
    wanted = scenario()
    site.cluster.storages["local"].avail = 1
    with pytest.raises(NoSpace, match=r"64\.0 MiB needed"):
        site.node.volume(wanted)
    assert len([task for task in site.cluster.tasks.all if task.kind == "qmstart"]) == 1


def test_a_storage_that_is_full_while_the_guest_boots_is_named_and_its_volume_freed(
    both: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr(CheapMachine, "full", full, raising=False)
    monkeypatch.setattr(hypervisor, "BOOT_SECONDS", 20.0)
    with pytest.raises(VolumeError, match=r"stopped VM \d+: .*io-error"):
        both.plug(scenario(bus=Bus.SATA))
    assert both.cluster.volumes.owned(both.node.vmid) == []


def test_a_full_storage_is_named_by_the_counters_too(site: Site) -> None:
    site.plug(scenario())
    site.machine.full = True
    with pytest.raises(VolumeError, match="storage of its disk rejects writes"):
        site.node.counters()


def test_a_case_whose_volume_does_not_fit_is_skipped_with_the_reason(site: Site) -> None:
    site.cluster.storages["local"].avail = 1 << 20
    run = run_once(site)
    assert run.outcome is Outcome.SKIPPED
    assert "64.0 MiB needed, 1.0 MiB free on pve1" in run.reason
    assert not run.retryable


def test_a_storage_that_is_too_small_is_reported_before_anything_is_made(
    site: Site, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.cluster.storages["local"].avail = 300 * MIB
    assert run_cli(["run", "--cycles", "1", "--config", str(config)]) == NoSpace.exit_code
    assert "64.0 MiB needed, 300.0 MiB free on pve1" in capsys.readouterr().err
    assert {call.partition(" ")[0] for call in site.api.calls} == {"GET"}


def test_a_volume_that_is_there_needs_no_room_and_of_one_that_may_be_kept_it_is_not_known(
    site: Site,
) -> None:
    assert site.node.needs_bytes(scenario()) == 64 * MIB
    assert site.driver("pve1", keep=True).needs_bytes(scenario()) == 0
    site.node.volume(scenario())
    assert site.node.needs_bytes(scenario()) == 0
    assert site.node.needs_bytes(scenario(size=96 * MIB)) == 32 * MIB


@pytest.mark.parametrize(
    ("right", "starts"), [("VM.Monitor", 1), ("VM.GuestAgent.Unrestricted", 1), ("VM.Audit", 0)]
)
def test_a_right_that_is_missing_boots_or_makes_a_vm_once_not_for_every_case(
    both: Site, right: str, starts: int
) -> None:
    """Of a VM that may not be looked at the server says what it says of one that is gone."""
    roles = both.cluster.access.roles
    whole = set(roles["StorageBenchVM"])
    if right not in whole:
        return  # of the other version
    roles["StorageBenchVM"] = whole - {right}
    runs = [run_once(both) for _ in range(3)]
    assert {run.outcome for run in runs} == {Outcome.FAILED}
    assert right in runs[0].reason
    assert all(f"the token lacks /pool/bench: {right}" in run.reason for run in runs[1:])
    assert "init --config SETTINGS --apply" in runs[1].evidence["error"]
    assert [task.kind for task in both.cluster.tasks.all].count("qmstart") == starts
    assert len(both.cluster.vms) == 1
    roles["StorageBenchVM"] = whole
    both.node.volume(scenario())
    both.node.boot(MACHINE)
    assert both.cluster.vms[both.node.vmid].running


def test_a_vm_that_the_token_may_no_longer_see_is_not_taken_for_one_that_is_gone(
    site: Site,
) -> None:
    site.node.boot(MACHINE)
    role = site.cluster.access.roles["StorageBenchVM"]
    site.cluster.access.roles["StorageBenchVM"] = role - {"VM.Audit"}
    lacks = "the token lacks /pool/bench: VM.Audit"
    vm = site.node.vm
    assert vm is not None
    with pytest.raises(AccessDenied, match=lacks):
        vm.destroy()
    (line,) = site.undo()
    assert line.startswith(f"could not remove VM 9000 yet: {lacks}")
    assert len(site.store.journal.pending()) == 1
    with pytest.raises(AccessDenied, match=lacks):
        find_orphans(site.connect(), pool="bench", known={})
    site.cluster.access.roles["StorageBenchVM"] = role
    lines = site.undo()
    assert lines == ["removed VM 9000 with its volumes"]


def test_the_reason_of_a_run_names_the_task_that_stopped_its_vm(both: Site) -> None:
    """Sys.Audit on the node shows tasks of others (facts.md, 1.6: recordings `tasks.list`)."""
    fio = both.node.boot(MACHINE)
    assert fio.run(["/bin/true"]).exit_code == 0
    both.cluster.vms[9000].stop()
    with pytest.raises(HypervisorGone, match="guest not reachable"):
        fio.run(["/bin/true"])  # our own tasks are not the reason
    task = both.cluster.tasks.foreign("pve1", "qmstop", "9000")
    both.cluster.tasks.foreign("pve1", "vzdump", "9000")
    with pytest.raises(HypervisorGone) as caught:
        fio.run(["/bin/true"])
    at = datetime.fromtimestamp(task.started, UTC)
    by = f"stopped by root@pam, task qmstop at {at:%H:%M:%S} UTC"
    assert caught.value.happened == f"VM 9000 was {by}"
    fio = both.node.boot(MACHINE)
    both.cluster.vms[9000].stop()
    with pytest.raises(HypervisorGone, match="guest not reachable"):
        fio.run(["/bin/true"])  # that task was before this start


def unlock_soon(site: Site) -> None:
    def unlock() -> None:
        time.sleep(1.0)
        del site.cluster.vms[9000].config["lock"]

    threading.Thread(target=unlock, daemon=True).start()


def test_a_vm_that_a_backup_holds_at_the_end_is_waited_for_and_not_left_behind(site: Site) -> None:
    site.node.boot(MACHINE)
    site.cluster.vms[9000].config["lock"] = "backup"
    unlock_soon(site)
    lines = site.undo()
    assert lines == ["removed VM 9000 with its volumes"]


def test_a_vm_that_was_held_too_long_is_removed_while_the_next_one_works(site: Site) -> None:
    site.node.boot(MACHINE)
    held = site.cluster.vms[9000]
    held.config["lock"] = "backup"
    site.node = site.driver("pve1")
    site.undo()
    site.node.boot(MACHINE)
    assert set(site.cluster.vms) == {9000, 9001}
    del held.config["lock"]
    site.node.volume(scenario())
    assert set(site.cluster.vms) == {9000, 9001}  # it was tried a moment ago
    site.node._held._tidied -= 600
    site.node.volume(scenario())
    assert set(site.cluster.vms) == {9001}


def test_check_sees_what_is_there_of_any_pvebench(
    site: Site, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    volume, _ = site.node.volume(scenario())
    run_cli(["check", "--config", str(config)])
    out = capsys.readouterr().out
    assert f"benchmark VMs: VM 9000 on pve1, stopped, with {volume.volid}; if no pvebench" in out


@pytest.mark.parametrize("cpu", ["host", "'host,flags=+aes'", "'flags=+aes,cputype=host'"])
@pytest.mark.parametrize("command", ["check", "plan"])
def test_emulation_with_the_hosts_own_cpu_is_refused_with_the_remedy(
    site: Site, tmp_path: Path, command: str, cpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_settings(tmp_path, site.api, packs=[write_pack(tmp_path)], kvm="false", cpu=cpu)
    assert run_cli([command, "--config", str(path)]) == 2
    assert "set cpu: max" in capsys.readouterr().err
    path = write_settings(tmp_path, site.api, packs=[write_pack(tmp_path)], kvm="false", cpu="max")
    assert run_cli([command, "--config", str(path)]) != 2


def test_a_storage_that_only_another_node_has_is_said_and_no_option_blamed(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storages = {"local": "{type: dir, nodes: [pve2]}", "share": "{type: nfs}"}
    path = write_settings(tmp_path, site.api, packs=[write_pack(tmp_path)], storages=storages)
    assert run_cli(["plan", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert "no storage of the packs is on a measured node (pve1)" in said
    assert "--only" not in said


@pytest.mark.parametrize(
    "options",
    [{"bus": Bus.VIRTIO}, {"bus": Bus.SATA}, {"size": 32 * MIB}, {"storage": "thin"}],
    ids=["live", "cold", "another size", "another storage"],
)
def test_a_backup_that_begins_in_the_middle_of_a_case_costs_that_try_and_no_restart(
    both: Site, options: dict[str, Any]
) -> None:
    """Nothing even stops a VM that runs and is locked (`_do_vm_stop` in PVE/QemuServer.pm)."""
    volume = both.plug(scenario())
    vm = both.cluster.vms[9000]
    vm.config["lock"] = "backup"
    run = run_once(both, **options)
    assert (run.outcome, run.retryable) == (Outcome.SKIPPED, True)
    assert run.reason.endswith("VM is locked (backup)")
    assert "qm unlock" in run.evidence["error"]
    assert vm.running
    assert both.cluster.volumes.owned(9000)[:1] == [volume.volid]
    del vm.config["lock"]
    both.node.detach()
    both.node.boot(MACHINE)
    both.node.attach(volume, scenario().disk)
    assert [task.kind for task in both.cluster.tasks.all].count("qmstart") == 1


def test_the_server_compares_the_digest_before_it_looks_for_a_lock(both: Site) -> None:
    """Witness: `$load_and_check_config` of `update_vm_api` in src/PVE/API2/Qemu.pm.

    Of qemu-server 8.4.10 (5ccd363e, lines 2119 and 2134) and 9.2.6 (e6352be6, lines 2211 and
    2229). The recordings have each alone: `config.put.digest-mismatch` and `lock.config`.
    """
    both.node.boot(MACHINE)
    vm, api = both.cluster.vms[9000], both.connect()
    digest = vm.digest
    vm.config["lock"] = "backup"
    with pytest.raises(Busy, match="file change by other user"):
        api.put("/nodes/pve1/qemu/9000/config", memory=1024, digest=digest)
    for more in ({}, {"digest": vm.digest}):
        with pytest.raises(Busy, match=r"VM is locked \(backup\)"):
            api.put("/nodes/pve1/qemu/9000/config", memory=1024, **more)


@pytest.mark.parametrize("refusal", ["", "hotplug problem - timeout"])
@pytest.mark.parametrize("call", ["plug", "unplug"])
def test_a_backup_that_begins_between_two_calls_of_a_switch_is_waited_for(
    both: Site, call: str, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reports a changed file, or anything else: pvebench looks for the lock first."""
    both.plug(scenario())
    vm = both.cluster.vms[9000]
    change = BenchVm.change

    def lock_before(self: BenchVm, what: str, *seen: Any, **params: Any) -> None:
        if what.startswith(f"{call} "):
            self.recent_config()
            vm.config["lock"] = "backup"
            if refusal:
                raise Rejected("PUT config", refusal)
        change(self, what, *seen, **params)

    monkeypatch.setattr(BenchVm, "change", lock_before)
    run = run_once(both, bus=Bus.VIRTIO)
    assert (run.outcome, run.retryable) == (Outcome.SKIPPED, True)
    assert run.reason.endswith("VM is locked (backup)")
    assert vm.running
