"""Containers of a node for measurements: the part of a `Hypervisor` for bus `lxc`.

Each volume belongs to its own container, which Proxmox creates with the volume and its file system.
One container runs at a time; the others are stopped and keep their volumes. The tools are those of
the guest image, so VM and container use the same versions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from pvebench.drivers.driver import Finding
from pvebench.drivers.linux.block_devices import parse_device, whole
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.node.node_backends import NodeBackend, NodeBackendKind
from pvebench.drivers.proxmox.node.node_ssh import INSTALL, PROGRAM, NodeSsh
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.proxmox.setup.checks import NodeChecks, content_refused, guarded
from pvebench.drivers.proxmox.vm.vm_create import NodeContext
from pvebench.errors import (
    DriverError,
    OutputUnreadable,
    PvebenchError,
    ServerGone,
    SwitchFailed,
    VolumeError,
)
from pvebench.files import mounts
from pvebench.guest.recipe import MOUNT_POINT
from pvebench.log import log
from pvebench.model.disk import Bus, Disk
from pvebench.model.guest import Guest
from pvebench.model.ports import Guard, Hold, HoldKind
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB, SECTOR
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume
from pvebench.model.workload import Case
from pvebench_lab.lxc.proxmox_container import (
    KIND,
    BenchContainer,
    ContainerOptions,
    ContainerTools,
    container_archive,
    find_containers,
    make_container,
    remove_container,
    undo_containers,
)

# --- Verification of a running container and its devices


def check_limits(properties: Mapping[str, str], machine: Machine) -> None:
    """Raise SwitchFailed unless the container has the memory and CPUs of `machine`.

    The kernel's memory limit is known only with control groups version 2; the permitted CPUs are
    those of the first process.
    """
    memory = machine.memory_bytes // MIB
    actual = (
        properties.get("memory"),
        properties.get("cores"),
        properties.get("limit") or str(memory * MIB),
    )
    if actual != (str(memory), str(machine.cpus), str(memory * MIB)):
        raise SwitchFailed(
            f"container mismatch: requested {memory} MiB and {machine.cpus} CPUs, found "
            f"{actual[0]} MiB (limit {actual[2]} bytes) and {actual[1]} CPUs",
            cause="its configuration was changed outside pvebench",
            next_step="remove it with `pvebench cleanup --orphans`; pvebench then creates another",
        )
    allowed, share = properties.get("cpus", ""), properties.get("cpulimit", "0")
    if share != "0" or _cpus_in(allowed) != machine.cpus:
        limit = f" for {share} of their time" if share != "0" else ""
        raise SwitchFailed(
            f"container mismatch: requested {machine.cpus} CPUs, may use CPUs "
            f"{allowed or 'unknown'}{limit}",
            cause="the node has fewer CPUs, or the limits were changed while it runs",
            next_step="reduce guest.cpus of the pack, or run `pvebench cleanup --orphans`",
        )


def _cpus_in(text: str) -> int:
    """Return the number of CPUs in a kernel list such as `0-2,4` (cpuset(7)); 0: not a list."""
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text):
        return 0
    parts = (part.partition("-") for part in text.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in parts)


def mount_of(properties: Mapping[str, str]) -> tuple[int, str]:
    """Return the mounted device's number and the file system's type. Raises SwitchFailed."""
    for mount in mounts(properties.get("mount", "")):
        if mount.point == MOUNT_POINT:
            major, _, minor = mount.device.partition(":")
            return os.makedev(int(major), int(minor)), mount.type
    raise SwitchFailed(f"no file system mounted at {MOUNT_POINT} of the container")


def devices_of(properties: Mapping[str, str], volid: str) -> tuple[int, ...]:
    """Return the devices of the volume, or the mounted device if the volume has no path.

    Raises SwitchFailed: the volume is a device, but another one is mounted.
    """
    mounted, _ = mount_of(properties)
    try:
        volume, below = parse_device(properties.get("below", "").encode(), volid)
    except OutputUnreadable:
        return (mounted,)
    if volume.is_device and below != (mounted,):
        raise SwitchFailed(
            f"disk mismatch: requested {volid}, mounted {properties.get('mount')}",
            cause="another file system was mounted over it in the container",
        )
    return below


_READ_BACK: Final = ("bus", "format", "cache")
_SEND_SECONDS: Final = 600.0


@dataclass(slots=True)
class _Held:
    container: BenchContainer
    volume: Volume
    machine: Machine


@dataclass(slots=True)
class _Running:
    plug: Plug
    held: _Held
    tools: ContainerTools
    mounted: int
    """Number of the mounted device; `below`: numbers of the volume's devices."""
    below: tuple[int, ...]
    counted: BlockCounters


