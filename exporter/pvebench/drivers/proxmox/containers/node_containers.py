"""A container on a node as the place to measure: the part of a `Hypervisor` for bus `lxc`.

Each volume that scenarios want belongs to a container of its own, which Proxmox makes with it: the
file system on it, too. One container runs at a time; the others wait, switched off, with what they
hold. The tools are the guest's own files, so that they are those of the VM.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from pvebench.drivers.host.remote_machine import RemoteTools, Rows, parse_device, whole
from pvebench.drivers.lxc.container_disk import mounts
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.containers.container import (
    BenchContainer,
    ContainerOptions,
    make_container,
    undo_containers,
)
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.vm.bench_vm import VmPlace
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.drivers.storages.contract import MARK
from pvebench.errors import DriverError, OutputUnreadable, PvebenchError, SwitchFailed, ToolFailed
from pvebench.guest import FILESYSTEM_TOOL, MOUNT_POINT, GuestImage, container_archive
from pvebench.model.disk import Disk
from pvebench.model.ports import Completed, Guest, Journal
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB, SECTOR
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume

# --- What a node tells of a container that runs: is it what was asked for, and what is below it?


def check_limits(told: Mapping[str, str], machine: Machine) -> None:
    """Raise SwitchFailed unless it has what the machine of a VM would have.

    To which memory the kernel holds it is told where the node has control groups of version 2
    alone; on which CPUs it may run, by its first process.
    """
    memory = machine.memory_bytes // MIB
    found = (told.get("memory"), told.get("cores"), told.get("limit") or str(memory * MIB))
    if found != (str(memory), str(machine.cpus), str(memory * MIB)):
        raise SwitchFailed(
            f"the container has {found[0]} MiB of memory, held to {found[2]} bytes, and "
            f"{found[1]} CPUs, not {memory} MiB and {machine.cpus}",
            cause="somebody changed its configuration",
            next_step="remove it, so that another is made: pvebench cleanup --orphans",
        )
    allowed, share = told.get("cpus", ""), told.get("cpulimit", "0")
    if share != "0" or _cpus_in(allowed) != machine.cpus:
        limit = f" for {share} of their time" if share != "0" else ""
        raise SwitchFailed(
            f"the container may run on CPUs {allowed or 'unknown'}{limit}, not on {machine.cpus}",
            cause="the node has fewer, or somebody changed what it may use while it runs",
            next_step="reduce guest.cpus of the pack, or remove it: pvebench cleanup --orphans",
        )


def _cpus_in(text: str) -> int:
    """Return how many CPUs a list of the kernel names, such as `0-2,4` (cpuset(7)); 0: not one."""
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text):
        return 0
    parts = (part.partition("-") for part in text.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in parts)


def mounted_device(told: Mapping[str, str]) -> int:
    """Return the number of the device that is mounted. Raises SwitchFailed."""
    major, _, minor = _mounted(told)[0].partition(":")
    return os.makedev(int(major), int(minor))


def filesystem(told: Mapping[str, str]) -> str:
    """Return the kind of what is mounted. Raises SwitchFailed."""
    return _mounted(told)[1]


def _mounted(told: Mapping[str, str]) -> tuple[str, str]:
    for device, place, kind in mounts(told.get("mount", "")):
        if place == MOUNT_POINT:
            return device, kind
    raise SwitchFailed(f"nothing is mounted at {MOUNT_POINT} of the container")


def devices_of(told: Mapping[str, str], volid: str) -> tuple[int, ...]:
    """Return the devices that the volume is or lies on; where that has no path, what is mounted.

    Raises:
        SwitchFailed: the volume is a device, and another one is mounted.
    """
    mounted = mounted_device(told)
    try:
        found, below = parse_device(told.get("below", "").encode(), volid)
    except OutputUnreadable:
        return (mounted,)
    if found.is_device and below != (mounted,):
        raise SwitchFailed(
            f"{volid} is not what is mounted: {told.get('mount')}",
            cause="something else was mounted over it in the container",
        )
    return below


_READ_BACK: Final = ("bus", "format", "cache")
_SEND_SECONDS: Final = 600.0
_EMPTY: Final = f"find {MOUNT_POINT} -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {{}} +"

log = structlog.get_logger()


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
    """Number of the device that is mounted; `below`: of those that the volume is or lies on."""
    below: tuple[int, ...]
    counted: BlockCounters


class NodeContainers:
    """The containers of one node. Owned by one worker thread.

    Args:
        storages: name in packs -> storage of the cluster.
        root: storage of the containers' root file systems; empty: the one that is measured.
    """

    def __init__(
        self,
        node: NodeSsh,
        api: Api,
        *,
        place: VmPlace,
        image: GuestImage,
        journal: Journal,
        storages: Mapping[str, ClusterStorage],
        root: str = "",
    ) -> None:
        self._node = node
        self._api = api
        self._place = place
        self._image = image
        self._journal = journal
        self._storages = storages
        self._root = root
        self._held: dict[str, _Held] = {}
        self._running: _Running | None = None
        self._archive = ""

    @property
    def vmid(self) -> int:
        """Number of the container that runs; 0: none."""
        return self._running.held.container.vmid if self._running else 0

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the node's block devices below the volume in use; empty: not known."""
        return self._running.below if self._running else ()

    def holds(self, volume: Volume) -> bool:
        """Return whether a volume is a container's."""
        return any(held.volume == volume for held in self._held.values())

    def needs_bytes(self, scenario: Scenario) -> int:
        """Return how much room the volume of `scenario` still needs."""
        known = self._held.get(scenario.volume)
        return max(0, scenario.volume_bytes - (known.volume.size_bytes if known else 0))

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """As `Hypervisor.volume`. Raises VolumeError, NotOurs."""
        known = self._held.get(scenario.volume)
        if known is not None:
            same = known.machine == scenario.machine
            if same and known.volume.size_bytes == scenario.volume_bytes and self._is_there(known):
                return known.volume, False
            self._remove(scenario.volume)
        self._tidy()
        made = self._make(scenario)
        self._held[scenario.volume] = made
        return made.volume, True

    def _is_there(self, held: _Held) -> bool:
        with contextlib.suppress(DriverError):
            return held.container.state() == "ours"
        return False

    def _tidy(self) -> None:
        """Try again to remove what could not be removed before."""
        used = {held.container.entry for held in self._held.values()}
        for line in undo_containers(self._journal, self._node, node=self._place.node, but=used):
            log.warning("what was left before", node=self._place.node, found=line)

    def _make(self, scenario: Scenario) -> _Held:
        storage = self._storages[scenario.storage].id
        options = ContainerOptions(
            archive=self._send_archive(),
            machine=scenario.machine,
            storage=storage,
            size_bytes=scenario.volume_bytes,
            root=self._root or storage,
        )
        made = make_container(self._node, self._api, self._place, self._journal, options)
        volume = Volume(
            storage=scenario.storage,
            volid=made.tell().get("mp0", "").partition(",")[0],
            format=str(scenario.disk.format),
            size_bytes=scenario.volume_bytes,
        )
        return _Held(made, volume, scenario.machine)

    def _send_archive(self) -> str:
        """Return the digest of the root file system, which the node has then."""
        packed = b""
        if not self._archive:
            packed = container_archive(self._image.initramfs.read_bytes())
            self._archive = hashlib.sha256(packed).hexdigest()
        if self._node.ask("archive", self._archive).strip() != b"there":
            packed = packed or container_archive(self._image.initramfs.read_bytes())
            words = ("send", self._archive, str(len(packed)))
            self._node.do(*words, content=packed, seconds=_SEND_SECONDS)
        return self._archive

    def boot(self, machine: Machine, cold: Plug) -> Guest:
        """Return the tools of the container that has the volume, started where needed.

        Raises:
            SwitchFailed, HypervisorGone, VolumeError.
        """
        now = self._running
        if now is not None and now.plug == cold and now.held.machine == machine:
            if "pid" in now.held.container.tell():
                return now.tools
            now.tools.forget()
        self.stop()
        held = next((one for one in self._held.values() if one.volume == cold.volume), None)
        if held is None or held.machine != machine:
            raise SwitchFailed(f"{cold.volume.volid} is in no container of ours")
        try:
            held.container.start()
            self._running = self._started(held, cold)
        except PvebenchError:
            with contextlib.suppress(DriverError):  # beside it nothing is to be measured
                held.container.stop()
            raise
        return self._running.tools

    def _started(self, held: _Held, cold: Plug) -> _Running:
        told = held.container.tell()
        check_limits(told, held.machine)
        device = mounted_device(told)
        return _Running(
            plug=cold,
            held=held,
            tools=ContainerTools(held.container, filesystem(told)),
            mounted=device,
            below=devices_of(told, held.volume.volid),
            counted=self._node.counters(device),
        )

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Look at what the container was started with. Raises SwitchFailed, HypervisorGone."""
        now = self._running
        if now is None or now.plug != Plug(volume, disk):
            raise SwitchFailed("the container was to have the volume since its start, but has not")
        told = now.held.container.tell()
        check_limits(told, now.held.machine)
        if (
            told.get("mp0", "").partition(",")[0] != volume.volid
            or mounted_device(told) != now.mounted
        ):
            raise SwitchFailed(f"{volume.volid} is not what is mounted: {told.get('mount')}")
        now.counted = self._node.counters(now.mounted)
        sectors = whole(told.get("sectors", "").encode(), "sectors of the volume")
        said = "\n".join(f"{key}: {value}" for key, value in told.items())
        return Attachment(
            device=f"/dev/block/{os.major(now.mounted)}:{os.minor(now.mounted)}",
            effective={
                "size_bytes": str(sectors * SECTOR),
                "bus": str(disk.bus),
                "format": "raw",  # nothing is between the file system and the volume's bytes
                "cache": "none" if told.get("direct") == "1" else "writeback",
            },
            unverified=tuple(set(Disk.__dataclass_fields__) - set(_READ_BACK)),
            raw=f"container {now.held.container.vmid}\n{said}\n\nthe node by ssh\n"
            f"{self._node.state()}",
        )

    def stop(self) -> None:
        """End what runs; the volumes stay with their containers."""
        if self._running is not None:
            running, self._running = self._running, None
            running.held.container.stop()

    def drop_caches(self) -> int | None:
        """Drop the node's page cache of the files in use; return the bytes still cached."""
        if self._running is None:
            return None
        return whole(self._running.held.container.forget_cache(), "bytes in the page cache")

    def counters(self) -> BlockCounters:
        """Return the counters of the volume's device since it was attached."""
        if self._running is None:
            raise SwitchFailed("no volume is in use in a container")
        return self._node.counters(self._running.mounted).since(self._running.counted)

    def _remove(self, key: str) -> None:
        held = self._held.pop(key)
        if self._running is not None and self._running.held is held:
            self._running = None
        held.container.remove()
        self._journal.close(held.container.entry)

    def shutdown(self) -> list[str]:
        """Remove every container with its volumes; return a line about each."""
        self._running = None
        self._held.clear()
        return undo_containers(self._journal, self._node, node=self._place.node)


