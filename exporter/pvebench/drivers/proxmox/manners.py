"""Is the node there, what else does it do, and is there room? Asked before and after each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.storages import ClusterStorage
from pvebench.errors import AccessDenied, DriverError
from pvebench.model.guard import Hold, HoldKind
from pvebench.model.units import show_bytes
from pvebench.model.workload import Case

_HEAVY: Final = {
    "vzdump": "a backup", "qmrestore": "a restore", "vzrestore": "a restore",
    "qmigrate": "a migration", "vzmigrate": "a migration", "hamigrate": "a migration",
    "migrateall": "a migration of all guests", "qmclone": "a clone", "vzclone": "a clone",
    "qmmove": "a move of a disk", "move_volume": "a move of a volume",
    "qmsnapshot": "a snapshot", "vzsnapshot": "a snapshot",
    "qmdelsnapshot": "the removal of a snapshot", "vzdelsnapshot": "the removal of a snapshot",
    "qmrollback": "a rollback", "vzrollback": "a rollback", "imgcopy": "an upload",
    "imgdel": "the removal of a volume", "download": "a download",
    "startall": "a start of all guests", "stopall": "a stop of all guests",
    "diskinit": "work on a disk", "zfscreate": "work on a disk", "lvmcreate": "work on a disk",
    "lvmthincreate": "work on a disk", "dircreate": "work on a disk",
}  # fmt: skip
"""Type of a task -> what it is. They move much data, or stop and start guests."""


_MAINTENANCE: Final = "maintenance"
"""State of a node, as the cluster's HA manager keeps it: `ha-manager crm-command node-maintenance`.

/cluster/resources shows the manager's node_status as a node's `hastate` from pve-manager
`HASTATE_SINCE` on, to everybody; on a cluster whose HA manager never ran a node has none.
"""
HASTATE_SINCE: Final = (8, 2, 9)


class NodeGuard:
    """`model.guard.Guard` of one node. Keeps nothing but what was seen last.

    Args:
        storages: name in packs -> storage of the cluster.
        shared: names of those that other nodes write to as well.
        floors: name -> bytes that must stay free.
    """

    def __init__(
        self, api: Api, node: str, *, storages: Mapping[str, ClusterStorage],
        shared: frozenset[str], floors: Mapping[str, int],
    ) -> None:  # fmt: skip
        self._api = api
        self._node = node
        self._storages = storages
        self._shared = shared
        self._floors = floors
        self._sees_pools = True
        self.free: dict[str, int] = {}
        """Storage -> bytes that were free when it was last looked at."""

    def enter(self, case: Case) -> Hold | None:
        """See the protocol."""
        try:
            return self._absent() or self._too_full(case) or self._held(case)
        except DriverError as error:
            return Hold(kind=HoldKind.AWAY, reason=error.reason, skip=True)

    def leave(self, case: Case) -> str:
        """Return what has begun on the node during the run."""
        try:
            return self._busy(case)
        except DriverError:
            return ""  # the next run says what is wrong

    def _absent(self) -> Hold | None:
        rows = self._api.get("/cluster/resources", type="node")
        mine = next((row for row in rows if row.get("node") == self._node), None)
        why = ""
        if mine is None:
            why = "is not in the cluster"
        elif mine.get("status") != "online":
            why = f"is {mine.get('status', 'in an unknown state')}"
        elif mine.get("hastate") == _MAINTENANCE:
            why = "is in maintenance"
        if not why:
            return None
        return Hold(kind=HoldKind.AWAY, reason=f"node {self._node} {why}", skip=True)

    def _too_full(self, case: Case) -> Hold | None:
        name = case.scenario.storage
        path = f"/nodes/{self._node}/storage/{self._storages[name].id}/status"
        try:
            free = int(self._api.get(path).get("avail", 0))
        except Rejected:
            return None  # the run itself says what is wrong with the storage
        self.free[name] = free
        floor = self._floors.get(name, 0)
        if free >= floor:
            return None
        reason = (
            f"storage {name}: {show_bytes(free)} free on {self._node}, "
            f"{show_bytes(floor)} are to stay free"
        )
        return Hold(kind=HoldKind.SPACE, reason=reason, skip=True)

    def _held(self, case: Case) -> Hold | None:
        busy = self._busy(case)
        return Hold(kind=HoldKind.BUSY, reason=busy) if busy else None

    def _busy(self, case: Case) -> str:
        """Return what else works on the node, or on the case's storage from another one."""
        nodes = [self._node]
        if case.scenario.storage in self._shared:
            rows = self._api.get("/cluster/resources", type="node")
            others = {str(row["node"]) for row in rows if row.get("status") == "online"}
            nodes += sorted(others - {self._node})
        for node in nodes:
            tasks = self._api.get(f"/nodes/{node}/tasks", source="active", limit=200)
            if text := heavy_task(tasks):
                return f"{text} runs on {node}"
        return self._replication() or self._scrub()

    def _replication(self) -> str:
        jobs = self._api.get(f"/nodes/{self._node}/replication")
        running = [str(job.get("guest", job.get("id"))) for job in jobs if job.get("pid")]
        return f"replication of {', '.join(running)} runs on {self._node}" if running else ""

    def _scrub(self) -> str:
        """Look at the node's ZFS pools, as far as the token may: that wants Sys.Audit on `/`."""
        if not self._sees_pools:
            return ""
        path = f"/nodes/{self._node}/disks/zfs"
        try:
            for pool in self._api.get(path):
                scan = str(self._api.get(f"{path}/{pool['name']}").get("scan", ""))
                if "in progress" in scan:
                    what = scan.partition(" in progress")[0]
                    return f"a {what} of pool {pool['name']} runs on {self._node}"
        except AccessDenied:
            self._sees_pools = False
        return ""


def heavy_task(tasks: Iterable[Mapping[str, Any]]) -> str:
    """Return what the first task that runs and moves much data is, or an empty string."""
    for task in tasks:
        kind = str(task.get("type", ""))
        if task.get("endtime") or str(task.get("status", "RUNNING")) not in ("RUNNING", "running"):
            continue
        if kind in _HEAVY or kind.startswith("ceph"):
            what = _HEAVY.get(kind, f"a task of type {kind}")
            return f"{what} ({task.get('id')})" if task.get("id") else what
    return ""
