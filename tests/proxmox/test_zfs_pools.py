"""Which pool a storage lies on, how fragmented it is, whether it is scrubbed; and drives' wear.

Witnesses: the columns that OpenZFS documents with examples (man zpool-list(8)), what its `zpool
status` writes (`print_scan_status` and others in cmd/zpool/zpool_main.c; a whole one of a server,
scrubbed and then resilvered: reports/2023-07 of openfoodfacts/openfoodfacts-infrastructure);
`make e2e-host ARGS=options` reads an OpenZFS of its own;
PVE/API2/Disks/ZFS.pm and Diskmanage.pm of pve-storage with its own tests' drives
(src/test/disk_tests); the recorded answers of disks/list and of /storage, to a token with
Datastore.Audit (`storage.index`). No recorded cluster has ZFS: that its storages name their `pool`
is in PVE/Storage/ZFSPoolPlugin.pm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from pve.site import POOL, Site, scenario
from pvebench.drivers.proxmox.node.node_activity import wear
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.node.node_state import PoolNames, read_state
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from testing.node_guards import allow_root, case, guard

HEAD = """\
  pool: {pool}
 state: ONLINE
  scan: {scan}
"""
END = """\
config:

\tNAME        STATE     READ WRITE CKSUM
\t{pool}       ONLINE       0     0     0
\t  sda       ONLINE       0     0     0

errors: No known data errors
"""
SCRUB = """\
scrub in progress since Sun Nov  1 00:24:02 2026
\t6.99T scanned at 1.20G/s, 6.68T issued at 1.15G/s, 32.1T total
\t0B repaired, 20.80% done, 06:17:42 to go"""
RESILVER = """\
resilver in progress since Mon Nov  2 16:27:48 2026
\t1.78T scanned at 1.30G/s, 315G issued at 231M/s, 32.1T total
\t50.2G resilvered, 0.96% done, 1 days 16:09:43 to go"""
EXPANSION = "  expand: expansion of raidz1-0 in progress since Mon Jan  5 04:30:00 2026"
REMOVAL = "  remove: Evacuation of /dev/sdb in progress since Mon Jan  5 04:30:00 2026"
DONE = "scrub repaired 0B in 04:12:33 with 0 errors on Sun Oct 11 04:36:35 2026"


def state(*status: str) -> str:
    """What `state` of node.sh says of three pools."""
    return f"""\
