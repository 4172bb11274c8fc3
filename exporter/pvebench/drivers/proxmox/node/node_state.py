"""The ZFS pools of a node: which one a storage lies on, how fragmented it is, and its scrub.

Told by the API to those with Sys.Audit on `/`, and by ssh (`state` of `node.sh`) under the same
names.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.errors import DriverError
from pvebench.model.ports import Clock, Hold, HoldKind, HostProbe, HostSnapshot
from pvebench.model.workload import Case

# --- How busy a node is: its counters, and how much of it is too much for measuring.
#
# node_exporter's counters are joined by what the API can tell.

AGAIN_SECONDS: Final = 10.0
"""After so long is looked again whether what holds a run has ended."""
_LOOK_SECONDS: Final = 2.0
_PRESSURES: Final = {
    "pressurecpusome": "vm_cpu_some",
    "pressureiosome": "vm_io_some",
    "pressureiofull": "vm_io_full",
    "pressurememorysome": "vm_memory_some",
    "pressurememoryfull": "vm_memory_full",
}
"""Field of status/current, from version 9 on: percent over ten seconds -> its name here."""


class Averages(Protocol):
    """What gives the API's own averages; `ProxmoxNode` does."""

    def averages(self, *, cpu: bool) -> Mapping[str, float]:
        """Return name -> ratio or cores, nothing where it cannot be known. Never raises."""


class NodeProbe:
    """`model.ports.HostProbe` of a node.

    Args:
        node: asked for the VM's pressure and, without node_exporter, for the node's CPU.
        exporter: None where the node has no node_exporter: figures are coarse then.
    """

    def __init__(self, node: Averages, exporter: HostProbe | None) -> None:
        self._node = node
        self._exporter = exporter

    def snapshot(self) -> HostSnapshot:
        """Return the counters now, and the API's averages of the last seconds."""
        averages = self._node.averages(cpu=self._exporter is None)
        if self._exporter is None:
            return HostSnapshot(monotonic=time.monotonic(), cpu_seconds={}, averages=averages)
        return replace(self._exporter.snapshot(), averages=averages)


