"""Roles, users and privileges in a cluster, for `init`, `check` and tests. No I/O.

Tables of rights are responses of /access/permissions: path -> privilege -> whether paths below
inherit it. A value of 0 is not a denial.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

VM_ROLE: Final = "StorageBenchVM"
NODE_ROLE: Final = "StorageBenchNode"
"""Not prefixed with PVE: since 2023 the server reserves that prefix, in upper and lower case."""

TOKEN_NAME: Final = "bench"  # noqa: S105 # the token's public name, not its secret
DEFAULT_POOL: Final = "pvebench"
MAX_POOL: Final = 51
"""Characters; the server limits a user ID to 64 (`maxLength` of POST /access/users)."""

_VM_PRIVILEGES: Final = frozenset(
    (
        *("Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit", "Pool.Audit"),
        *("VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk"),
        *("VM.Config.HWType", "VM.Config.Memory", "VM.Config.Options", "VM.PowerMgmt"),
    )
)
"""Privileges on the pool that all versions know."""
_AGENT: Final = "VM.GuestAgent.Unrestricted"
_AGENT_BEFORE_9: Final = "VM.Monitor"
OPERATION_ROLE: Final = "StorageBenchOperations"
"""Role of its own: every pvebench of the cluster shares VM_ROLE, but not all have operations."""
OPERATION_PRIVILEGES: Final = frozenset({"VM.Backup", "VM.Snapshot"})
"""Further privileges on the pool for snapshots and backups of the benchmark VM."""
TEMPLATE_ROLE: Final = "StorageBenchTemplate"
TEMPLATE_PRIVILEGES: Final = frozenset({"VM.Audit", "VM.Clone"})
"""Privileges on a VM of the user's that Windows guests are cloned from."""
NODE_PRIVILEGES: Final = frozenset({"Sys.Audit"})
"""Privileges on /nodes: running kernel, versions, other activity."""

AUDIT_ROLE: Final = "StorageBenchAudit"
AUDIT_PRIVILEGES: Final = {
    "/vms": frozenset({"VM.Audit"}),
    "/storage": frozenset({"Datastore.Audit"}),
}
"""Path -> privileges with which `pvebench advise --vms` reads all VMs; AUDIT_ROLE has both."""

SCRUB_PATH: Final = "/"
"""Path on which NODE_PRIVILEGES permit listing ZFS pools: /nodes/*/disks/zfs checks the root.
Without inheritance they permit nothing below it, only cluster-wide information."""

_TOO_MUCH: Final = frozenset({"Permissions.Modify", "Sys.Modify", "Datastore.Allocate"})
"""Rights that pvebench never needs and that reach beyond its pool."""

Rights = Mapping[str, Mapping[str, int]]


def user_of(pool: str) -> str:
    """Return the user of a pool; two pools never share user or token."""
    return "pvebench@pve" if pool == DEFAULT_POOL else f"pvebench-{pool}@pve"


def token_of(pool: str) -> str:
    """Return the full token ID of a pool."""
    return f"{user_of(pool)}!{TOKEN_NAME}"


def vm_privileges(major: int, *, operations: bool = False) -> set[str]:
    """Return the privileges needed on the pool; a version rejects names that it does not know.

    Args:
        operations: also those for snapshots and backups.
    """
    agent = _AGENT if major >= 9 else _AGENT_BEFORE_9
    return {*_VM_PRIVILEGES, agent, *(OPERATION_PRIVILEGES if operations else ())}


def privileges_in(text: str) -> set[str]:
    """Return the privileges on the pool that an error message names."""
    return {name for name in (*_VM_PRIVILEGES, _AGENT, _AGENT_BEFORE_9) if name in text}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredGrants:
    """Required objects and rights.

    Attributes:
        major: major version of the server, on which the name of the guest agent right depends.
        storages: IDs of the measured storages and of the one for the guest image.
        scrub_guard: also grant the right to detect scrubs of ZFS pools.
        operations: also grant the rights for snapshots and backups of the benchmark VM.
        advice: also grant the rights to read the configuration of all VMs and storages.
        templates: IDs of VMs that guests are cloned from.
    """

    major: int
    pool: str
    storages: Sequence[str] = ()
    scrub_guard: bool = False
    operations: bool = False
    advice: bool = False
    templates: Sequence[int] = ()

    @property
    def user(self) -> str:
        """User of the pool."""
        return user_of(self.pool)

    @property
    def token(self) -> str:
        """Full ID of its token."""
        return token_of(self.pool)

    @property
    def roles(self) -> list[tuple[str, str, Collection[str], bool]]:
        """Path, role on it, its privileges, and whether lower paths inherit them."""
        pool, audit = f"/pool/{self.pool}", frozenset[str]().union(*AUDIT_PRIVILEGES.values())
        clone = TEMPLATE_ROLE, TEMPLATE_PRIVILEGES, True
        return [
            (pool, VM_ROLE, vm_privileges(self.major), True),
            ("/nodes", NODE_ROLE, NODE_PRIVILEGES, True),
            # Without propagation, rights on / do not apply to lower paths.
            *[(SCRUB_PATH, NODE_ROLE, NODE_PRIVILEGES, False)] * self.scrub_guard,
            *[(pool, OPERATION_ROLE, OPERATION_PRIVILEGES, True)] * self.operations,
            *[(path, AUDIT_ROLE, audit, True) for path in AUDIT_PRIVILEGES if self.advice],
            *[(f"/vms/{vmid}", *clone) for vmid in self.templates],
        ]


def missing_rights(table: Rights, needed: RequiredGrants) -> list[str]:
    """Return `PATH: PRIVILEGE …` per path that lacks some."""
    needs: dict[str, set[str]] = {}
    for path, _, privileges, _ in needed.roles:
        needs.setdefault(path, set()).update(privileges)
    return _lines((path, rights - _rights_on(table, path)) for path, rights in needs.items())


def missing_audit_rights(table: Rights) -> list[str]:
    """Return `PATH: PRIVILEGE` for each path that an audit of all VMs cannot read."""
    return _lines(
        (path, needed - _rights_on(table, path, below=True))
        for path, needed in AUDIT_PRIVILEGES.items()
    )


def excess_rights(table: Rights) -> list[str]:
    """Return `PATH: PRIVILEGE …` for rights that a benchmark never needs."""
    return _lines((path, _TOO_MUCH & rights.keys()) for path, rights in table.items())


def sees_scrubs(table: Rights) -> bool:
    """Return whether the token may list ZFS pools."""
    return _rights_on(table, SCRUB_PATH) >= NODE_PRIVILEGES


def _lines(found: Iterator[tuple[str, Collection[str]]]) -> list[str]:
    return [f"{path}: {' '.join(sorted(privileges))}" for path, privileges in found if privileges]


def _rights_on(table: Rights, path: str, *, below: bool = False) -> set[str]:
    """Return the effective rights on a path, or below: its own or the nearest parent's."""
    parts = path.strip("/").split("/")
    parents = ["/" + "/".join(parts[:count]) for count in range(len(parts), -1, -1)]
    at = next((at for at in parents if at in table), None)
    own = at == path and not below
    return {name for name, inherited in table.get(at or "", {}).items() if inherited or own}
