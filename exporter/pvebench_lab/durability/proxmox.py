"""Measured durability on a node: which writes of a guest survive a killed QEMU.

The API cannot kill a VM, so SSH does. What a loss of power leaves is not measured: Proxmox has no
log of the writes below an image. The guest of a new QEMU reads the volumes back, which needs no
further right on the node. This process has the record of completed writes, from the guest agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from pvebench.drivers.driver import DriverContext, guest_image
from pvebench.drivers.proxmox.cluster import vm_of
from pvebench.drivers.proxmox.cluster_access import by_ssh
from pvebench.drivers.proxmox.hypervisor import ProxmoxHypervisor
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.proxmox_settings import NO_KILL, ClusterSettings, nodes_of, section
from pvebench.drivers.proxmox.vm import hotplug
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm
from pvebench.drivers.proxmox.vm.drive import drive_text, serial_of, slot_name, unused_volumes
from pvebench.drivers.vm_lifecycle import find_in_guest
from pvebench.errors import ConfigError, Problem, SwitchFailed, VolumeError
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.durability import Barrier, Durability, Touch
from pvebench.model.guest import Guest
from pvebench.model.ports import Clock
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from pvebench.model.volume import Volume
from pvebench_lab.durability.records import (
    IN_FLIGHT_SECONDS,
    SIZE,
    Read,
    RecordDisk,
    RecordScenario,
    read_blocks,
    unpack_records,
)

_MACHINE: Final = Machine(memory_bytes=768 * MIB, cpus=2)


@dataclass(kw_only=True)
class _TestDisk(RecordDisk):
    """One disk of the VM."""

    volume: Volume
    slot: str
    sync: Barrier


class ClusterDurability:
    """`DurabilityProbe` on one storage of a node.

    Args:
        kind: type of the storage. formats: formats of its volumes.
    """

    def __init__(
        self,
        vm: ProxmoxHypervisor,
        on_node: NodeSsh,
        *,
        node: str,
        storage: str,
        kind: str,
        formats: Sequence[Format],
        clock: Clock,
    ) -> None:
        self._vm = vm
        self._on_node = on_node
        self._node = node
        self._storage = storage
        self._kind = kind
        self._clock = clock
        self._numbers = count(1)
        self._disks = {
            f"{kind}.{cache}": Disk(bus=Bus.SCSI, format=kind, cache=cache)
            for kind in formats
            for cache in Cache
        }

    @property
    def configurations(self) -> Sequence[str]:
        return tuple(self._disks)

    def measure(self, configurations: Sequence[str]) -> Iterator[Durability]:
        try:
            for name in configurations:
                yield self._measure(name, self._disks[name])
        finally:
            self._vm.shutdown()

    def _measure(self, name: str, disk: Disk) -> Durability:
        guest = self._vm.boot(_MACHINE)
        tests = [self._create(disk, sync) for sync in Barrier]
        started = self._on_node.start_time(self._vm.vmid)
        qemu, requested = self._write(guest, disk, tests)
        self._on_node.kill_vm(self._vm.vmid, self._bench_vm.mark, started)
        damaged = self._damaged(disk, tests)
        found = self._read(disk, tests)
        self._free(tests)
        return Durability(
            node=self._node,
            storage=self._storage,
            configuration=name,
            qemu=qemu,
            finished=self._clock.now(),
            killed=tuple(
                test.survived(read, test.sync, touch)
                for test, read in zip(tests, found, strict=True)
                for touch in Touch
            ),
            power=(),
            torn=sum(test.torn(read) for test, read in zip(tests, found, strict=True)),
            damaged=damaged,
            requested=requested,
            flushed=0,
            states=0,
            broken=0,
        )

    @property
    def _bench_vm(self) -> BenchVm:
        if self._vm.vm is None:
            raise SwitchFailed("no benchmark VM")
        return self._vm.vm

    def _create(self, disk: Disk, sync: Barrier) -> _TestDisk:
        number = next(self._numbers)
        scenario = RecordScenario(
            node=self._node,
            storage=self._storage,
            disk=disk,
            machine=_MACHINE,
            volume_bytes=SIZE,
            number=number,
        )
        volume, _ = self._vm.volume(scenario)
        return _TestDisk(sync=sync, volume=volume, slot=slot_name(disk.bus, number))

    def _plug(self, guest: Guest, disk: Disk, test: _TestDisk) -> str:
        """Plug a disk in and return its device in the guest."""
        serial = serial_of(next(self._numbers))
        text = drive_text(disk, test.volume.volid, serial, self._kind)
        hotplug.plug(self._bench_vm, test.slot, text)
        return find_in_guest(guest, serial, seconds=hotplug.SEEN_SECONDS)["device"]

    def _write(self, guest: Guest, disk: Disk, tests: Sequence[_TestDisk]) -> tuple[str, int]:
        """Write to all disks, and on in the background.

        Returns:
            QEMU's version, and the flushes of the disk with `Barrier.FLUSH`.
        """
        unpack_records(guest)
        devices = [self._plug(guest, disk, test) for test in tests]
        for test, device in zip(tests, devices, strict=True):
            test.write(guest, device)
        status = self._bench_vm.status()
        (slot,) = (test.slot for test in tests if test.sync is Barrier.FLUSH)
        requested = hotplug.block_counters(status, slot).flush_operations
        for test, device in zip(tests, devices, strict=True):
            test.keep_writing(guest, device)
        self._clock.sleep(IN_FLIGHT_SECONDS)
        return str(status.get("running-qemu", "")), requested

    def _damaged(self, disk: Disk, tests: Sequence[_TestDisk]) -> int:
        """Return how many images have errors. Only files are checked, by qemu-img."""
        if disk.format is not Format.QCOW2:
            return 0
        return sum(self._on_node.is_damaged(test.volume.volid) for test in tests)

    def _read(self, disk: Disk, tests: Sequence[_TestDisk]) -> list[Read]:
        """Return the blocks, read by the guest of another QEMU than the one that wrote them."""
        self._vm.power_off()
        guest = self._vm.boot(_MACHINE)
        return [read_blocks(guest, self._plug(guest, disk, test)) for test in tests]

    def _free(self, tests: Sequence[_TestDisk]) -> None:
        """Remove the volumes, so that each configuration begins with new ones."""
        self._vm.power_off()
        hotplug.clear(self._bench_vm)
        unused = unused_volumes(self._bench_vm.verify_owner().values)
        keys = [unused[test.volume.volid] for test in tests if test.volume.volid in unused]
        self._bench_vm.change("free the test volumes", delete=",".join(keys))


def probe(settings: ClusterSettings, place: DriverContext, storage: str) -> ClusterDurability:
    """Return the probe of a storage. Raises VolumeError; ConfigError: it may not kill a VM."""
    cluster, node = section(settings), nodes_of(settings)[0]
    storages = cluster.storages_on(node)
    name = storage or next(iter(storages))
    if name not in storages:
        raise VolumeError(
            f"{node} has no storage {name!r} in the settings",
            next_step=f"use one of: {', '.join(storages)}",
        )
    on_node = by_ssh(cluster, node)
    if on_node is None or not cluster.kill_own_vm:
        raise ConfigError([Problem("settings", 0, 0, NO_KILL)])
    vm = vm_of(cluster, node, guest_image(settings, place), place)
    vm.use_ssh(on_node)
    return ClusterDurability(
        vm,
        on_node,
        node=node,
        storage=name,
        formats=cluster.durability_formats(name),
        kind=storages[name].type,
        clock=place.clock,
    )