== md
Personalities :
unused devices: <none>
== zpool
rpool\t19.9G\t8.43G\t11.4G\t33%\t42%\tONLINE
tank\t61.5G\t20.0G\t41.5G\t48%\t32%\tONLINE
zion\t-\t-\t-\t-\t-\tFAULTED
== scrub
{chr(10).join(status)}
== arc
size 4 1603939792
"""


def status(pool: str, scan: str) -> str:
    return (HEAD + END).format(pool=pool, scan=scan)


@pytest.mark.parametrize(
    ("text", "pool", "told"),
    [
        (
            state(status("rpool", DONE), status("tank", SCRUB)),
            "tank",
            {"zfs_fragmentation": 0.48, "zfs_scan": 1.0},
        ),
        (
            state(status("rpool", DONE), status("tank", SCRUB)),
            "rpool",
            {"zfs_fragmentation": 0.33, "zfs_scan": 0.0},
        ),
        (state(status("tank", RESILVER)), "tank", {"zfs_fragmentation": 0.48, "zfs_scan": 1.0}),
        (state(status("zion", "none requested")), "zion", {"zfs_scan": 0.0}),
        *(
            (
                state(status("tank", f"{DONE}\n{line}")),
                "tank",
                {"zfs_fragmentation": 0.48, "zfs_scan": 1.0},
            )
            for line in (EXPANSION, REMOVAL)
        ),
        # Broken off by node.sh: what follows is not known.
        (state(HEAD.format(pool="tank", scan=DONE)), "tank", {"zfs_fragmentation": 0.48}),
        (state("not available"), "other", {}),
        ("not available: the node is away", "tank", {}),
        ("== zpool\n\n \n== scrub\n", "tank", {}),
    ],
)
def test_the_state_by_ssh_reports_of_one_pool(text: str, pool: str, told: dict[str, float]) -> None:
    assert read_state(text, pool) == told


def with_pool(site: Site, pool: str) -> None:
    site.cluster.storages["vmdata"] = replace(
        site.cluster.storages["thin"], name="vmdata", type="zfspool", pool=pool
    )
    site.cluster.pool_storages[POOL].add("vmdata")
    site.cluster.all_nodes["pve1"].pools.update(rpool=DONE, tank=DONE)
    site.cluster.all_nodes["pve1"].fragmentation.update(rpool=33, tank=48)


@pytest.mark.parametrize("pool", ["tank", "tank/vms/fast"])
def test_a_storage_keeps_the_fragmentation_of_its_own_pool(both: Site, pool: str) -> None:
    with_pool(both, pool)
    allow_root(both)
    one = guard(both)
    assert one.enter(case("vmdata")) is None
    assert one.seen["vmdata"]["zfs_fragmentation"] == 0.48
    assert "zfs_fragmentation" not in one.seen["thin"]


def test_a_token_that_may_not_look_keeps_none(site: Site) -> None:
    with_pool(site, "tank")
    one = guard(site)
    assert one.enter(case("vmdata")) is None
    assert "zfs_fragmentation" not in one.seen["vmdata"]


def test_a_storage_of_another_type_is_on_no_pool_that_could_be_named(site: Site) -> None:
    with_pool(site, "tank")
    before = len(site.api.calls)
    names = PoolNames(site.connect())
    assert names.below(ClusterStorage(id="local", type="dir")) == ""
    assert site.api.calls[before:] == []
    assert [names.below(ClusterStorage(id=one, type="zfspool")) for one in ("vmdata", "other")] == [
        "tank",
        "",
    ]
    assert len([call for call in site.api.calls[before:] if "/storage" in call]) == 1


class Stand:
    """What `node.sh` says of a node with ZFS."""

    def devices(self, volid: str) -> tuple[int, ...]:
        return (77,)

    def state(self) -> str:
        return state(status("tank", SCRUB))

    def ask(self, request: str, storage: str) -> bytes:
        return b""

    def close(self) -> None:
        pass


def test_by_ssh_a_disk_reports_what_its_pool_does(site: Site) -> None:
    with_pool(site, "tank")
    node = site.driver("pve1")
    node._storages["vmdata"] = ClusterStorage(id="vmdata", type="zfspool")
    node.use_ssh(cast(NodeSsh, Stand()))
    for storage, told in (("vmdata", {"zfs_fragmentation": 0.48, "zfs_scan": 1.0}), ("local", {})):
        wanted = scenario(storage=storage)
        volume, _ = node.volume(wanted)
        node.boot(wanted.machine)
        assert node.attach(volume, wanted.disk).conditions == told


@pytest.mark.parametrize(
    ("wearout", "worst"),
    [
        (["N/A", 69], 0.31),  # disk_tests/nvme_smart: "Percentage Used: 31%"
        (["100", "97", "99", "100", "91"], 0.09),  # disk_tests/ssd_smart: numbers as text
        ([-4, 80], 1.04),  # Diskmanage.pm: 100 less what smartctl says is used
        (["N/A"], None),  # recordings `read.token.disks`: a virtual drive
        ([None, ""], None),
    ],
)
def test_the_most_worn_drive_counts(wearout: list[Any], worst: float | None) -> None:
    found = wear({"wearout": one} for one in wearout)
    assert found == (None if worst is None else pytest.approx(worst))


def test_wear_is_asked_for_once_a_day_and_kept_for_the_nodes_own_drives(both: Site) -> None:
    both.cluster.all_nodes["pve1"].wearout = ("N/A", 69)
    both.cluster.storages["share"] = replace(both.cluster.storages["share"], type="nfs")
    one = guard(both)
    for _ in range(3):
        assert one.enter(case()) is None
    assert one.seen["local"]["disk_wear"] == pytest.approx(0.31)
    assert "disk_wear" not in one.seen["share"]
    assert sum("disks/list" in call for call in both.api.calls) == 1
    both.cluster.all_nodes["pve1"].wearout = ("N/A",)
    one._now = lambda: both.clock.monotonic() + 24 * 3600
    assert one.enter(case()) is None
    assert "disk_wear" not in one.seen["local"]


def test_wear_that_cannot_be_asked_for_holds_nothing(site: Site) -> None:
    site.cluster.all_nodes["pve1"].wearout = (69,)
    site.faults.add("status", "GET", "/nodes/pve1/disks/list", times=9, status=595)
    one = guard(site)
    assert one.enter(case()) is None
    assert "disk_wear" not in one.seen["local"]


def test_whether_a_run_was_disturbed_is_known_after_it_and_forgotten_before_the_next(
    site: Site,
) -> None:
    one = guard(site)
    one.enter(case())
    assert "disturbed" not in one.seen["local"]
    one.leave(case())
    assert one.seen["local"]["disturbed"] == 0.0
    one.enter(case())
    assert "disturbed" not in one.seen["local"]
    site.cluster.all_nodes["pve1"].replicating.append(102)
    assert one.leave(case()) == "replication of 102 runs on pve1"
    assert one.seen["local"]["disturbed"] == 1.0
    one.enter(case())
    site.faults.add("status", "GET", "/nodes/pve1/tasks", times=9, status=595)
    assert one.leave(case()) == ""
    assert "disturbed" not in one.seen["local"]
