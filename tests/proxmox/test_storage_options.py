"""Options of a storage are facts of the environment, and a volume is replaced with them.

Witnesses: `storage.index` of the recordings, which gives a token with Datastore.Audit all options
of a storage, and `storage.get`, which it may not ask; which options a type has is in `options` of
its plugin in pve-storage (src/PVE/Storage/*Plugin.pm, 9.0). The output of zfs is that of
zfs-get(8) with -H: fields apart by one tab; of lvs and findmnt, what LVM 2.03.16 and util-linux
2.38 print here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxmox.test_calls import IDLE, Bench
from proxmox.test_vm_volumes import begin, fill
from pve.site import MACHINE, Site, scenario
from pvebench.drivers.proxmox.node.storage_options import (
    DEFAULT,
    UNKNOWN,
    StorageOptions,
    _drive,
    configured,
    drives_of,
    effective,
    identity_of,
)
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.errors import OutputUnreadable, ServerGone, VolumeError
from pvebench.model.disk import Format
from pvebench.model.environment import PendingUpdates
from pvebench.model.run import Outcome
from pvebench.model.volume import UNSEEN, device_text, is_same
from pvebench.model.workload import Case, Conduct

DIGEST = "e2263f8e36e13df6a466de8eafae0a04883f97d3"
RECORDED = [
    {
        "digest": DIGEST,
        "path": "/srv/small",
        "storage": "smallfull",
        "type": "dir",
        "content": "images",
        "preallocation": "full",
    },
    {
        "storage": "small",
        "content": "images",
        "path": "/srv/small",
        "digest": DIGEST,
        "type": "dir",
    },
]
"""Two rows of `storage.index`, pve 9.2.11; 8.4.1 answers the same."""


def test_options_of_real_storages_are_read_and_others_are_at_their_default() -> None:
    full, small = map(configured, RECORDED)
    plain = dict.fromkeys(("preallocation", "snapshot-as-volume-chain", "bwlimit"), DEFAULT)
    plain["type"] = "dir"
    assert (full, small) == ({**plain, "preallocation": "full"}, plain)


ROWS = [
    (
        {"type": "zfspool", "pool": "rpool/data", "blocksize": "16k", "sparse": 1},
        "blocksize",
        "16k",
    ),
    ({"type": "zfspool", "pool": "rpool/data", "sparse": 1}, "sparse", "1"),
    ({"type": "zfspool", "sparse": 0}, "sparse", DEFAULT),
    ({"type": "rbd", "krbd": "1"}, "krbd", "1"),
    ({"type": "lvm", "saferemove": 1}, "saferemove", "1"),
    ({"type": "lvm", "snapshot-as-volume-chain": 1}, "snapshot-as-volume-chain", "1"),
    ({"type": "btrfs", "nocow": 1}, "nocow", "1"),
    ({"type": "nfs", "options": "vers=4.2,nconnect=4"}, "options", "vers=4.2,nconnect=4"),
    ({"type": "cifs", "options": "cache=none,password=x,username=me"}, "options", "cache=none"),
    ({"type": "nfs", "options": "vers=3,clientaddr=10.0.0.9"}, "options", "vers=3"),
    ({"type": "nfs", "options": "vers=3\x1b[2J"}, "options", UNKNOWN),
    ({"type": "nfs", "options": "x" * 5000}, "options", UNKNOWN),
]


@pytest.mark.parametrize(("row", "key", "value"), ROWS)
def test_an_option_is_shown_without_names_of_people_and_servers(
    row: dict[str, Any], key: str, value: str
) -> None:
    assert configured(row)[key] == value


ON_NODE = {
    "sync\tstandard\nprimarycache\tall\ncompression\tzstd\nrecordsize\t128K\n": {
        "sync": "standard",
        "primarycache": "all",
        "compression": "zstd",
        "recordsize": "128K",
    },
    "chunk_size 64.00k\nzero zero\ndiscards passdown\n": {
        "chunk_size": "64.00k",
        "zero": "zero",
        "discards": "passdown",
    },
    "ext4 rw,relatime,nobarrier,data=writeback\n": {"ext4": "rw,relatime,nobarrier,data=writeback"},
    "nfs4 rw,vers=4.2,addr=10.0.0.1,clientaddr=10.0.0.2\n": {"nfs4": "rw,vers=4.2"},
    "": {},
    "sync \x1b[2J\n": {},
    "x y\n" * 500: {"x": "y"},
}


@pytest.mark.parametrize(("output", "values"), ON_NODE.items())
def test_values_on_the_node_are_read(output: str, values: dict[str, str]) -> None:
    assert effective(output) == values


def test_a_storage_that_the_token_does_not_see_has_unknown_options(site: Site) -> None:
    unseen = StorageOptions(site.connect(), {"a": ClusterStorage(id="nosuch", type="dir")})
    assert unseen.refresh() == {"storage a options": UNKNOWN}


def change(site: Site, **options: object) -> None:
    """Have an administrator run `pvesm set local`."""
    site.cluster.storages["local"].options = options


def test_a_changed_option_is_an_environment_of_its_own_after_a_restart(site: Site) -> None:
    site.node.boot(MACHINE)
    before = site.node.environment()
    assert before.facts["storage local preallocation"] == DEFAULT
    change(site, preallocation="full")
    site.clock.skip(61)
    assert site.node.upkeep().restart == "storage local preallocation full"
    site.node.power_off()
    site.node.boot(MACHINE)
    after = site.node.environment()
    assert after.facts == {**before.facts, "storage local preallocation": "full"}
    assert after.digest != before.digest
    site.clock.skip(61)
    change(site, preallocation="full", notes="a word about it")
    assert site.node.upkeep() == PendingUpdates()


def test_a_volume_of_other_options_is_replaced(site: Site) -> None:
    volume, new = site.node.volume(scenario())
    assert new
    assert site.node.volume(scenario()) == (volume, False)
    change(site, preallocation="falloc")
    site.node.upkeep()
    site.clock.skip(61)
    site.node.upkeep()
    _, new = site.node.volume(scenario())
    assert new
    assert site.node.volume(scenario())[1] is False


class SilentNode:
    """As much of a NodeSsh as is asked for options; without an answer it is silent."""

    def __init__(self, *answers: str) -> None:
        self.answers = [*answers]

    def ask(self, *words: str) -> bytes:
        assert words[0] == "options"
        if not self.answers:
            raise ServerGone("the node does not respond", next_step="check the node")
        return self.answers.pop().encode()

    def devices(self, volid: str) -> tuple[int, ...]:
        raise ServerGone(f"the node does not respond: {volid}")

    def state(self) -> str:
        return "not available"

    def close(self) -> None:
        pass


def use(options: StorageOptions, node: SilentNode) -> StorageOptions:
    options.on_node = node  # type: ignore[assignment] # as much of a NodeSsh as is asked
    return options


def test_a_lost_answer_of_the_node_changes_no_value(site: Site) -> None:
    storages = {"a": ClusterStorage(id="local", type="dir")}
    options = use(StorageOptions(site.connect(), storages), SilentNode("sync\tdisabled\n"))
    known = options.refresh()
    assert known["storage a sync"] == "disabled"
    assert options.refresh() == known
    assert options.of_new_volume("a").endswith(" sync=disabled")
    never = use(StorageOptions(site.connect(), storages), SilentNode())
    for ask in (never.refresh, lambda: never.of_new_volume("a")):
        with pytest.raises(ServerGone, match=r"options of storage local .* are unknown") as caught:
            ask()
        assert caught.value.next_step == "check the node"


class Overflow(SilentNode):
    def ask(self, *_: str) -> bytes:
        raise OutputUnreadable("more than 64 MiB")


@pytest.mark.parametrize("silent", [SilentNode(), Overflow()])
def test_an_unreadable_answer_ends_no_worker_and_is_no_environment(
    site: Site, silent: SilentNode
) -> None:
    site.node.boot(MACHINE)
    site.node.use_ssh(silent)  # type: ignore[arg-type] # likewise
    assert site.node.upkeep() == PendingUpdates()
    assert not any(name.startswith("storage") for name in site.node.host_environment().facts)
    with pytest.raises(ServerGone, match="are unknown"):
        site.node.environment()


def test_no_volume_is_replaced_because_the_node_is_silent_after_a_start(site: Site) -> None:
    """In its own process and in the next one, whose first request is lost."""
    storages = len(site.cluster.storages)
    answers = ["ext4 rw,relatime\n"] * storages
    begin(site).use_ssh(SilentNode(*answers))  # type: ignore[arg-type] # likewise
    volume = fill(site, scenario())
    site.node.shutdown()
    node = begin(site)
    node.use_ssh(silent := SilentNode())  # type: ignore[arg-type] # likewise
    for _ in range(3):
        with pytest.raises(ServerGone, match="are unknown"):
            node.volume(scenario())
    silent.answers += answers
    assert node.volume(scenario()) == (volume, False)
    assert node.content(volume) == "data"


class OneUnread(SilentNode):
    """A node that cannot read its storage `thin`."""

    def ask(self, *words: str) -> bytes:
        if words[1] == "thin":
            raise VolumeError("options of storage thin: reading failed")
        return b"ext4 rw,relatime\n"


def test_a_storage_that_the_node_cannot_read_stops_its_own_cases_only(site: Site) -> None:
    node = begin(site)
    node.use_ssh(OneUnread())  # type: ignore[arg-type] # likewise
    node.volume(scenario())
    node.boot(MACHINE)
    known = {name for name in node.environment().facts if name.startswith("storage thin")}
    assert known == {"storage thin type", "storage thin bwlimit"}
    other = replace(scenario(kind=Format.RAW), storage="thin")
    for _ in range(2):
        with pytest.raises(VolumeError, match="reading failed"):
            node.volume(other)
    node.use_ssh(SilentNode(*["ext4 rw\n"] * 9))  # type: ignore[arg-type] # likewise
    assert node.volume(other)[1]


def test_a_kept_volume_stays_while_the_node_cannot_read_its_storage(site: Site) -> None:
    answers = ["ext4 rw,relatime\n"] * len(site.cluster.storages)
    begin(site).use_ssh(SilentNode(*answers))  # type: ignore[arg-type] # likewise
    thin = replace(scenario(kind=Format.RAW), storage="thin")
    volume = fill(site, thin)
    site.node.shutdown()
    node = begin(site)
    node.use_ssh(OneUnread())  # type: ignore[arg-type] # likewise
    node.volume(scenario())
    with pytest.raises(VolumeError, match="reading failed"):
        node.volume(thin)
    node.use_ssh(SilentNode(*answers * 2))  # type: ignore[arg-type] # likewise
    assert node.volume(thin) == (volume, False)
    assert node.content(volume) == "data"


def test_a_run_fails_and_says_why_while_the_options_are_unknown(site: Site) -> None:
    site.node.use_ssh(SilentNode())  # type: ignore[arg-type] # likewise
    case = Case(scenario=scenario(), workload=IDLE)
    run = Bench(site).runner.run(case, cycle="c", conduct=Conduct())
    assert (run.outcome, run.retryable) == (Outcome.FAILED, True)
    assert run.reason.startswith("options of storage ")
    assert run.reason.endswith(" on its node are unknown: the node does not respond")
    assert "check the node" in run.evidence["error"]
    assert not any(name.startswith("storage") for name in run.environment.facts)


SDA = {"devpath": "/dev/sda", "model": "Samsung SSD 860", "serial": "SERIAL1", "type": "ssd"}
BOOT = [
    {**SDA, "used": "partitions"},
    {"devpath": "/dev/sda1", "parent": "/dev/sda", "used": "BIOS boot", "type": "partition"},
    {"devpath": "/dev/sda3", "parent": "/dev/sda", "used": "LVM", "type": "partition"},
]
CEPH = {**SDA, "devpath": "/dev/sdb", "used": "LVM", "osdid-list": [1], "bluestore": 1}
CEPH_DB = {**SDA, "devpath": "/dev/sdi", "used": "LVM", "osdid-list": None, "db": 1}
ZFS = {**SDA, "devpath": "/dev/sdc", "used": "ZFS"}
ONLY = "Samsung SSD 860, serial …IAL1, ssd (only LVM drive of the node)"


@pytest.mark.parametrize(
    ("use", "drives", "found"),
    [
        ("LVM", [*BOOT, CEPH, CEPH_DB, ZFS], ONLY),
        ("LVM", [{**SDA, "used": "LVM"}], ONLY),
        ("LVM", [*BOOT, {**SDA, "devpath": "/dev/sdd", "used": "LVM"}], UNSEEN),
        ("ZFS", [*BOOT, ZFS, {**ZFS, "devpath": "/dev/sdd"}], UNSEEN),
        ("ZFS", BOOT, UNSEEN),
        ("", [{**SDA, "used": ""}], UNSEEN),
    ],
)
def test_only_a_drive_with_a_unique_use_is_named(use: str, drives: list[Any], found: str) -> None:
    assert _drive(use, drives) == found


def test_the_device_line_names_the_drive_and_a_replaced_one_is_another_storage(site: Site) -> None:
    site.cluster.all_nodes["pve1"].drives = list(BOOT)
    api = site.connect()
    drives = drives_of(api, "pve1")
    assert drives == BOOT
    was = identity_of(api, "thin", drives)
    assert device_text(was) == f"{ONLY}, lvmthin"
    other = identity_of(api, "thin", [{**SDA, "serial": "OTHER99", "used": "LVM"}])
    assert not is_same(was, other)
    # What is not visible is no evidence of another storage, in either order.
    unseen = identity_of(api, "thin", [])
    assert device_text(unseen) == f"{UNSEEN}, lvmthin"
    assert is_same(was, unseen)
    assert is_same(unseen, was)
