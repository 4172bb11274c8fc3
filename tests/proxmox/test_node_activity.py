"""What else a node does, and whether it is there at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from pve.cluster import Cluster
from pve.site import MACHINE, POOL, Site, scenario
from pvebench.drivers.proxmox.node.node_activity import LOCKED_SECONDS
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.proxmox.setup.checks import NodeChecks
from pvebench.model.ports import Hold, HoldKind
from pvebench.model.units import GIB
from testing.captured_logs import captured_logs
from testing.node_guards import allow_root, case, guard
from testing.packs import ROOT


def test_a_quiet_node_holds_nothing_and_disturbed_nothing(both: Site) -> None:
    one = guard(both)
    assert one.enter(case()) is None
    assert one.leave(case()) == ""
    assert one.free["local"] == 100 * GIB
    assert one.seen["local"]["storage_used"] == 0.5  # the test's storages are twice as large


@pytest.mark.parametrize(
    ("disturb", "text"),
    [
        (lambda cluster: cluster.tasks.foreign("pve1", "vzdump", ""), "a backup runs on pve1"),
        (
            lambda cluster: cluster.tasks.foreign("pve1", "bulk-migrate", ""),
            "a migration of many guests runs on pve1",
        ),
        (
            lambda cluster: cluster.tasks.foreign("pve1", "qmigrate", "101"),
            "a migration (101) runs on pve1",
        ),
        (
            lambda cluster: cluster.all_nodes["pve1"].replicating.append(102),
            "replication of 102 runs on pve1",
        ),
    ],
)
def test_a_busy_node_is_waited_for_and_makes_a_run_noisy(
    site: Site, disturb: Callable[[Cluster], object], text: str
) -> None:
    one = guard(site)
    disturb(site.cluster)
    assert one.enter(case()) == Hold(kind=HoldKind.BUSY, reason=text)
    assert one.leave(case()) == text


def test_a_backup_that_ended_holds_nothing(site: Site) -> None:
    site.cluster.tasks.foreign("pve1", "vzdump", "").end = "OK"
    assert guard(site).enter(case()) is None


def test_another_nodes_backup_matters_on_shared_storage_only(site: Site) -> None:
    site.cluster.tasks.foreign("pve2", "vzdump", "")
    one = guard(site)
    assert one.enter(case()) is None
    hold = one.enter(case("share"))
    assert hold is not None
    assert hold.reason == "a backup runs on pve2"


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("scrub in progress since Sun Nov  1", "scrub"),
        ("resilver (draid1:4d:11c:1s-0) in progress since Mon", "resilver (draid1:4d:11c:1s-0)"),
        (
            "none requested\nexpand: expansion of raidz1-0 in progress since Mon Jan  5",
            "expansion of raidz1-0",
        ),
        (
            "none requested\nremove: Evacuation of /dev/sdb in progress since Mon Jan",
            "Evacuation of /dev/sdb",
        ),
    ],
)
def test_a_scrub_is_seen_where_the_token_may_look(site: Site, lines: str, what: str) -> None:
    site.cluster.all_nodes["pve1"].pools["tank"] = lines
    assert guard(site).enter(case()) is None
    allow_root(site)
    hold = guard(site).enter(case())
    assert hold is not None
    assert hold.reason == f"pool tank on pve1: {what} in progress"


def test_recovery_of_ceph_is_seen_where_the_token_may_look_and_for_its_pools_only(
    site: Site,
) -> None:
    """The answer is a real cluster's (`golden/ceph`); Proxmox's API gives it as it is."""
    site.cluster.storages["pool"] = replace(site.cluster.storages["thin"], name="pool", type="rbd")
    site.cluster.pool_storages[POOL].add("pool")
    one = guard(site)
    recovering = json.loads((ROOT / "tests/golden/ceph/recovering.json").read_text("utf-8"))
    site.cluster.ceph = recovering
    assert one.enter(case("pool")) is None  # the token may not look
    allow_root(site)
    one = guard(site)
    hold = one.enter(case("pool"))
    assert hold is not None
    assert hold.reason.startswith("Ceph is moving data: 10 of 17 placement groups")
    assert one.leave(case("pool")) == hold.reason
    assert one.enter(case()) is None
    site.cluster.ceph = None
    assert one.enter(case("pool")) is None


def test_a_right_that_is_missing_is_not_asked_for_again(site: Site) -> None:
    one = guard(site)
    one.enter(case())
    before = len(site.api.calls)
    one.enter(case())
    assert not any("disks/zfs" in call for call in site.api.calls[before:])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda cluster: setattr(cluster.all_nodes["pve1"], "online", False), "is offline"),
        (
            lambda cluster: setattr(cluster.all_nodes["pve1"], "hastate", "maintenance"),
            "is in maintenance",
        ),
        (
            lambda cluster: setattr(cluster.all_nodes["pve1"], "hastate", "fence"),
            "is being fenced by HA",
        ),
        (lambda cluster: cluster.all_nodes.pop("pve1"), "is not in the cluster"),
    ],
)
def test_a_node_that_is_away_is_skipped_with_the_reason(
    site: Site, change: Callable[[Cluster], object], text: str
) -> None:
    change(site.cluster)
    hold = guard(site).enter(case())
    assert hold == Hold(kind=HoldKind.AWAY, reason=f"node pve1 {text}", skip=True)


@pytest.mark.parametrize("hastate", ["", "online", "unknown"])
def test_what_the_ha_manager_says_of_a_node_that_is_there_does_not_matter_otherwise(
    site: Site, hastate: str
) -> None:
    # Without services the manager idles, and what it says of a node may be old.
    site.cluster.all_nodes["pve1"].hastate = hastate
    assert guard(site).enter(case()) is None


def test_an_api_that_does_not_answer_is_a_node_that_is_away(site: Site) -> None:
    site.faults.add("status", "GET", "/cluster/resources", times=9, status=595)
    hold = guard(site).enter(case())
    assert hold is not None
    assert (hold.kind, hold.skip) == (HoldKind.AWAY, True)


def test_space_that_is_to_stay_free_is_kept(site: Site) -> None:
    assert guard(site, local=100 * GIB).enter(case()) is None
    hold = guard(site, local=101 * GIB).enter(case())
    assert hold is not None
    assert (hold.kind, hold.skip) == (HoldKind.SPACE, True)
    assert hold.reason == "storage local on pve1: 100.0 GiB free, less than min_free 101.0 GiB"


def test_a_node_without_zfs_has_no_scrub_to_wait_for(both: Site) -> None:
    both.cluster.zfs_installed = False  # recordings `read.root.zfs`
    allow_root(both)
    one = guard(both)
    assert one.enter(case()) is None
    assert one.leave(case()) == ""
    assert scrub_guard(both) == "no ZFS pool on pve1"


def test_a_node_whose_zfs_is_not_loaded_skips_nothing_and_says_so(site: Site) -> None:
    """`zpool list` fails there, as on a kernel of the admin's own (API2/Disks/ZFS.pm)."""
    site.cluster.zfs_loaded = False
    allow_root(site)
    one = guard(site)
    with captured_logs() as entries:
        assert one.enter(case()) is None
        assert one.enter(case()) is None
    assert [entry["event"] for entry in entries] == ["scrub detection unavailable"]
    assert scrub_guard(site).startswith("off: listing the ZFS pools of pve1 failed: command '/sbin")


