"""Other activity on a node, its state and free space, checked before and after each run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pvebench.drivers.ceph_state import Trouble, trouble
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.api.tasks import starts_in_a_day, tasks_of
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.node.node_state import AGAIN_SECONDS, RUNS, PoolNames, zfs_pools
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES, ClusterStorage
from pvebench.drivers.proxmox.vm.vm_volumes import space_of
from pvebench.errors import AccessDenied, DriverError, VolumeError
from pvebench.log import log
from pvebench.model import run_metrics
from pvebench.model.ports import Guard, Hold, HoldKind
from pvebench.model.units import DAY, show_bytes
from pvebench.model.workload import Case

_HEAVY_TASKS: Final = {
    "a backup": "vzdump",
    "a restore": "qmrestore vzrestore",
    "a migration": "qmigrate vzmigrate hamigrate",
    "a migration of all guests": "migrateall",
    "a migration of many guests": "bulk-migrate",
    "a clone": "qmclone vzclone",
    "a move of a disk": "qmmove",
    "a move of a volume": "move_volume",
    "a snapshot": "qmsnapshot vzsnapshot",
    "the removal of a snapshot": "qmdelsnapshot vzdelsnapshot",
    "a rollback": "qmrollback vzrollback",
    "an upload": "imgcopy",
    "the removal of a volume": "imgdel",
    "a download": "download ociregistrypull",
    "a suspension to disk": "qmsuspend",
    "the creation of a container": "vzcreate",
    "a start of all guests": "startall",
    "a stop of all guests": "stopall",
    "a suspension of all guests": "suspendall",
    "a start of many guests": "bulk-start",
    "a stop of many guests": "bulk-shutdown",
    "a suspension of many guests": "bulk-suspend",
    "work on a disk": "diskinit wipedisk zfscreate lvmcreate lvmthincreate dircreate",
}
"""Description -> task types, of tasks that move much data, or stop and start guests.

The types are those of `fork_worker` in pve-manager, qemu-server, pve-container and pve-storage.
"""
_HEAVY: Final = {kind: what for what, kinds in _HEAVY_TASKS.items() for kind in kinds.split()}
_AWAY: Final = {"maintenance": "is in maintenance", "fence": "is being fenced by HA"}
"""Node state of the cluster's HA manager -> what it means.