class NodeContainers(NodeBackend):
    """Containers of a node. Owned by one worker thread.

    Args:
        root: storage of the containers' root file systems; empty: the measured one.
    """

    def __init__(self, node: NodeSsh, context: NodeContext, root: str = "") -> None:
        self._node, self._context, self._root = node, context, root
        self._journal = context.journal
        self._held: dict[str, _Held] = {}
        self._running: _Running | None = None
        self._archive = ""

    @property
    def vmid(self) -> int:
        """ID of the running container; 0: none."""
        return self._running.held.container.vmid if self._running else 0

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the node's block devices below the volume in use; empty: unknown."""
        return self._running.below if self._running else ()

    def needs_bytes(self, scenario: Scenario) -> int:
        """Return the bytes that the volume of `scenario` still needs."""
        held = self._held.get(scenario.volume)
        return max(0, scenario.volume_bytes - (held.volume.size_bytes if held else 0))

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Act as `Hypervisor.volume`. Raises VolumeError, NotOwned."""
        known = self._held.get(scenario.volume)
        if known is not None:
            same = known.machine == scenario.machine
            if same and known.volume.size_bytes == scenario.volume_bytes and self._is_there(known):
                return known.volume, False
            self._remove(scenario.volume)
        self._tidy()
        held = self._make(scenario)
        self._held[scenario.volume] = held
        return held.volume, True

    def _is_there(self, held: _Held) -> bool:
        with contextlib.suppress(DriverError):
            return held.container.state() == "ours"
        return False

    def _tidy(self) -> None:
        """Retry removals that failed before."""
        used = {held.container.entry for held in self._held.values()}
        for line in undo_containers(self._node, self._context.node, self._journal, but=used):
            log.warning("leftover from an earlier start", node=self._context.node, result=line)

    def _make(self, scenario: Scenario) -> _Held:
        storage = self._context.storages[scenario.storage].id
        options = ContainerOptions(
            archive=self._send_archive(),
            machine=scenario.machine,
            storage=storage,
            size_bytes=scenario.volume_bytes,
            root=self._root or storage,
        )
        container = make_container(self._node, self._context, options)
        volume = Volume.of(scenario, container.tell().get("mp0", "").partition(",")[0])
        return _Held(container, volume, scenario.machine)

    def _send_archive(self) -> str:
        """Send the root file system archive if the node lacks it; return its digest."""
        packed = b""
        if not self._archive:
            packed = container_archive(self._context.image.initramfs.read_bytes())
            self._archive = hashlib.sha256(packed).hexdigest()
        if self._node.ask("archive", self._archive).strip() != b"there":
            packed = packed or container_archive(self._context.image.initramfs.read_bytes())
            words = ("send", self._archive, str(len(packed)))
            self._node.do(*words, content=packed, seconds=_SEND_SECONDS)
        return self._archive

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the tools of the volume's container; start it if needed.

        Raises SwitchFailed, HypervisorGone, VolumeError.
        """
        if cold is None:
            raise SwitchFailed("a container needs its volume at its start")
        now = self._running
        if now is not None and now.plug == cold and now.held.machine == machine:
            if "pid" in now.held.container.tell():
                return now.tools
            now.tools.forget()
        self.detach()
        held = next((known for known in self._held.values() if known.volume == cold.volume), None)
        if held is None or held.machine != machine:
            raise SwitchFailed(f"no container of pvebench has volume {cold.volume.volid}")
        try:
            held.container.start()
            self._running = self._started(held, cold)
        except PvebenchError:
            with contextlib.suppress(DriverError):  # no other case may run at the same time
                held.container.stop()
            raise
        return self._running.tools

    def _started(self, held: _Held, cold: Plug) -> _Running:
        properties = held.container.tell()
        check_limits(properties, held.machine)
        device, filesystem = mount_of(properties)
        return _Running(
            plug=cold,
            held=held,
            tools=ContainerTools(held.container, filesystem),
            mounted=device,
            below=devices_of(properties, held.volume.volid),
            counted=BlockCounters(),
        )

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Read back the started container. Raises SwitchFailed, HypervisorGone."""
        now = self._running
        if now is None or now.plug != Plug(volume, disk):
            raise SwitchFailed("volume missing in the container after its start")
        properties = now.held.container.tell()
        check_limits(properties, now.held.machine)
        if (
            properties.get("mp0", "").partition(",")[0] != volume.volid
            or mount_of(properties)[0] != now.mounted
        ):
            raise SwitchFailed(
                f"disk mismatch: requested {volume.volid}, mounted {properties.get('mount')}"
            )
        now.counted = self._node.counters(now.mounted)
        sectors = whole(properties.get("sectors", "").encode(), "sectors of the volume")
        text = "\n".join(f"{key}: {value}" for key, value in properties.items())
        return Attachment(
            device=f"/dev/block/{os.major(now.mounted)}:{os.minor(now.mounted)}",
            effective={
                "size_bytes": str(sectors * SECTOR),
                "bus": str(disk.bus),
                "format": "raw",  # the file system is directly on the volume
                "cache": "none" if properties.get("direct") == "1" else "writeback",
            },
            unverified=tuple(set(Disk.__dataclass_fields__) - set(_READ_BACK)),
            raw=f"container {now.held.container.vmid}\n{text}\n\nthe node by ssh\n"
            f"{self._node.state()}",
        )

    def detach(self) -> None:
        """Stop the running container; volumes stay with their containers."""
        if self._running is not None:
            running, self._running = self._running, None
            running.held.container.stop()

    power_off = detach

    def drop_caches(self, volume: Volume) -> int | None:
        """Drop the node's page cache of the files in use; return the bytes still cached."""
        if self._running is None:
            return None
        return whole(self._running.held.container.drop_caches(), "bytes in the page cache")

    def counters(self) -> BlockCounters:
        """Return the counters of the volume's device since it was attached."""
        if self._running is None:
            raise SwitchFailed("no volume in use in a container")
        return self._node.counters(self._running.mounted).since(self._running.counted)

    def _remove(self, key: str) -> None:
        held = self._held.pop(key)
        if self._running is not None and self._running.held is held:
            self._running = None
        held.container.remove()
        self._journal.close(held.container.entry)

    def shutdown(self) -> None:
        """Remove every container with its volumes. Raises ServerGone if some remain."""
        self._running = None
        self._held.clear()
        lines = undo_containers(self._node, self._context.node, self._journal)
        remaining = [line for line in lines if line.startswith("could not")]
        if remaining:
            raise ServerGone(
                "; ".join(remaining),
                next_step="no action needed; the next start of pvebench removes it",
            )


