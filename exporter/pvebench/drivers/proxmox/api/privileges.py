"""Minimum rights that pvebench needs, per version, for `init`, `check` and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VM_ROLE: Final = "StorageBenchVM"
NODE_ROLE: Final = "StorageBenchNode"
"""Not prefixed with PVE: since 2023 the server reserves that prefix, in upper and lower case."""

USER: Final = "pvebench@pve"
TOKEN_NAME: Final = "bench"  # noqa: S105 # the token's public name, not its secret
FULL_TOKEN: Final = f"{USER}!{TOKEN_NAME}"

_ALWAYS: Final = range(7, 1000)
_VM_PRIVILEGES: Final[Mapping[str, range]] = {
    "Datastore.AllocateSpace": _ALWAYS,
    "Datastore.AllocateTemplate": _ALWAYS,
    "Datastore.Audit": _ALWAYS,
    "Pool.Audit": _ALWAYS,
    "VM.Allocate": _ALWAYS,
    "VM.Audit": _ALWAYS,
    "VM.Config.CDROM": _ALWAYS,
    "VM.Config.CPU": _ALWAYS,
    "VM.Config.Disk": _ALWAYS,
    "VM.Config.HWType": _ALWAYS,
    "VM.Config.Memory": _ALWAYS,
    "VM.Config.Options": _ALWAYS,
    "VM.GuestAgent.Unrestricted": range(9, 1000),
    "VM.Monitor": range(7, 9),
    "VM.PowerMgmt": _ALWAYS,
}
"""Privilege on the pool -> major versions that need it; others may not know the privilege."""
NODE_PRIVILEGES: Final = frozenset({"Sys.Audit"})
"""Privileges on /nodes: running kernel, versions, other activity."""

SCRUB_PATH: Final = "/"
"""Path on which NODE_PRIVILEGES permit listing ZFS pools: /nodes/*/disks/zfs checks the root.
Without inheritance they permit nothing below it, only cluster-wide information."""

_TOO_MUCH: Final = frozenset({"Permissions.Modify", "Sys.Modify", "Datastore.Allocate"})
"""Rights that pvebench never needs and that reach beyond its pool."""


def vm_privileges(major: int) -> set[str]:
    """Return the privileges needed on the pool; version 9 split the guest agent right."""
    return {name for name, majors in _VM_PRIVILEGES.items() if major in majors}


def missing_rights(table: Mapping[str, Mapping[str, int]], *, pool: str, major: int) -> list[str]:
    """Return `PATH: PRIVILEGE …` per path that lacks some in a response of /access/permissions.

    In that response the value states whether paths below inherit a right; 0 is not a denial.
    """
    required = {f"/pool/{pool}": vm_privileges(major), "/nodes": set(NODE_PRIVILEGES)}
    missing = []
    for path, privileges in required.items():
        lacking = sorted(privileges - _rights_on(table, path))
        if lacking:
            missing.append(f"{path}: {' '.join(lacking)}")
    return missing


def privileges_in(text: str) -> set[str]:
    """Return the privileges on the pool that an error message names."""
    return {name for name in _VM_PRIVILEGES if name in text}


def sees_scrubs(table: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether the token may list ZFS pools, from a response of /access/permissions."""
    return _rights_on(table, SCRUB_PATH) >= NODE_PRIVILEGES


def _rights_on(table: Mapping[str, Mapping[str, int]], path: str) -> set[str]:
    """Return the effective rights on a path: its own or the nearest listed parent's."""
    for at in reversed(_upwards(path)):
        if at in table:
            return {name for name, inherited in table[at].items() if inherited or at == path}
    return set()


def excess_rights(table: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return `PATH: PRIVILEGE …` for rights that a benchmark never needs."""
    return [
        f"{path}: {' '.join(sorted(_TOO_MUCH & set(rights)))}"
        for path, rights in table.items()
        if _TOO_MUCH & set(rights)
    ]


def _upwards(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/", *("/" + "/".join(parts[: count + 1]) for count in range(len(parts)))]
