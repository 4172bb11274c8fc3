"""The least rights that pvebench needs, per version: one table for `init`, `check` and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VM_ROLE: Final = "StorageBenchVM"
NODE_ROLE: Final = "StorageBenchNode"
"""Since 2023 the server keeps every name that begins with PVE, in any case, for itself."""
EARLIER_ROLES: Final = ("PvebenchVm", "PvebenchNode")
"""What they were called before; a server that was upgraded may have them still."""
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
"""Privilege on the pool -> major versions that need it; another one may not even know it."""
NODE_PRIVILEGES: Final = frozenset({"Sys.Audit"})
"""On /nodes: running kernel, versions, what else is busy there."""

SCRUB_PATH: Final = "/"
"""Where NODE_PRIVILEGES let ZFS pools be looked at: /nodes/*/disks/zfs asks on the root itself.
Not inherited, they open nothing below it, only what is the whole cluster's."""

_TOO_MUCH: Final = frozenset({"Permissions.Modify", "Sys.Modify", "Datastore.Allocate"})
"""Rights that nothing here needs and that reach beyond the benchmark's pool."""


def vm_privileges(major: int) -> set[str]:
    """Return what is needed on the pool; version 9 split the right to use the guest agent."""
    return {name for name, majors in _VM_PRIVILEGES.items() if major in majors}


def missing_rights(table: Mapping[str, Mapping[str, int]], *, pool: str, major: int) -> list[str]:
    """Return `PATH: PRIVILEGE …` for each path of an answer of /access/permissions that lacks some.

    In that answer the value says whether a right is inherited further down; 0 is no denial.
    """
    wanted = {f"/pool/{pool}": vm_privileges(major), "/nodes": set(NODE_PRIVILEGES)}
    found = []
    for path, privileges in wanted.items():
        lacking = sorted(privileges - _rights_on(table, path))
        if lacking:
            found.append(f"{path}: {' '.join(lacking)}")
    return found


def privileges_in(text: str) -> set[str]:
    """Return the privileges on the pool that a refusal names."""
    return {name for name in _VM_PRIVILEGES if name in text}


def sees_scrubs(table: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether ZFS pools may be looked at, from an answer of /access/permissions."""
    return _rights_on(table, SCRUB_PATH) >= NODE_PRIVILEGES


def _rights_on(table: Mapping[str, Mapping[str, int]], path: str) -> set[str]:
    """Return the rights in force on a path: told of it, or inherited from the nearest one told."""
    for at in reversed(_upwards(path)):
        if at in table:
            return {name for name, inherited in table[at].items() if inherited or at == path}
    return set()


def excess_rights(table: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return `PATH: PRIVILEGE …` where the token could do what a benchmark never needs."""
    return [
        f"{path}: {' '.join(sorted(_TOO_MUCH & set(rights)))}"
        for path, rights in table.items()
        if _TOO_MUCH & set(rights)
    ]


def _upwards(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/", *("/" + "/".join(parts[: count + 1]) for count in range(len(parts)))]