def test_a_pool_that_cannot_be_asked_about_hides_no_other(site: Site) -> None:
    """The server takes no name of one letter (`pve-storage-id`), ZFS does."""
    pools = site.cluster.all_nodes["pve1"].pools
    pools["t"], pools["tank"] = "scrub in progress since Mon", "none requested"
    allow_root(site)
    assert guard(site).enter(case()) is None
    assert scrub_guard(site) == "runs wait for scrubs of tank"
    pools["tank"] = "resilver in progress since Sun Nov  1"
    hold = guard(site).enter(case())
    assert hold is not None
    assert hold.reason == "pool tank on pve1: resilver in progress"


def scrub_guard(site: Site) -> str:
    """Return what `check` says of it."""
    cluster = ProxmoxSettings.model_validate(
        {"host": "h", "pool": POOL, "storages": {"local": {"type": "dir"}}}
    )
    found = NodeChecks(site.connect(), cluster, "pve1").all()
    return next(text for name, _, text in found if name == "scrub guard")


@pytest.mark.parametrize("lock", ["backup", "snapshot", "migrate"])
def test_a_locked_vm_is_waited_for_up_to_a_limit(both: Site, lock: str) -> None:
    both.node.boot(MACHINE)
    one = guard(both)
    vm = both.cluster.vms[both.node.vmid]
    vm.config["lock"] = lock
    hold = one.enter(case())
    assert hold is not None
    assert (hold.kind, hold.skip) == (HoldKind.BUSY, False)
    command = "if no task of it runs, run qm unlock 9000"
    assert hold.reason == f"the benchmark VM on pve1 is locked ({lock}); {command}"
    later = one._now() + LOCKED_SECONDS
    one._now = lambda: later
    assert one.enter(case()) == replace(hold, skip=True)
    del vm.config["lock"]
    assert one.enter(case()) is None