def vm_pressure(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the VM's pressure as ratios from an answer of status/current."""
    return {
        name: float(status[field]) / 100 for field, name in _PRESSURES.items() if field in status
    }


def coarse_cpu(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the busy cores of a node from an answer of its status.

    It is what one process of the server saw since it was last asked; 0 when it never was, which
    is no figure.
    """
    busy = float(status.get("cpu", 0.0)) * int(status.get("cpuinfo", {}).get("cpus", 0))
    return {"total_coarse": busy} if busy > 0 else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """What is too much for measuring. None: no limit.

    Attributes:
        cpu_ratio: share of all CPUs that is busy.
        io_pressure_ratio: share of time in which some task waits for I/O (Linux PSI).
    """

    cpu_ratio: float | None = None
    io_pressure_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class LoadGuard:
    """`model.guard.Guard` by a host's counters, in the pauses before and after a run."""

    probe: HostProbe
    clock: Clock
    limits: LoadLimits

    def enter(self, case: Case) -> Hold | None:
        busy = self._look()
        return Hold(kind=HoldKind.LOAD, reason=busy, seconds=AGAIN_SECONDS) if busy else None

    def leave(self, case: Case) -> str:
        return self._look()

    def _look(self) -> str:
        start = self.probe.snapshot()
        self.clock.sleep(_LOOK_SECONDS)
        return too_busy(start, self.probe.snapshot(), self.limits)


def too_busy(start: HostSnapshot, end: HostSnapshot, limits: LoadLimits) -> str:
    """Return what is above its limit between two snapshots; what cannot be known is not."""
    seconds = end.monotonic - start.monotonic
    if seconds <= 0:
        return ""
    if limits.cpu_ratio is not None and end.cpus and {"total"} <= {*start.cpu_seconds}:
        used = end.cpu_seconds.get("total", 0.0) - start.cpu_seconds["total"]
        ratio = used / seconds / end.cpus
        if ratio > limits.cpu_ratio:
            return f"{ratio:.0%} of the host's CPUs are busy, more than {limits.cpu_ratio:.0%}"
    limit, name = limits.io_pressure_ratio, "io_some"
    if limit is not None and name in start.pressure_seconds and name in end.pressure_seconds:
        ratio = (end.pressure_seconds[name] - start.pressure_seconds[name]) / seconds
        if ratio > limit:
            return f"tasks of the host wait for I/O {ratio:.0%} of the time, more than {limit:.0%}"
    return ""


_NO_ZFS: Final = "not installed"
"""In the answer to disks/zfs of a node without zfsutils-linux."""
_PERCENT: Final = re.compile(r"\d{1,3}%")
RUNS: Final = " in progress"
"""Follows what a scan is, in the words of `zpool status`, while it runs."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of a node.

    Attributes:
        fragmentation: of its free space, as a share; None: not known.
        scan: what `zpool status` says of its scan.
    """

    name: str
    fragmentation: float | None
    scan: str


def zfs_pools(api: Api, node: str) -> Iterator[Pool]:
    """Yield the node's ZFS pools.

    A pool that the server cannot be asked about, such as one whose name has one letter
    (`pve-storage-id`), is left out.

    Raises:
        AccessDenied: the token may not look. Rejected: `zpool list` fails there.
    """
    path = f"/nodes/{node}/disks/zfs"
    try:
        rows = api.get(path)
    except Rejected as error:
        if _NO_ZFS in error.text:
            return
        raise
    for row in rows:
        with contextlib.suppress(Rejected):
            scan = str(api.get(f"{path}/{row['name']}").get("scan", ""))
            told = row.get("frag")
            yield Pool(row["name"], None if told is None else float(told) / 100, scan)


class PoolNames:
    """Which pool a storage lies on, as the cluster's storage.cfg has it; asked once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: Mapping[str, str] | None = None

    def below(self, storage: ClusterStorage) -> str:
        """Return its name; empty: the storage is on none, or that cannot be known now."""
        if storage.type != "zfspool":
            return ""
        if self._known is None:
            with contextlib.suppress(DriverError):
                rows = self._api.get("/storage", type="zfspool")
                # A pool, or a dataset of it.
                pools = {row["storage"]: row.get("pool") or "" for row in rows}
                self._known = {name: pool.partition("/")[0] for name, pool in pools.items()}
        return (self._known or {}).get(storage.id, "")


def read_state(text: str, pool: str) -> dict[str, float]:
    """Return what `state` of `node.sh` says of a pool; what it does not say is absent.

    Returns:
        `zfs_fragmentation`, a share; `zfs_scan`, 1 while it is scrubbed or resilvered, else 0.
    """
    found: dict[str, float] = {}
    for line in _part(text, "zpool").splitlines():
        name, *columns = line.split() or [""]
        if name == pool and len(columns) == len(_COLUMNS):
            share = dict(zip(_COLUMNS, columns, strict=True))["fragmentation"]
            if _PERCENT.fullmatch(share):
                found["zfs_fragmentation"] = int(share[:-1]) / 100
    for told in re.split(r"^ *pool: ", _part(text, "scrub"), flags=re.MULTILINE)[1:]:
        head, whole, _ = told.partition("\nconfig:")
        if whole and head.partition("\n")[0] == pool:
            found["zfs_scan"] = float(bool(re.search(rf"^ *scan: .*{RUNS}", head, re.MULTILINE)))
    return found


_COLUMNS: Final = ("size", "allocated", "free", "fragmentation", "capacity", "health")
"""After a pool's name, as `node.sh` asks for them."""


def _part(text: str, name: str) -> str:
    return text.partition(f"== {name}\n")[2].partition("\n== ")[0]