class ContainerTools(RemoteTools):
    """`model.ports.Guest` in a running container.

    Args:
        filesystem: what Proxmox made on the volume, as it is mounted.
    """

    def __init__(self, container: BenchContainer, filesystem: str) -> None:
        self._inside = container.inside()
        rows = Rows(self._inside)
        super().__init__(rows, f"/tmp/{MARK}{secrets.token_hex(8)}", None)  # noqa: S108 # its own
        self._filesystem = filesystem

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        if argv[0] == FILESYSTEM_TOOL:
            return self._prepare(argv[1:], timeout)
        return super().run(argv, stdin=stdin, timeout=timeout)

    def _prepare(self, wanted: list[str], timeout: float) -> Completed:
        """Do what the guest's script would: Proxmox has made and mounted the file system."""
        if wanted[0] == "unmount":
            return super().run(["sync"], timeout=timeout)
        kind, mount_options = wanted[2], "".join(wanted[3:])
        if kind != self._filesystem or mount_options:
            raise SwitchFailed(
                f"the container has {self._filesystem} on its volume, not {kind} {mount_options}"
            )
        if wanted[0] == "make":
            return super().run(["sh", "-c", _EMPTY], timeout=timeout)
        return Completed(0, b"", b"")

    def write_file(self, path: str, content: bytes) -> None:
        # Jobs lie where the guest's do, which on a machine would have to be marked as ours.
        done = self._inside.ask(["sh", "-c", 'cat >"$1"', "sh", path], stdin=content)
        if done.exit_code:
            raise ToolFailed(f"{path} cannot be written in {self._inside.where}")

    def forget(self) -> None:
        """Know nothing of what ran: it ended with the container."""
        self._running.clear()
        self._done.clear()
