"""State of a node: load, ZFS pools, running and pending versions.

ZFS pools come from the API, with Sys.Audit on `/`, or over SSH (`state` of `node.sh`), under the
same names.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api, numbers_of
from pvebench.drivers.proxmox.api.faults import InvalidResponse, Rejected
from pvebench.drivers.proxmox.node.storage_options import StorageOptions
from pvebench.drivers.proxmox.proxmox_settings import LimitSettings
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.drivers.proxmox.vm.vm_create import NodeContext
from pvebench.errors import DriverError
from pvebench.model import run_metrics
from pvebench.model.environment import Environment, PendingUpdates
from pvebench.model.ports import Clock, Hold, HoldKind, HostProbe, HostSnapshot
from pvebench.model.workload import Case

# --- Load of a node, from node_exporter and the API

AGAIN_SECONDS: Final = 10.0
"""Time until a hold is checked again, seconds."""
_LOOK_SECONDS: Final = 2.0
_ARTIFACT: Final = 0.95
"""I/O pressure that an idle VM with an I/O thread can cause: known issue R3."""
_IDLE: Final = (
    "; if its disks are idle, io_uring of a VM only appears to wait (R3): update pve-qemu-kvm and "
    "restart the VM, or raise limits.io_pressure"
)
_PRESSURES: Final = {
    "pressurecpusome": "vm_cpu_some",
    "pressureiosome": "vm_io_some",
    "pressureiofull": "vm_io_full",
    "pressurememorysome": "vm_memory_some",
    "pressurememoryfull": "vm_memory_full",
}
"""Field of status/current (percent over ten seconds, from version 9 on) -> name in pvebench."""


class NodeProbe:
    """`model.ports.HostProbe` of a node.

    Args:
        averages: returns the VM's pressure and, if `cpu`, the node's busy cores, by name; unknown
            ones are absent. Never raises.
        counters: returns those of the node; None without node_exporter: values are coarse then.
    """

    def __init__(
        self,
        averages: Callable[..., Mapping[str, float]],
        counters: Callable[[], HostSnapshot] | None,
    ) -> None:
        self._averages, self._counters = averages, counters

    def snapshot(self) -> HostSnapshot:
        """Return the current counters, and the API's averages of the last seconds."""
        averages = self._averages(cpu=self._counters is None)
        if self._counters is None:
            return HostSnapshot(monotonic=time.monotonic(), cpu_seconds={}, averages=averages)
        return replace(self._counters(), averages=averages)