# --- Requirements of the node, and the registered kind

_UNKNOWN: Final = "no such question"
_NO_CONTAINERS: Final = f"{PROGRAM} there does not support containers; {INSTALL}"


def why_no_containers(node: NodeSsh) -> str:
    """Return why a node's script cannot create containers; empty: it can. Raises as `hello`."""
    try:
        node.hello()
        node.ask("make")  # without arguments it creates nothing
    except OutputUnreadable as error:  # script of another version
        return f"{error.happened}: {INSTALL}"
    except VolumeError as error:
        if _UNKNOWN in error.happened:
            return _NO_CONTAINERS
    return ""


def _check(
    node: NodeSsh | None, api: Api, cluster: ProxmoxSettings, cases: Sequence[Case]
) -> Iterator[Finding]:
    cases = [case for case in cases if case.scenario.disk.in_container]
    if not cases:
        return
    yield from guarded("containers", lambda: _check_storages(api, cluster, cases))
    try:
        if node is not None and (reason := why_no_containers(node)):
            yield "ssh containers", True, reason
    except PvebenchError:
        return  # the check of the connection reports it


def _check_storages(api: Api, cluster: ProxmoxSettings, cases: Sequence[Case]) -> Iterator[Finding]:
    """Yield whether storages allow containers. The node's root creates them without API rights."""
    node = cases[0].scenario.node
    storages, checks = cluster.storages_on(node), NodeChecks(api, cluster, node)
    names = {storages[case.scenario.storage].id for case in cases} | {cluster.container_storage}
    for name in sorted(names - {""}):
        row = checks.rows.get(name, {})
        off = checks.why_off(name) if row else ""
        off = off or content_refused(row, ["rootdir"], "containers")
        allows = "allows containers" if row else "not visible to the token; the node's root decides"
        yield f"containers on {name}", not off, off or allows


@dataclass(slots=True)
class ContainerGuard(Guard):
    """`model.guard.Guard` that requires a node script with container support.

    It is checked before anything is created for a case in a container.
    """

    node: NodeSsh
    _able: bool = False
    """Whether the script supports containers; once true, it is not checked again."""

    def enter(self, case: Case) -> Hold | None:
        if self._able or not case.scenario.disk.in_container:
            return None
        try:
            reason = why_no_containers(self.node)
        except PvebenchError:
            return None  # the run itself reports the failed connection
        self._able = not reason
        reason = f"{self.node.where}: {reason}"
        return None if self._able else Hold(kind=HoldKind.AWAY, reason=reason, skip=True)


PROXMOX_CONTAINERS: Final = NodeBackendKind(
    bus=Bus.LXC,
    journal_kind=KIND,
    script=files("pvebench_lab.lxc").joinpath("proxmox_container.sh").read_text("utf-8"),
    make=lambda node, context, cluster: NodeContainers(node, context, cluster.container_storage),
    guard=ContainerGuard,
    check=_check,
    undo=undo_containers,
    find_orphans=find_containers,
    remove_orphan=remove_container,
)
