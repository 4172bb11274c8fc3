"""Faults in the middle of something: what comes of each, over HTTPS. `faults.md` has them all."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

import pytest

from pve.machines import CheapMachine
from pve.site import MACHINE, POOL, Site, scenario
from pve.vms import Vm
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.node.node_activity import NodeGuard
from pvebench.drivers.proxmox.orphans import find_orphans
from pvebench.drivers.proxmox.vm.agent import AgentGuest
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.errors import (
    DriverError,
    GuestTimeout,
    OutcomeUnknown,
    OutputUnreadable,
    ServerGone,
    SwitchFailed,
)
from pvebench.model.ports import HoldKind
from pvebench.model.units import MIB
from pvebench.model.workload import Case
from testing.packs import tool_workload

HERE = Path(__file__).parent


def task_kinds(site: Site) -> list[str]:
    return [task.kind for task in site.cluster.tasks.all]


# --- the way to the server ---------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/qemu", "/config", "/status/start", "/storage/local/content"])
@pytest.mark.parametrize("status", [502, 596, 599])
def test_a_change_that_was_made_although_the_answer_says_otherwise_is_looked_up(
    site: Site, path: str, status: int
) -> None:
    method = "PUT" if path == "/config" else "POST"
    site.faults.add("status_after", method, path, status=status, text="")
    site.plug(scenario())
    assert site.faults.hits
    assert task_kinds(site).count("qmcreate") == 1
    assert task_kinds(site).count("qmstart") == 1
    assert len(site.cluster.volumes.owned(site.node.vmid)) == 1


@pytest.mark.parametrize("path", ["/qemu", "/config", "/status/start"])
def test_a_change_that_the_server_fails_at_is_reported_and_can_be_tried_again(
    site: Site, path: str
) -> None:
    method = "PUT" if path == "/config" else "POST"
    site.faults.add("status", method, path, status=500, text="internal error")
    with pytest.raises(DriverError, match="internal error"):
        site.plug(scenario())
    site.plug(scenario())
    assert len(site.cluster.vms) == 1


def test_a_slow_answer_within_its_deadline_is_waited_for(site: Site) -> None:
    site.faults.add("delay", "PUT", "/config", seconds=1.5)
    begun = time.monotonic()
    site.plug(scenario())
    assert time.monotonic() - begun > 1.5
    assert site.api.calls.count("PUT /nodes/pve1/qemu/9000/config") == 2  # the tag, the plug


@pytest.mark.parametrize("status", [401, 500, 595, 596, 599])
def test_a_task_is_followed_through_bad_answers_to_its_end(site: Site, status: int) -> None:
    times = 1 if status == 401 else 9  # more than one read tries
    site.faults.add(
        "status", "GET", "/tasks/.*qmstart.*/status", status=status, times=times, text=""
    )
    if status == 401:
        with pytest.raises(DriverError, match="rejects the credentials"):
            site.node.boot(MACHINE)
    site.node.boot(MACHINE)
    assert task_kinds(site).count("qmstart") == (2 if status == 401 else 1)


def test_a_cluster_without_quorum_is_the_servers_trouble_and_nothing_is_left_half_done(
    site: Site,
) -> None:
    site.plug(scenario())
    site.node.detach()
    site.cluster.tasks.doomed["qmconfig"] = "cluster not ready - no quorum?"
    with pytest.raises(DriverError, match=r"Proxmox API unreachable: .*no quorum"):
        site.plug(scenario())
    vm = site.cluster.vms[site.node.vmid]
    assert not vm.pending
    site.plug(scenario())


def test_a_node_that_reboots_in_the_middle_of_a_task_ends_the_wait_at_the_deadline(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node.boot(MACHINE)
    original = CheapMachine.stop

    def stop(self: CheapMachine) -> None:
        original(self)
        site.cluster.all_nodes["pve1"].online = False

    with monkeypatch.context() as patch:
        patch.setattr(CheapMachine, "stop", stop)
        with pytest.raises((OutcomeUnknown, ServerGone)):
            site.node.power_off()
    site.cluster.all_nodes["pve1"].online = True
    site.plug(scenario())
    assert set(site.cluster.vms) == {site.node.vmid}


def test_an_expired_token_holds_the_cases_with_its_reason(site: Site) -> None:
    site.cluster.access.users["pvebench@pve"].tokens["bench"].expire = int(time.time()) - 1
    guard = NodeGuard(
        site.connect(),
        "pve1",
        storages={"local": ClusterStorage(id="local", type="dir")},
        claims=Claims(site.connect(), "pve1", lambda: site.node.vm, site.clock),
    )
    fio = tool_workload("fio", {"rw": "read", "bs": "4k"}, ramp_seconds=1, runtime_seconds=1)
    hold = guard.enter(Case(scenario=scenario(), workload=fio))
    assert hold is not None
    assert (hold.kind, hold.skip) == (HoldKind.AWAY, True)
    assert "rejects the credentials" in hold.reason


# --- disks -------------------------------------------------------------------------------------


def test_a_volume_that_is_plugged_in_already_is_never_plugged_in_twice(site: Site) -> None:
    site.plug(scenario())
    vm = site.cluster.vms[site.node.vmid]
    vm.config["scsi5"] = vm.config.pop("scsi1")  # somebody moved it
    site.machine.slots["scsi5"] = site.machine.slots.pop("scsi1")
    site.node._state.disk = None  # the driver has not seen it
    site.clock.skip(6)  # and has forgotten what it saw last
    volume, _ = site.node.volume(scenario())
    with pytest.raises(SwitchFailed, match="still plugged in as scsi5"):
        site.node.attach(volume, scenario().disk)
    held = [slot for slot, text in vm.config.items() if volume.volid in str(text)]
    assert held == ["scsi5"]
    site.node.boot(MACHINE)  # the VM is restarted, the disk taken out
    site.node.attach(volume, scenario().disk)
    assert [slot for slot, text in vm.config.items() if volume.volid in str(text)] == ["scsi2"]


# --- the guest ---------------------------------------------------------------------------------


def guest_of(site: Site) -> AgentGuest:
    found = site.node.boot(MACHINE)
    assert isinstance(found, AgentGuest)
    return found


def test_a_frozen_guest_is_silent_until_it_thaws_and_needs_no_restart(both: Site) -> None:
    guest = guest_of(both)
    pid = guest.start(["/bin/sleep", "0.1"])
    assert guest.poll(pid) is None  # begins the wait
    both.machine.frozen = True
    both.clock.skip(2.0)
    with pytest.raises(GuestTimeout, match="has been disabled"):
        guest.run(["/bin/echo"])
    with pytest.raises(GuestTimeout, match="frozen by a backup"):
        guest.poll(pid)
    both.machine.frozen = False
    assert guest.run(["/bin/echo", "thawed"]).stdout == b"thawed\n"
    assert both.node.boot(MACHINE) is guest


def test_an_agent_that_dies_under_a_job_ends_the_wait_and_the_next_boot_is_a_new_one(
    both: Site,
) -> None:
    guest = guest_of(both)
    pid = guest.start(["/bin/sleep", "0.1"])
    assert guest.poll(pid) is None  # begins the wait
    both.machine.agent_dead = True
    both.clock.skip(2.0)
    with pytest.raises(GuestTimeout, match="agent is not running"):
        guest.poll(pid)
    again = guest_of(both)
    assert again is not guest
    assert again.run(["/bin/echo", "well"]).stdout == b"well\n"


def test_output_that_the_agent_cut_off_is_not_taken_for_whole(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = guest_of(site)
    original = site.cluster.get_nodes_qemu_agent_exec_status

    def cut(who: str, **params: str) -> dict[str, object]:
        return {**original(who, **params), "out-truncated": 1}

    monkeypatch.setattr(site.cluster, "get_nodes_qemu_agent_exec_status", cut)
    with pytest.raises(OutputUnreadable, match="the guest agent truncated the output of /bin/echo"):
        guest.run(["/bin/echo", "much"])


def test_output_that_does_not_fit_through_the_door_is_a_silent_guest_not_an_empty_result(
    site: Site,
) -> None:
    with pytest.raises(GuestTimeout, match="got timeout"):
        guest_of(site).run(["/usr/bin/head", "-c", str(2 * MIB), "/dev/urandom"])


def test_a_file_longer_than_version_8_reads_comes_whole(both: Site) -> None:
    guest = guest_of(both)
    place = "/run/pvebench/long"
    size = 16 * MIB + 300_000
    script = f'head -c {size} /dev/urandom >"$0"; sha256sum <"$0"'
    told = guest.run(["/bin/sh", "-c", script, place], timeout=600).stdout.split()[0].decode()
    content = guest.read_file(place)
    assert len(content) == size
    assert hashlib.sha256(content).hexdigest() == told


# --- strangers ---------------------------------------------------------------------------------


def test_a_stranger_with_our_name_and_tag_in_our_pool_is_no_stray_of_ours(site: Site) -> None:
    site.node.boot(MACHINE)
    cluster = site.cluster
    machine = CheapMachine(cluster.directory / "theirs", cluster.volumes, qemu=lambda: "9.0.0")
    theirs = {"name": "pvebench-pve1", "tags": "pvebench", "description": "pvebench-mark: mine\n"}
    cluster.vms[9001] = Vm(9001, "pve1", machine, cluster.volumes, config=dict(theirs))
    cluster.pools[POOL].add(9001)
    assert [one.vmid for one in find_orphans(site.connect(), pool=POOL, known={})] == [9000]
    site.node.shutdown()
    assert cluster.vms[9001].config == theirs


# --- the table ---------------------------------------------------------------------------------


def test_every_test_that_the_table_of_faults_names_is_there() -> None:
    table = (HERE / "faults.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", table))
    files = [*HERE.glob("test_*.py")]
    there = set(
        re.findall(r"^def (test_\w+)", "\n".join(f.read_text("utf-8") for f in files), re.MULTILINE)
    )
    assert named
    assert named <= there, named - there