/cluster/resources contains the manager's node_status as a node's `hastate` from pve-manager
`HASTATE_SINCE` on, without special rights. If the HA manager never ran, nodes have none.
"""
HASTATE_SINCE: Final = (8, 2, 9)


_NOT_MANAGED: Final = ("", "ignored")
"""States of a guest that HA does not manage (`vm_is_ha_managed` in pve-ha-manager's Config.pm)."""
UNKNOWN_NODE: Final = "; run `systemctl status pvestatd` on it"
LOCKED_SECONDS: Final = 6 * 3600.0
"""Maximum wait for a lock of the VM, or the state of the node, seconds; then cases are skipped."""
_STILL_SECONDS: Final = 2.0
_NUMBER: Final = re.compile(r"-?\d{1,4}(\.\d{1,4})?")
Rows = list[Mapping[str, Any]]
"""Response of /cluster/resources."""
_WEAR_SECONDS: Final = 24 * 3600.0
"""Interval of wear requests, seconds: the node queries each drive, and wear changes slowly."""


class NodeGuard:
    """`model.guard.Guard` of a node. Keeps only the latest observations.

    Args:
        storages: name in packs -> cluster storage.
        claims: claims of pvebench instances on this node.
    """

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        storages: Mapping[str, ClusterStorage],
        claims: Claims,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._claims = claims
        self.needs: Callable[[Case], int] = lambda _: 0
        """Returns the bytes that the volumes of a case still need; 0 if unknown."""
        self._now = now
        self._locked_since: float | None = None
        self._unknown_since = 0.0
        self._free: tuple[float, str] | None = None
        """Time of the last check without other activity, monotonic seconds, and its storage."""
        self._api = api
        self._node = node
        self._storages = storages
        self._sees_pools = True
        self._sees_ceph = True
        self.free: dict[str, int] = {}
        """Storage -> free bytes at the last check."""
        self._pool_names = PoolNames(api)
        self._worn_at: float | None = None
        self.seen: dict[str, dict[str, float]] = {name: {} for name in storages}
        """Storage -> other values at the last check, by metric."""

    def enter(self, case: Case) -> Hold | None:
        self.seen[case.scenario.storage].pop("disturbed", None)  # it belongs to the previous run
        try:
            rows = self._api.get("/cluster/resources")
            hold = (
                self._absent(rows)
                or self._without_space(case)
                or self._locked(rows)
                or self._claimed(rows)
                or self._held(case, rows)
            )
            if hold is None and (unwell := self._ceph(case)) is not None:
                hold = unwell.hold()
        except DriverError as error:
            return Hold(kind=HoldKind.AWAY, reason=error.reason, skip=True)
        if hold is None:
            self._look_at_wear()
        return hold

    def leave(self, case: Case) -> str:
        """Return the activity that started on the node during the run."""
        try:
            shared = self._storages[case.scenario.storage].is_shared
            rows = self._api.get("/cluster/resources", type="node") if shared else []
            busy = self._busy(case, rows) or self._claims.disturbed()
            unwell = None if busy else self._ceph(case)
            busy = unwell.text if unwell else busy
            self._free = None if busy else (self._now(), case.scenario.storage)
            self.seen[case.scenario.storage]["disturbed"] = float(bool(busy))
        except DriverError:
            return ""  # the next run reports the error
        return busy

    def _absent(self, rows: Rows) -> Hold | None:
        own = next((row for row in _nodes(rows) if row.get("node") == self._node), None)
        why = ""
        if own is None:
            why = "is not in the cluster"
        elif own.get("status") != "online":
            why = f"is {own.get('status', 'in an unknown state')}"
        else:
            why = _AWAY.get(str(own.get("hastate")), "")
        unknown = why == "is unknown"
        self._unknown_since = (self._unknown_since or self._now()) if unknown else 0.0
        if not why:
            return None
        reason = f"node {self._node} {why}{UNKNOWN_NODE * unknown}"
        skip = not unknown or self._now() - self._unknown_since > LOCKED_SECONDS
        return Hold(kind=HoldKind.AWAY, reason=reason, skip=skip)

    def _without_space(self, case: Case) -> Hold | None:
        name = case.scenario.storage
        path = f"/nodes/{self._node}/storage/{self._storages[name].id}/status"
        try:
            status = self._api.get(path)
        except Rejected:
            return None  # the run itself reports the storage error
        floor, needs = self._storages[name].min_free or 0, self.needs(case)
        try:
            space = space_of(status, name, self._node, floor)
        except VolumeError as error:
            self.free.pop(name, None)
            self.seen[name].pop(run_metrics.STORAGE_USED.name, None)
            reason = f"{error.reason}; {error.next_step}"
            return Hold(kind=HoldKind.AWAY, reason=reason, skip=True)
        free, total = space.free, int(status.get("total", 0))
        self.free[name] = free
        if total > 0:
            self.seen[name][run_metrics.STORAGE_USED.name] = 1 - free / total
        reason = space.lacks(name, needs) if needs else ""
        if free < floor:
            reason = f"storage {name} on {self._node}: {show_bytes(free)} free, "
            reason += f"less than min_free {show_bytes(floor)}"
        return Hold(kind=HoldKind.SPACE, reason=reason, skip=True) if reason else None

    def _locked(self, rows: Rows) -> Hold | None:
        """Wait a limited time while a backup, snapshot or migration locks the VM."""
        vmid = self._claims.vmid
        own = next((row for row in rows if vmid and str(row.get("vmid")) == str(vmid)), {})
        if (state := str(own.get("hastate", ""))) not in _NOT_MANAGED:
            reason = f"HA manages the benchmark VM on {self._node} ({state}); "
            reason += f"run ha-manager remove vm:{vmid}"
            return Hold(kind=HoldKind.BUSY, reason=reason, skip=True)
        lock = str(own.get("lock", ""))
        if not lock:
            self._locked_since = None
            return None
        if self._locked_since is None:
            self._locked_since = self._now()
        reason = f"the benchmark VM on {self._node} is locked ({lock}); "
        reason += f"if no task of it runs, run qm unlock {vmid}"
        skip = self._now() - self._locked_since >= LOCKED_SECONDS
        return Hold(kind=HoldKind.BUSY, reason=reason, seconds=AGAIN_SECONDS, skip=skip)

    def _claimed(self, rows: Rows) -> Hold | None:
        other = self._claims.take(rows)
        return Hold(kind=HoldKind.BUSY, reason=other, seconds=AGAIN_SECONDS) if other else None

    def _held(self, case: Case, rows: Rows) -> Hold | None:
        at, storage = self._free or (0.0, "")
        if storage == case.scenario.storage and self._now() - at < _STILL_SECONDS:
            return None  # just checked, after the previous run
        busy = self._busy(case, rows)
        return Hold(kind=HoldKind.BUSY, reason=busy) if busy else None

    def _ceph(self, case: Case) -> Trouble | None:
        """Check the node's own Ceph for its pools, if the token has the right, as for `_scrub`."""
        if not self._sees_ceph or self._storages[case.scenario.storage].type != "rbd":
            return None
        try:
            return trouble(self._api.get(f"/nodes/{self._node}/ceph/status"))
        except AccessDenied:
            self._sees_ceph = False
            return None
        except Rejected:
            return None  # the node has no Ceph cluster, or cannot reach it at present

    def _busy(self, case: Case, rows: Rows) -> str:
        """Return other activity on the node, or on the case's storage from another node."""
        nodes = [self._node]
        if self._storages[case.scenario.storage].is_shared:
            others = {str(row["node"]) for row in _nodes(rows) if row.get("status") == "online"}
            nodes += sorted(others - {self._node})
        for node in nodes:
            tasks = tasks_of(self._api, node, source="active", limit=200)
            if text := heavy_task(tasks):
                return f"{text} runs on {node}"
        return self._replication() or self._scrub()

    def _replication(self) -> str:
        jobs = self._api.get(f"/nodes/{self._node}/replication")
        running = [str(job.get("guest", job.get("id"))) for job in jobs if job.get("pid")]
        return f"replication of {', '.join(running)} runs on {self._node}" if running else ""

    def _scrub(self) -> str:
        """Check the node's ZFS pools, if the token has the right, Sys.Audit on `/`."""
        if not self._sees_pools:
            return ""
        try:
            for pool in zfs_pools(self._api, self._node):
                if pool.fragmentation is not None:
                    self._note_fragmentation(pool.name, pool.fragmentation)
                if pool.scan:
                    what = f"{pool.scan.partition(RUNS)[0]}{RUNS}"
                    return f"pool {pool.name} on {self._node}: {what}"
        except AccessDenied:
            self._sees_pools = False
        except Rejected as error:
            self._sees_pools = False
            log.warning("scrub detection unavailable", node=self._node, reason=error.reason)
        return ""

    def _note_fragmentation(self, pool: str, share: float) -> None:
        for name, storage in self._storages.items():
            if self._pool_names.below(storage) == pool:
                self.seen[name][run_metrics.ZFS_FRAGMENTATION.name] = share

    def _look_at_wear(self) -> None:
        """Record the highest wear of the node's drives, for storages on its own drives."""
        if self._worn_at is not None and self._now() - self._worn_at < _WEAR_SECONDS:
            return
        self._worn_at = self._now()
        try:
            worst = wear(self._api.get(f"/nodes/{self._node}/disks/list"))
        except DriverError:
            worst = None  # unknown wear does not prevent measurements
        for name, storage in self._storages.items():
            self.seen[name].pop(run_metrics.DISK_WEAR.name, None)
            if worst is not None and not STORAGE_TYPES[storage.type].of_server:
                self.seen[name][run_metrics.DISK_WEAR.name] = worst


def wear(disks: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the highest wear of the drives, as a share of their life; None if none reports it.

    `wearout` is the remaining life in percent, as a number, as text, or `N/A` (PVE/Diskmanage.pm).
    """
    rests = [str(disk.get("wearout", "")) for disk in disks]
    known = [1 - float(rest) / 100 for rest in rests if _NUMBER.fullmatch(rest)]
    return max(known, default=None)


def _nodes(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if row.get("type") == "node"]


def heavy_task(tasks: Iterable[Mapping[str, Any]]) -> str:
    """Return a description of the first running task that moves much data, or an empty string."""
    for task in tasks:
        kind = str(task.get("type", ""))
        if task.get("endtime") or str(task.get("status", "RUNNING")) not in ("RUNNING", "running"):
            continue
        if kind in _HEAVY or kind.startswith("ceph"):
            what = _HEAVY.get(kind, f"a task of type {kind}")
            return f"{what} ({task.get('id')})" if task.get("id") else what
    return ""


# --- Operations on the benchmark VM

_KINDS: Final = dict.fromkeys(("backup", "backup-fleecing", "restore"), "vzdump") | {
    "move": "qmmove"
}
"""Operation -> task type; a restore needs a backup, snapshots are short and not limited."""


class OperationGuard(Guard):
    """`model.ports.Guard` that skips a case whose operation reached its limit.

    Args:
        user: full ID of pvebench's token.
        per_day: maximum tasks of a kind in 24 hours.
    """

    def __init__(
        self, api: Api, node: str, user: str, *, per_day: int, now: Callable[[], float] = time.time
    ) -> None:
        self._api = api
        self._node = node
        self._user = user
        self._per_day = per_day
        self._now = now

    def enter(self, case: Case) -> Hold | None:
        kind = _KINDS.get(case.workload.during)
        if kind is None:
            return None
        try:
            begun = starts_in_a_day(self._api, self._node, self._user, self._now(), kind)
        except DriverError as error:
            return Hold(kind=HoldKind.AWAY, reason=error.reason, skip=True)
        if len(begun) < self._per_day:
            return None
        hours = (begun[self._per_day - 1] + int(DAY) - self._now()) / 3600
        reason = (
            f"{len(begun)} {case.workload.during} tasks ({kind}) on {self._node} in 24 hours, "
            f"operations.per_day allows {self._per_day}; the next one in {max(0.0, hours):.1f} h"
        )
        return Hold(kind=HoldKind.BUDGET, reason=reason, skip=True)
