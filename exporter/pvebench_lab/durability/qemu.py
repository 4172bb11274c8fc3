"""Measured durability: what a killed QEMU, or a loss of power, leaves of a guest's writes.

One VM has all disks of a batch. A further disk per configuration logs what reaches its volume. This
process has the record of completed writes, so that it survives the VM.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final

from pvebench.drivers.clocks import attempts
from pvebench.drivers.driver import DriverContext
from pvebench.drivers.linux.block_devices import flushes_ignored
from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.qemu import QemuSettings
from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.block_graph import Names, block_nodes, devices, own_statistics
from pvebench.drivers.qemu.machine import BOOT_SECONDS, SWITCH_SECONDS, QemuMachine, qemu_facts
from pvebench.drivers.qemu.qemu_hypervisor import prepare
from pvebench.drivers.qemu.qmp import Channel, QemuGuest
from pvebench.drivers.storages.contract import StorageContext, instance_id
from pvebench.drivers.storages.directory import DirectorySettings, DirectoryStorage, existing
from pvebench.drivers.storages.qemu_img import SOUND, run_qemu_img
from pvebench.drivers.storages.storage_settings import LocalSettings, storage_contexts
from pvebench.errors import GuestTimeout, OutputUnreadable, VolumeError
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus, Cache, Disk, Format, Preallocation, option_text
from pvebench.model.durability import Barrier, Durability, Survival, Touch, durability_key
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB, SECTOR
from pvebench.model.volume import Volume
from pvebench_lab.durability.records import (
    DISTANCE,
    IN_FLIGHT_SECONDS,
    RECORD,
    SIZE,
    RecordDisk,
    RecordScenario,
    run_script,
    unpack_records,
)

_BATCH: Final = 5
"""Configurations per VM: each needs four of its PCI slots."""
_STATES: Final = 3
"""Simulated losses of power per configuration."""
_MACHINE: Final = Machine(memory_bytes=768 * MIB, cpus=1)


_IMAGES: Final[tuple[dict[str, Any], ...]] = (
    {"format": Format.RAW},
    {"format": Format.QCOW2},
    {"format": Format.QCOW2, "preallocation": Preallocation.OFF},
    {"format": Format.QCOW2, "chain": 1},
)


def _key(disk: Disk) -> str:
    return durability_key({name: option_text(value) for name, value in asdict(disk).items()})


DISKS: Final = {
    _key(disk): disk
    for disk in (Disk(bus=Bus.VIRTIO, cache=cache, **image) for image in _IMAGES for cache in Cache)
}
"""Configuration -> its disk; those of one kind of image together."""


@dataclass(kw_only=True)
class _TestDisk(RecordDisk):
    """One disk of the VM and the record of its completed writes.

    With `sync` None, its writes are logged instead, and it isn't used when QEMU is killed.

    Attributes:
        requested: flushes that the guest sent.
    """

    number: int
    disk: Disk
    volume: Volume
    storage: DirectoryStorage
    requested: int = 0

    @property
    def names(self) -> Names:
        return Names(self.number)

    @property
    def path(self) -> Path:
        return Path(self.volume.volid)

    # --- In the VM.

    def attach(self, qmp: Channel) -> None:
        below = self.storage.below(self.volume, self.disk)
        file = self.storage.node(self.volume, self.disk)
        for node in self._nodes(block_nodes(self.names, self.disk, file, below)):
            qmp.execute("blockdev-add", node)
        for device in devices(self.names, self.disk):
            qmp.execute("device_add", device)

    def _nodes(self, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the nodes, with a log between file and format if this disk has one."""
        if self.sync is not None:
            return nodes
        file, image = nodes
        target = self.storage.add_file(self.volume, self.disk, "log")
        # The host reads the log while QEMU runs: it needs the page cache, but no flush.
        own = {**target, "aio": "threads", "cache": {"direct": False, "no-flush": True}}
        log = {
            "driver": "blklogwrites",
            "node-name": f"log{self.number}",
            "file": self.names.file,
            "log": own,
            "log-sector-size": 512,
            "cache": file["cache"],
        }
        # With io_uring, QEMU 7.2 hangs when it reads the partial last sector of a new qcow2 file
        # below the log.
        file = {**file, "aio": "threads"}
        return [file, log, {**image, "file": f"log{self.number}"}]

    def count_flushes(self, qmp: Channel) -> None:
        """Remember the flushes that the guest has requested."""
        self.requested = int(own_statistics(self.names, self.disk, qmp)["flush_operations"])

    # --- After its end. Images are read by qemu-img, not by the QEMU that wrote them.

    def scratch(self, label: str) -> Path:
        """Return another file of this disk, which is removed with it."""
        node = self.storage.add_file(self.volume, self.disk, label)
        return Path(str(node["filename"]))

    def readable(self, image: Path) -> Path:
        """Return a raw file with the content of an image of this disk."""
        if self.disk.format is Format.RAW:
            return image
        plain = self.scratch("content")
        run_qemu_img("convert", "-n", "-f", "qcow2", "-O", "raw", str(image), str(plain))
        return plain

    def damaged(self, image: Path) -> bool:
        """Return whether an image has errors; unused clusters are none."""
        if self.disk.format is Format.RAW:
            return False
        command = ["qemu-img", "check", "-q", "-f", "qcow2", str(image)]
        return run_program(command).returncode not in SOUND


