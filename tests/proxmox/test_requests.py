"""Every request that the driver can make, against the recorded schema of versions 8 and 9.

The server of tests/pve refuses, as a mistake of the test that made it, what the driver sends and
`drivers.proxmox.endpoints` does not list: so the list is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import pve
from pve.schema import Schema
from pve.server import unlisted
from pve.site import Site
from pvebench.drivers.proxmox.api.endpoints import (
    ENDPOINTS,
    NODE_PRIVILEGES,
    SCRUB_PATH,
    Endpoint,
    vm_privileges,
)

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


def names(entry: Endpoint) -> str:
    return f"{entry.method} {entry.path}"


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


@pytest.mark.parametrize("entry", ENDPOINTS, ids=names)
@pytest.mark.parametrize("major", [8, 9])
def test_every_request_is_in_the_schema_with_every_parameter_that_it_sends(
    entry: Endpoint, major: int
) -> None:
    schema = Schema(major)
    known = schema.data["endpoints"][names(entry)]["parameters"]
    unknown = {name for name in entry.sends if name not in known}
    assert unknown == NOT_ON_8.get((names(entry), major), set())
    inside = set(re.findall(r"\{(\w+)\}", entry.path))
    wanted = {name for name, rule in known.items() if not rule.get("optional") and "[" not in name}
    assert wanted - inside <= set(entry.sends)


@pytest.mark.parametrize("entry", ENDPOINTS, ids=names)
@pytest.mark.parametrize("major", [8, 9])
def test_every_request_of_the_token_is_allowed_by_the_rights_that_init_gives(
    entry: Endpoint, major: int
) -> None:
    name = names(entry)
    if ADMINISTRATORS.match(name) or name in OPTIONAL:
        return
    for path, privileges, any_of in needs(Schema(major).permissions(name)):
        have = granted(path, major) & set(privileges)
        assert have if any_of else have == set(privileges), (path, privileges)


@pytest.mark.parametrize("major", [8, 9])
def test_every_option_of_the_vm_is_allowed_by_the_rights_that_init_gives(major: int) -> None:
    schema = Schema(major)
    (change,) = (one for one in ENDPOINTS if names(one).endswith("POST /nodes/{node}/qemu"))
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
        for entry in ENDPOINTS
        for _, privileges, _ in needs(schema.permissions(names(entry)))
        for privilege in privileges
    }
    options = {"VM.Config.CDROM", "VM.Config.Disk"} | {
        privilege
        for privilege, names_ in schema.data["option_privileges"].items()
        if any(name in names_ for entry in ENDPOINTS for name in entry.sends)
    }
    in_code = {"VM.Allocate", "Datastore.Audit"}  # create: facts of the schema's own code
    in_worker = {"VM.Backup"}  # `exec_backup` in PVE/VZDump.pm checks it
    assert vm_privileges(major, operations=True) <= asked | options | in_code | in_worker


def listing() -> str:
    """Return a line a request: its privilege on 8, then on 9 where that is another one."""
    lines = []
    for entry in ENDPOINTS:
        told = [_told(Schema(major).permissions(names(entry))) for major in (8, 9)]
        lines.append(" | ".join([names(entry), *dict.fromkeys(told)]))
    return "\n".join(lines) + "\n"


def _told(rule: Mapping[str, Any]) -> str:
    found = [
        f"{path}: {(' or ' if any_of else ' and ').join(privileges)}"
        for path, privileges, any_of in needs(rule)
    ]
    more = " (and checks in code)" if rule.get("additional_checks_in_code") else ""
    other = str(rule.get("check") or rule.get("user"))
    return (found[0] if found else other) + more


def test_the_list_of_requests_and_their_privileges_is_this() -> None:
    assert listing() == Path(pve.__file__).with_name("requests.txt").read_text("utf-8")


def test_what_the_driver_sends_beyond_its_list_is_a_mistake(site: Site) -> None:
    assert unlisted("GET /version", {}) == ""
    assert "foo" in unlisted("GET /version", {"foo": "1"})
    assert "cluster/options" in unlisted("GET /cluster/options", {})
    assert unlisted("PUT /nodes/{node}/qemu/{vmid}/config", {"node": "", "scsi3": "x"}) == ""
    site.connect().get("/version")
    assert site.api.crashes == []
