"""Which drive lies below a storage, as far as GET /nodes/{node}/disks/list shows it.

Uses are those of `disklist_expected.json` in `disk_tests/usages` of pve-storage: `LVM`, `ZFS`,
`mounted`, `xfs`; drives of Ceph are `LVM` with `journals`, `db` or an OSD (`osdid-list`).
"""

from __future__ import annotations

from typing import Any

import pytest

from pve.site import Site
from pvebench.drivers.proxmox.node.storage_options import _drive, drives_of, identity_of
from pvebench.model.volume import UNSEEN, device_text, is_same

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