def _reader(content: Path) -> Callable[[int], bytes]:
    """Return the blocks of a raw file."""

    def found(place: int) -> bytes:
        with content.open("rb") as file:
            file.seek(place * DISTANCE)
            return file.read(RECORD)

    return found


def directory_context(settings: LocalSettings, storage: str) -> StorageContext[DirectorySettings]:
    """Return the context of a storage of kind `dir`; empty: the first. Raises VolumeError."""
    contexts = storage_contexts(settings, instance_id(settings.state))
    directories = {
        name: context for name, (kind, context) in contexts.items() if kind.holds.name == "dir"
    }
    context = directories.get(storage or next(iter(directories), ""))
    if context is None:
        raise VolumeError(
            f"the durability of storage {storage!r} cannot be measured",
            cause="only volumes of kind dir can be read back after QEMU was killed",
            next_step=f"use one of: {', '.join(directories) or 'none'}",
        )
    if cause := flushes_ignored(existing(context.settings.path)):
        raise VolumeError(
            f"storage {context.name}: no flush reaches its disk: {cause}",
            cause="a loss of power loses flushed writes there, whatever QEMU does",
            next_step="remove that option, or use another storage with --storage",
        )
    return context


class QemuDurability:
    """`DurabilityProbe` on one storage of kind `dir`."""

    configurations: Final = tuple(DISKS)

    def __init__(
        self,
        context: StorageContext[DirectorySettings],
        *,
        node: str,
        image: GuestImage,
        accelerator: Accelerator,
        place: DriverContext,
    ) -> None:
        self._storage = DirectoryStorage(context, place.journal)
        self._node = node
        self._name = context.name
        self._image = image
        self._accelerator = accelerator
        self._place = place
        self._numbers = count(1)

    def measure(self, configurations: Sequence[str]) -> Iterator[Durability]:
        disks = [DISKS[key] for key in configurations]
        for start in range(0, len(disks), _BATCH):
            yield from self._batch(disks[start : start + _BATCH])

    def _batch(self, disks: Sequence[Disk]) -> list[Durability]:
        place = self._place
        vm = QemuMachine(place.runtime, journal=place.journal, clock=place.clock)
        groups: list[list[_TestDisk]] = []
        try:
            for disk in disks:
                groups.append([])
                for sync in (*Barrier, None):
                    groups[-1].append(self._create(disk, sync))
            version = self._use(vm, [test for group in groups for test in group])
            return [self._result(group, version) for group in groups]
        finally:
            vm.kill()
            for test in (test for group in groups for test in group):
                self._storage.remove(test.volume)

    def _create(self, disk: Disk, sync: Barrier | None) -> _TestDisk:
        number = next(self._numbers)
        scenario = RecordScenario(
            node=self._node,
            storage=self._name,
            disk=disk,
            machine=_MACHINE,
            volume_bytes=SIZE,
            number=number,
        )
        volume = self._storage.create(scenario)
        test = _TestDisk(number=number, disk=disk, sync=sync, volume=volume, storage=self._storage)
        if disk.chain:
            self._storage.take_snapshots(volume, disk)
        if sync is None:
            _copy(test.path, test.scratch("start"))
        return test

    def _use(self, vm: QemuMachine, tests: Sequence[_TestDisk]) -> str:
        """Write to all disks and kill QEMU during the last writes; return its version."""
        guest = vm.start(self._image, _MACHINE, self._accelerator, timeout=BOOT_SECONDS)
        version = qemu_facts(vm.qmp)["qemu"]
        unpack_records(guest)
        for test in tests:
            test.attach(vm.qmp)
        names = self._devices(guest, tests)
        for test in tests:
            test.write(guest, names[test.names.serial])
            test.count_flushes(vm.qmp)
        for test in tests:
            if test.sync is not None:
                test.keep_writing(guest, names[test.names.serial])
        self._place.clock.sleep(IN_FLIGHT_SECONDS)
        vm.kill()
        return version

    def _devices(self, guest: QemuGuest, tests: Sequence[_TestDisk]) -> dict[str, str]:
        """Return serial number -> device, when the guest has all disks. Raises GuestTimeout."""
        for _ in attempts(self._place.clock, seconds=SWITCH_SECONDS, pause=0.1):
            found = run_script(guest, "cd /sys/block && grep . vd*/serial").stdout.decode()
            pairs = (line.partition("/serial:") for line in found.splitlines())
            names = {serial: f"/dev/{name}" for name, _, serial in pairs}
            if names.keys() >= {test.names.serial for test in tests}:
                return names
        raise GuestTimeout(f"{len(tests)} disks not visible in the guest after {SWITCH_SECONDS} s")

    def _result(self, group: Sequence[_TestDisk], version: str) -> Durability:
        *killed, logged = group
        contents = [(test, test.readable(test.path)) for test in killed]
        entries = read_log(Path(f"{logged.volume.volid}.log"))
        durable = durable_count(entries)
        states = list(_states(logged, entries, durable))
        return Durability(
            node=self._node,
            storage=self._name,
            configuration=_key(logged.disk),
            qemu=version,
            finished=self._place.clock.now(),
            killed=tuple(
                test.survived(_reader(content), test.sync, touch)
                for test, content in contents
                if test.sync
                for touch in Touch
            ),
            torn=sum(test.torn(_reader(content)) for test, content in contents),
            damaged=sum(test.damaged(test.path) for test in killed) + sum(bad for _, bad in states),
            power=states[0][0],
            requested=logged.requested,
            flushed=sum(entry.flush for entry in entries),
            states=len(states) - 1,
            broken=sum(any(survival.lost for survival in power) for power, _ in states[1:]),
        )