def test_a_vm_that_someone_gave_to_ha_measures_nothing_and_says_how_to_take_it_back(
    both: Site,
) -> None:
    """HA starts, stops and moves it when it likes (`vm_is_ha_managed` in pve-ha-manager)."""
    both.node.boot(MACHINE)
    vm = both.cluster.vms[both.node.vmid]
    vm.hastate = "started"
    hold = guard(both).enter(case())
    assert hold is not None
    assert hold.skip
    assert "HA manages the benchmark VM on pve1 (started)" in hold.reason
    assert "ha-manager remove vm:9000" in hold.reason
    vm.hastate = "ignored"
    assert guard(both).enter(case()) is None


def test_a_vm_that_ha_stops_by_and_by_is_removed_when_it_is_off(both: Site) -> None:
    """Its stop is a task `hastop`, which ends before the VM does (API2/Qemu.pm in qemu-server)."""
    both.node.boot(MACHINE)
    both.cluster.vms[both.node.vmid].hastate = "started"
    both.node.shutdown()
    assert both.cluster.vms == {}


def _delete(site: Site) -> None:
    vm = site.cluster.vms.pop(site.node.vmid)
    vm.machine.stop()
    vm.remove()
    site.cluster.pools[POOL].discard(vm.vmid)


TAKEN = {
    "deleted": _delete,
    "out of the pool": lambda site: site.cluster.pools[POOL].clear(),
    "another mark": lambda site: site.cluster.vms[9000].config.update(description="mine"),
    "on another node": lambda site: setattr(site.cluster.vms[9000], "node", "pve2"),
    "a template": lambda site: site.cluster.vms[9000].config.update(template=1),
}


@pytest.mark.parametrize("what", TAKEN)
def test_a_vm_that_is_taken_from_us_between_two_runs_is_replaced_for_the_next(
    site: Site, what: str
) -> None:
    """The guard asks before the run does: it must not hold what would make another one."""
    one = guard(site)
    wanted = scenario()
    site.node.volume(wanted)
    site.node.boot(MACHINE)
    assert one.enter(case()) is None
    TAKEN[what](site)
    site.clock.skip(61)  # no longer than this is believed that it is in the pool
    assert one.enter(case()) is None
    volume, new = site.node.volume(wanted)
    site.node.boot(MACHINE)
    site.node.attach(volume, wanted.disk)
    assert new
    assert volume.volid.startswith(f"local:{site.node.vmid}/vm-{site.node.vmid}-")
    assert what == "deleted" or site.node.vmid == 9001


def test_a_node_whose_state_is_unknown_is_waited_for_with_the_command(site: Site) -> None:
    """Its pvestatd hangs: it answers all else, and is neither online nor offline."""
    now = [1.0]
    one = guard(site)
    one._now = lambda: now[0]
    site.cluster.all_nodes["pve1"].stalls = True
    hold = one.enter(case())
    assert hold is not None
    assert (hold.kind, hold.skip) == (HoldKind.AWAY, False)
    assert hold.reason == "node pve1 is unknown; run `systemctl status pvestatd` on it"
    now[0] = LOCKED_SECONDS + 2
    hold = one.enter(case())
    assert hold is not None
    assert hold.skip
    site.cluster.all_nodes["pve1"].stalls = False
    assert one.enter(case()) is None