def vm_pressure(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the VM's pressure as ratios from a response of status/current."""
    return {
        name: float(status[field]) / 100 for field, name in _PRESSURES.items() if field in status
    }


def coarse_cpu(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the busy cores of a node from a response of its status.

    The value covers the time since the last request to one process of the server; 0 at the first
    request, which is not a measurement.
    """
    busy = float(status.get("cpu", 0.0)) * int(status.get("cpuinfo", {}).get("cpus", 0))
    return {"total_coarse": busy} if busy > 0 else {}


def available_memory(api: Api, node: str) -> int:
    """Return the bytes that VMs can use without swap.

    `used` does not contain caches, except the ZFS ARC (`read_meminfo` in PVE/ProcFSTools.pm).

    Raises AccessDenied: without Sys.Audit on the node. Others as `Api`.
    """
    path = f"/nodes/{node}/status"
    memory = api.get(path).get("memory")
    if memory is None:
        raise InvalidResponse(f"GET {path}", "it has no memory")
    return int(memory["total"]) - int(memory["used"])


@dataclass(frozen=True, slots=True)
class LoadGuard:
    """`model.guard.Guard` by a host's counters before and after a run."""

    probe: HostProbe
    clock: Clock
    limits: LimitSettings

    def enter(self, case: Case) -> Hold | None:
        busy = self._look()
        return Hold(kind=HoldKind.LOAD, reason=busy, seconds=AGAIN_SECONDS) if busy else None

    def leave(self, case: Case) -> str:
        return self._look()

    def _look(self) -> str:
        start = self.probe.snapshot()
        self.clock.sleep(_LOOK_SECONDS)
        return too_busy(start, self.probe.snapshot(), self.limits)


def too_busy(start: HostSnapshot, end: HostSnapshot, limits: LimitSettings) -> str:
    """Return which load exceeded its limit between two snapshots; ignore unknown values."""
    seconds = end.monotonic - start.monotonic
    if seconds <= 0:
        return ""
    if limits.cpu is not None and end.cpus and {"total"} <= {*start.cpu_seconds}:
        used = end.cpu_seconds.get("total", 0.0) - start.cpu_seconds["total"]
        ratio = used / seconds / end.cpus
        if ratio > limits.cpu:
            return f"host CPU utilization {ratio:.0%} exceeds {limits.cpu:.0%}"
    limit, name = limits.io_pressure, "io_some"
    if limit is not None and name in start.pressure_seconds and name in end.pressure_seconds:
        ratio = (end.pressure_seconds[name] - start.pressure_seconds[name]) / seconds
        if ratio > limit:
            return f"host I/O pressure {ratio:.0%} exceeds {limit:.0%}{_IDLE * (ratio > _ARTIFACT)}"
    return ""


_NO_ZFS: Final = "not installed"
"""Part of the response of disks/zfs on a node without zfsutils-linux."""
_PERCENT: Final = re.compile(r"\d{1,3}%")
RUNS: Final = " in progress"
"""Text after the type of an activity in `zpool status`, while it runs."""
_ACTIVITIES: Final = ("scan", "expand", "remove")
"""Lines of `zpool status`: scrub or resilver, expansion of a RAIDZ, removal of a device."""


@dataclass(frozen=True, slots=True)
class Pool:
    """ZFS pool of a node.

    Attributes:
        fragmentation: of its free space, as a share; None: unknown.
        scan: line of `zpool status` about the activity that runs; empty: none.
    """

    name: str
    fragmentation: float | None
    scan: str


def zfs_pools(api: Api, node: str) -> Iterator[Pool]:
    """Yield the node's ZFS pools.

    Pools that the API does not support, such as one whose name has one letter (`pve-storage-id`),
    are omitted.

    Raises AccessDenied: the token lacks the right. Rejected: `zpool list` fails there.
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
            detail = api.get(f"{path}/{row['name']}")
            lines = (str(detail.get(key, "")) for key in _ACTIVITIES)
            scan = next((line for line in lines if RUNS in line), "")
            fragmentation = row.get("frag")
            share = None if fragmentation is None else float(fragmentation) / 100
            yield Pool(row["name"], share, scan)


class PoolNames:
    """Pools of storages in the cluster's storage.cfg, requested once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: Mapping[str, str] | None = None

    def below(self, storage: ClusterStorage) -> str:
        """Return the pool's name; empty: no pool, or unknown at present."""
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
    """Return the state of a pool from `state` of `node.sh`; unknown values are absent.

    Returns:
        `zfs_fragmentation`, a share; `zfs_scan`, 1 while it is scrubbed, resilvered or rebuilt.
    """
    values: dict[str, float] = {}
    for line in _part(text, "zpool").splitlines():
        name, *columns = line.split() or [""]
        if name == pool and len(columns) == len(_COLUMNS):
            share = dict(zip(_COLUMNS, columns, strict=True))["fragmentation"]
            if _PERCENT.fullmatch(share):
                values[run_metrics.ZFS_FRAGMENTATION.name] = int(share[:-1]) / 100
    for section in re.split(r"^ *pool: ", _part(text, "scrub"), flags=re.MULTILINE)[1:]:
        head, whole, _ = section.partition("\nconfig:")
        if whole and head.partition("\n")[0] == pool:
            values[run_metrics.ZFS_SCAN.name] = float(
                bool(re.search(rf"^ *({'|'.join(_ACTIVITIES)}): .*{RUNS}", head, re.MULTILINE))
            )
    return values


_COLUMNS: Final = ("size", "allocated", "free", "fragmentation", "capacity", "health")
"""Columns after a pool's name in the output of `node.sh`."""


def _part(text: str, name: str) -> str:
    return text.partition(f"== {name}\n")[2].partition("\n== ")[0]


# --- versions: facts that can affect results, and updates


_PACKAGES: Final = {
    "qemu-server": "qemu_server",
    "pve-qemu-kvm": "qemu_package",
    "zfsutils-linux": "zfs",
    "ceph": "ceph",
    "ceph-common": "ceph",
    "intel-microcode": "microcode",
    "amd64-microcode": "microcode",
}
"""Package -> fact, for packages that take effect at installation."""
_KERNEL: Final = re.compile(r"(?:proxmox|pve)-kernel-(?P<release>\d+\.\d+\.\d+-\d+-pve)")


def node_facts(api: Api, node: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return (running, pending) facts of the node; unknown ones are absent.

    Pending facts are installed but not running, such as a kernel before the reboot.
    """
    facts = {"pve": str(api.get(f"/nodes/{node}/version")["version"])}
    try:
        status = api.get(f"/nodes/{node}/status")
        packages = api.get(f"/nodes/{node}/apt/versions")
    except DriverError:
        return facts, {}  # without Sys.Audit on the node; `check` reports it
    cpu, kernel = status.get("cpuinfo") or {}, status.get("current-kernel") or {}
    facts |= {
        "kernel": str(kernel.get("release") or ""),
        "cpu_model": str(cpu.get("model") or ""),
        "cpus": str(cpu.get("cpus") or ""),
    }
    installed, pending = package_facts(packages, running_kernel=facts["kernel"])
    facts |= installed
    return {key: value for key, value in facts.items() if value}, pending


def package_facts(
    packages: Sequence[Mapping[str, Any]], *, running_kernel: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (facts, pending) of a response of apt/versions.

    There, OldVersion is the installed version; Version is the one in the repository.
    """
    installed = {
        str(entry["Package"]): str(entry["OldVersion"])
        for entry in packages
        if entry.get("OldVersion")
    }
    facts = {fact: installed[name] for name, fact in _PACKAGES.items() if name in installed}
    releases = [match["release"] for name in installed if (match := _KERNEL.match(name))]
    newest = max(releases, key=numbers_of, default="")
    pending = {}
    if newest and running_kernel and numbers_of(newest) > numbers_of(running_kernel):
        pending["kernel"] = newest
    return facts, pending


def vm_facts(
    status: Mapping[str, Any], config: Mapping[str, Any], *, qemu_package: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (running, pending) facts of the running VM, which upgrades do not change."""
    facts = {
        "qemu": str(status.get("running-qemu", "")),
        "machine": str(status.get("running-machine", "")),
        "accel": "tcg" if str(config.get("kvm", "1")) == "0" else "kvm",
        "cpu_type": str(config.get("cpu", "")),
    }
    pending = {}
    upstream = qemu_package.partition("-")[0]
    if facts["qemu"] and upstream and numbers_of(upstream) != numbers_of(facts["qemu"]):
        pending["qemu"] = upstream
    return {key: value for key, value in facts.items() if value}, pending


_UPKEEP_SECONDS: Final = 60.0
"""Interval of requests for installed packages, seconds."""


class Versions:
    """Versions on a node, and options of its storages. Owned by one worker thread."""

    def __init__(self, context: NodeContext, storages: StorageOptions) -> None:
        self._api, self._node, self._clock = context.api, context.node, context.clock
        self._image = context.image
        self._storages = storages
        self._booted_with: dict[str, str] = {}
        self._upkeep = PendingUpdates()
        self._looked = -_UPKEEP_SECONDS

    def running(self, vm: BenchVm | None) -> Environment:
        """Return the running environment; call it once after each boot of `vm`.

        Args:
            vm: the VM with a running guest; None: none.
        """
        facts, pending = self._facts()
        self._booted_with = dict(facts)
        if vm is not None:
            package = facts.get("qemu_package", "")
            more, waiting = vm_facts(vm.status(), vm.recent_config().values, qemu_package=package)
            facts |= more
            pending |= waiting
            if "qemu" in waiting:
                del facts["qemu_package"]  # the package version is not running yet
        self._upkeep = PendingUpdates(pending=pending)
        return self._environment(facts)

    def host(self) -> Environment:
        """Return the facts that are known without a VM; none if the node is unreachable."""
        try:
            facts, _ = self._facts()
        except DriverError:
            facts = {}
        return self._environment(facts)

    def upkeep(self, *, running: bool) -> PendingUpdates:
        """Return the packages installed since the call of `running`. Never raises DriverError.

        Args:
            running: whether a guest runs that a cold start would change.
        """
        now = self._clock.monotonic()
        if now - self._looked < _UPKEEP_SECONDS:
            return self._upkeep
        self._looked = now
        try:
            facts, pending = self._facts()
        except DriverError:
            return self._upkeep
        if "kernel" in facts:  # else a response was lost
            changed = dict(sorted(facts.items() - self._booted_with.items())) if running else {}
            self._upkeep = PendingUpdates(
                pending={**pending, **changed},
                restart=", ".join(f"{name} {version}" for name, version in changed.items()),
            )
        return self._upkeep

    def _facts(self) -> tuple[dict[str, str], dict[str, str]]:
        """As `node_facts`, with those of the storages."""
        facts, pending = node_facts(self._api, self._node)
        return facts | self._storages.refresh(), pending

    def _environment(self, facts: Mapping[str, str]) -> Environment:
        return Environment(node=self._node, facts={**facts, **self._image.facts})