def _states(
    test: _TestDisk, entries: Sequence[Entry], durable: int
) -> Iterator[tuple[tuple[Survival, ...], bool]]:
    """Yield records and damage after a loss of power: the guaranteed state, then possible ones."""
    choice = random.Random(test.number)  # noqa: S311 # which writes survive, not a secret
    for state in range(1 + _STATES):
        later = [entry for entry in entries[durable:] if state and choice.random() < 0.5]
        image = test.scratch("state")
        _copy(Path(f"{test.volume.volid}.start"), image)
        replay([*entries[:durable], *later], image)
        content = test.readable(image)
        kinds = (
            (Barrier.FLUSH, Touch.FIRST),
            (Barrier.FLUSH, Touch.REWRITE),
            (Barrier.NONE, Touch.FIRST),
        )
        power = tuple(test.survived(_reader(content), sync, touch) for sync, touch in kinds)
        yield power, test.damaged(image)


def _copy(source: Path, target: Path) -> None:
    """Copy an image onto a file of ours, with its holes. Raises VolumeError."""
    command = ["cp", "--sparse=always", str(source), str(target)]
    done = run_program(command)
    if done.returncode:
        raise VolumeError(f"cannot copy {source}: {done.stderr.strip()}")


def probe(settings: QemuSettings, place: DriverContext, storage: str) -> QemuDurability:
    """Return the probe of a storage. Raises VolumeError, as `prepare`."""
    context = directory_context(settings, storage)
    image, accelerator = prepare(settings, place)
    node = settings.node
    return QemuDurability(context, node=node, image=image, accelerator=accelerator, place=place)


# --- Log of the writes below an image

_HEADER: Final = struct.Struct("<4Q")
_FLUSH, _DISCARD = 1, 4
_MOST_ENTRIES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation on the volume.

    Attributes:
        offset: in the volume, bytes.
        data: written bytes; empty: none.
        zeros: bytes that a discard may have set to zero.
        flush: whether all earlier writes are on the disk from now on.
    """

    offset: int
    data: bytes
    zeros: int = 0
    flush: bool = False


def read_log(path: Path) -> list[Entry]:
    """Return the entries of a log that QEMU may still write.

    Raises:
        OutputUnreadable: it is damaged, or longer than expected.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(SECTOR)
        return list(_entries(file, size))


def _entries(file: BinaryIO, size: int) -> Iterator[Entry]:
    for _ in range(_MOST_ENTRIES):
        header = file.read(SECTOR)
        if not any(header[: _HEADER.size]):
            return
        sector, count, flags, _length = _HEADER.unpack_from(header)
        discard = bool(flags & _DISCARD)
        length = 0 if discard else count * SECTOR
        if flags & ~(_FLUSH | _DISCARD) or file.tell() + length > size:
            raise OutputUnreadable(
                f"invalid entry in the log of QEMU's writes {file.name}",
                cause="QEMU has not written it completely, or changed the format",
            )
        zeros = count * SECTOR if discard else 0
        yield Entry(sector * SECTOR, file.read(length), zeros, bool(flags & _FLUSH))
    raise OutputUnreadable(f"more than {_MOST_ENTRIES} entries in {file.name}")


def durable_count(entries: Iterable[Entry]) -> int:
    """Return how many of the first entries a completed flush covers."""
    marks = [number for number, entry in enumerate(entries, 1) if entry.flush]
    return marks[-1] if marks else 0


def replay(entries: Iterable[Entry], path: Path) -> None:
    """Write the entries to a copy of the volume at the start of the log."""
    with path.open("r+b") as file:
        for entry in entries:
            file.seek(entry.offset)
            file.write(entry.data or bytes(entry.zeros))
