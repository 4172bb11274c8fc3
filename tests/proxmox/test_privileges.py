"""Every request that the driver can make, against the recorded schema of versions 8 and 9.

The server of tests/pve refuses, as a mistake of the test that made it, what the driver sends and
requests.txt does not list: so the list is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pve.listed import REQUESTS, Request, unlisted
from pve.schema import Schema
from pve.site import Site
from pvebench.drivers.proxmox.api.privileges import NODE_PRIVILEGES, SCRUB_PATH, vm_privileges

ADMINISTRATORS = re.compile(r"(GET|POST|PUT|DELETE) /access/(?!permissions)|(POST|PUT) /pools\Z")
"""Requests of `init` and `setup`, made with an administrator's login."""
OPTIONAL = {
    "GET /nodes/{node}/disks/zfs": "with init --with-scrub-guard; else scrubs are not seen",
    "GET /nodes/{node}/disks/zfs/{name}": "with init --with-scrub-guard; else scrubs are not seen",
    "GET /nodes/{node}/ceph/status": "with init --with-scrub-guard; else recovery is not seen",
    "POST /nodes/{node}/qemu/{vmid}/monitor": "on 9 for those who have Sys.Audit on the VM",
}
"""What the token need not be allowed: the driver does without, and says so."""


NOT_ON_8 = {("GET /nodes/{node}/qemu/{vmid}/agent/file-read", 8): {"offset", "count"}}
"""Parameters that the driver sends from version 9.1.5 on."""


def needs(rule: Mapping[str, Any]) -> Iterator[tuple[str, list[str], bool]]:
    """Yield (path, privileges, whether one of them is enough) of an endpoint's permissions."""
    check = rule.get("check")
    if check and check[0] == "perm":
        yield check[1], check[2], "any" in check[3:]


def granted(path: str, major: int, *, scrub_guard: bool = False) -> set[str]:
    """Return what `init` gives on a path as it stands in the schema."""
    if path.startswith("/nodes"):
        return set(NODE_PRIVILEGES)
    if path == SCRUB_PATH:
        return set(NODE_PRIVILEGES) if scrub_guard else set()
    return vm_privileges(major, operations=True)  # /vms, /storage and /pool: through the pool


@pytest.mark.parametrize("entry", REQUESTS, ids=lambda entry: entry.name)
@pytest.mark.parametrize("major", [8, 9])
def test_every_request_is_in_the_schema_with_every_parameter_that_it_sends(
    entry: Request, major: int
) -> None:
    schema = Schema(major)
    known = schema.data["endpoints"][entry.name]["parameters"]
    unknown = {name for name in entry.sends if name not in known}
    assert unknown == NOT_ON_8.get((entry.name, major), set())
    inside = set(re.findall(r"\{(\w+)\}", entry.path))
    wanted = {name for name, rule in known.items() if not rule.get("optional") and "[" not in name}
    assert wanted - inside <= set(entry.sends)


@pytest.mark.parametrize("entry", REQUESTS, ids=lambda entry: entry.name)
@pytest.mark.parametrize("major", [8, 9])
def test_every_request_of_the_token_is_allowed_by_the_rights_that_init_gives(
    entry: Request, major: int
) -> None:
    name = entry.name
    if ADMINISTRATORS.match(name) or name in OPTIONAL:
        return
    for path, privileges, any_of in needs(Schema(major).permissions(name)):
        have = granted(path, major) & set(privileges)
        assert have if any_of else have == set(privileges), (path, privileges)


@pytest.mark.parametrize("major", [8, 9])
def test_every_option_of_the_vm_is_allowed_by_the_rights_that_init_gives(major: int) -> None:
    schema = Schema(major)
    (change,) = (one for one in REQUESTS if one.name.endswith("POST /nodes/{node}/qemu"))
    told = schema.data["option_privileges"]
    of_restore = {"archive", "storage", "force", "unique"}  # no options of the VM
    for option in set(change.sends) - {"vmid", "pool"} - of_restore:
        if option in ("ide[n]", "sata[n]", "scsi[n]", "virtio[n]"):
            needed = {"VM.Config.Disk", "VM.Config.CDROM"}
        else:
            needed = {
                privilege
                for privilege, options in told.items()
                if option in options or f"{option}=socket" in options
            }
        assert needed, option
        assert needed <= vm_privileges(major), option


@pytest.mark.parametrize("major", [8, 9])
def test_no_right_is_given_that_nothing_needs(major: int) -> None:
    schema = Schema(major)
    asked = {
        privilege
        for entry in REQUESTS
        for _, privileges, _ in needs(schema.permissions(entry.name))
        for privilege in privileges
    }
    options = {"VM.Config.CDROM", "VM.Config.Disk"} | {
        privilege
        for privilege, names_ in schema.data["option_privileges"].items()
        if any(name in names_ for entry in REQUESTS for name in entry.sends)
    }
    in_code = {"VM.Allocate", "Datastore.Audit"}  # create: facts of the schema's own code
    in_worker = {"VM.Backup"}  # `exec_backup` in PVE/VZDump.pm checks it
    assert vm_privileges(major, operations=True) <= asked | options | in_code | in_worker


def _told(rule: Mapping[str, Any]) -> str:
    found = [
        f"{path}: {(' or ' if any_of else ' and ').join(privileges)}"
        for path, privileges, any_of in needs(rule)
    ]
    more = " (and checks in code)" if rule.get("additional_checks_in_code") else ""
    other = str(rule.get("check") or rule.get("user"))
    return (found[0] if found else other) + more


@pytest.mark.parametrize("entry", REQUESTS, ids=lambda entry: entry.name)
def test_the_list_has_the_privileges_of_each_request(entry: Request) -> None:
    told = [_told(Schema(major).permissions(entry.name)) for major in (8, 9)]
    assert entry.privileges == " | ".join(dict.fromkeys(told))


def test_what_the_driver_sends_beyond_its_list_is_a_mistake(site: Site) -> None:
    assert unlisted("GET /version", {}) == ""
    assert "foo" in unlisted("GET /version", {"foo": "1"})
    assert "cluster/options" in unlisted("GET /cluster/options", {})
    assert unlisted("PUT /nodes/{node}/qemu/{vmid}/config", {"node": "", "scsi3": "x"}) == ""
    site.connect().get("/version")
    assert site.api.crashes == []
