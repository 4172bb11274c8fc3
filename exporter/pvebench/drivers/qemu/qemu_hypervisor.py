"""Engine of driver `qemu`: a site with a VM under this machine's QEMU, the host and a container."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.backend_router import BACKENDS, local_router
from pvebench.drivers.driver import (
    DriverContext,
    Engine,
    Finding,
    attempt,
    guest_image,
    image_summary,
)
from pvebench.drivers.linux.procfs import ProcProbe, available_memory, host_facts, total_memory
from pvebench.drivers.local_leftovers import undo_local
from pvebench.drivers.qemu import QemuSettings
from pvebench.drivers.qemu.accelerator import (
    PROOF_SECONDS,
    Accelerator,
    check_accelerator,
    choose_accelerator,
    kvm_memory,
)
from pvebench.drivers.qemu.block_graph import (
    STATISTICS,
    Names,
    block_counters,
    block_nodes,
    command_line,
    devices,
    is_limited,
    objects,
)
from pvebench.drivers.qemu.disk_readback import UNVERIFIED, look, read_back
from pvebench.drivers.qemu.machine import (
    BOOT_SECONDS,
    SWITCH_SECONDS,
    QemuMachine,
    prove_kvm,
    qemu_facts,
)
from pvebench.drivers.qemu.operations_under_load import DiskOperation
from pvebench.drivers.qemu.qmp import QemuGuest
from pvebench.drivers.storages.contract import (
    SnapshotStorage,
    Storage,
    instance_id,
    pool_options,
    release,
)
from pvebench.drivers.storages.qemu_img import image_format
from pvebench.drivers.storages.storage_settings import (
    check_networks,
    check_storages,
    flush_facts,
    guards_of,
    identities_of,
    make_storages,
    storage_functions,
)
from pvebench.drivers.vm_lifecycle import Power, VmLifecycle, find_in_guest, unverified
from pvebench.errors import OutcomeUnknown, SwitchFailed, ToolsMissing
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus, Disk
from pvebench.model.environment import Environment
from pvebench.model.guest import Guest
from pvebench.model.ports import Clock, Journal, Site, VmFunctions
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.storage_use import require_memory
from pvebench.model.units import show_bytes
from pvebench.model.volume import Attachment, BlockCounters, Identity, Plug, Volume
from pvebench.model.workload import Case

# --- `model.ports.Hypervisor` for this machine's QEMU


@dataclass(slots=True)
class PluggedDisk:
    """Test disk of QEMU.

    Attributes:
        logged: bytes of QEMU's output from before the attach.
    """

    names: Names
    plug: Plug
    logged: int = 0
    operation: DiskOperation | None = None
    name: str = "the test disk"


class QemuHypervisor(VmLifecycle[QemuGuest, PluggedDisk]):
    """Benchmark VM under local QEMU, and its volumes. Owned by one worker thread."""

    def __init__(
        self,
        *,
        node: str,
        storages: Mapping[str, Storage],
        image: GuestImage,
        accelerator: Accelerator,
        runtime: Path,
        journal: Journal,
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self._node = node
        self._image = image
        self._accelerator = accelerator
        self._runtime = runtime
        self._journal = journal
        self._storages = dict(storages)
        self._volumes: dict[str, Volume] = {}
        self._vm: QemuMachine | None = None

    @property
    def pid(self) -> int | None:
        """QEMU's process ID while the VM runs."""
        return self._vm.pid if self._vm else None

    @property
    def volume_path(self) -> Path | None:
        """The attached volume's file or device; None: none on this machine."""
        volume = self._state.disk.plug.volume if self._state.disk else None
        return Path(volume.volid) if volume and volume.local else None

    def prepare(self, machine: Machine, *, count: int) -> None:
        """As `FurtherVm.prepare`."""
        require_memory(machine, count, available_memory())
        self._set_up(machine)

    def _ensure(self, machine: Machine, cold: Plug | None) -> None:
        used = cold or (self._state.disk.plug if self._state.disk else None)
        if used is not None:
            self._storages[used.volume.storage].check(used.volume)

    def _require_usable(self, guest: QemuGuest) -> None:
        guest.ping(timeout=10.0)
        self._qemu.bound_console()

    def _configure(self, machine: Machine, cold: Plug | None) -> PluggedDisk | None:
        self._vm = QemuMachine(self._runtime, journal=self._journal, clock=self._clock)
        return self._new_disk(cold) if cold is not None else None

    def _new_disk(self, plug: Plug) -> PluggedDisk:
        self._storages[plug.volume.storage].drop_caches(plug.volume)
        self._count += 1
        return PluggedDisk(Names(self._count), plug)

    def _begin_start(self, machine: Machine) -> None:
        disk = self._state.disk
        options: list[str] = []
        if disk is not None:
            options = command_line(disk.names, disk.plug.disk, *self._files_of(disk.plug))
        self._qemu.launch(self._image, machine, self._accelerator, disk=options)

    def _await_guest(self) -> QemuGuest:
        return self._qemu.wait(timeout=BOOT_SECONDS)

    def _files_of(self, plug: Plug) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the nodes that open the volume and its snapshots, newest first."""
        storage, used = self._storages[plug.volume.storage], (plug.volume, plug.disk)
        below = storage.below(*used) if isinstance(storage, SnapshotStorage) else []
        return storage.node(*used), below

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        """As `VmFunctions.take_snapshots`."""
        storage = self._storages[volume.storage]
        if not isinstance(storage, SnapshotStorage):
            raise SwitchFailed(f"storage {volume.storage} has no snapshots")
        storage.take_snapshots(volume, disk)

    def operate(self, name: str, target_rate: int) -> DiskOperation:
        """As `VmFunctions.operate`."""
        disk = self._disk
        storage = self._storages[disk.plug.volume.storage]
        if not isinstance(storage, SnapshotStorage):
            raise SwitchFailed(f"storage {disk.plug.volume.storage} has no operations")
        disk.operation = DiskOperation(
            self._qemu.qmp,
            disk.names,
            storage,
            disk.plug,
            self._clock,
            name=name,
            target_rate=target_rate,
        )
        return disk.operation

    def _end(self) -> None:
        if self._vm is not None:
            if self._state.power is Power.BROKEN:
                self._vm.kill()
            else:
                self._vm.quit()
        if (disk := self._state.disk) is not None and disk.operation is not None:
            disk.operation.remove_files()
        self._vm = None

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        known = self._volumes.get(scenario.volume)
        reusable = known is not None and known.size_bytes == scenario.volume_bytes
        if known is not None and reusable and not known.complete:
            return known, False
        storage = self._storages[scenario.storage]
        if known is not None:
            self.detach()
            del self._volumes[scenario.volume]
            storage.remove(known)
        volume = storage.create(scenario)
        self._volumes[scenario.volume] = volume
        return volume, True

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        self._storages[volume.storage].check(volume)
        return super().attach(volume, disk)

    def _plug(self, plug: Plug) -> PluggedDisk:
        # What an error leaves of the disk ends with the VM.
        disk = self._state.disk = self._new_disk(plug)
        disk.logged = self._qemu.log_size
        names, qmp = disk.names, self._qemu.qmp
        for item in objects(names, plug.disk):
            qmp.execute("object-add", item)
        for node in block_nodes(names, plug.disk, *self._files_of(plug)):
            qmp.execute("blockdev-add", node)
        for device in devices(names, plug.disk):
            qmp.execute("device_add", device)
        return disk

    def _read_back(self, disk: PluggedDisk, guest: Guest) -> Attachment:
        try:
            return self._seen(disk, guest)
        except (KeyError, StopIteration) as error:
            raise SwitchFailed(f"QEMU does not report the disk: {error!r}") from error

    def _seen(self, disk: PluggedDisk, guest: Guest) -> Attachment:
        names, plug = disk.names, disk.plug
        found = find_in_guest(guest, names.serial, seconds=SWITCH_SECONDS)
        storage = self._storages[plug.volume.storage]
        opened = storage.opened(plug.volume)
        seen = look(self._qemu, names, plug.disk, guest=found, opened=opened, old=disk.logged)
        effective = read_back(names, plug.disk, seen) | {"size_bytes": found["size_bytes"]}
        effective |= pool_options(storage, plug.volume)
        raw = {"nodes": seen.nodes, "blocks": seen.blocks, "guest": dict(found)}
        return Attachment(
            device=found["device"],
            effective=effective,
            unverified=unverified(found, UNVERIFIED, effective),
            raw=json.dumps(raw, indent=1),
        )

    def _unplug(self, disk: PluggedDisk) -> None:
        if self.pid is None:
            self.power_off()
            return
        try:
            self._remove(disk)
        except OutcomeUnknown as error:
            error.cause = "the guest hangs or still uses the disk"
            raise

    def _remove(self, disk: PluggedDisk) -> None:
        names, options, qmp = disk.names, disk.plug.disk, self._qemu.qmp
        if disk.operation is not None:
            disk.operation.cancel()
        for device in reversed(devices(names, options)):
            qmp.execute_until(
                "device_del",
                {"id": device["id"]},
                event="DEVICE_DELETED",
                device=device["id"],
                timeout=SWITCH_SECONDS,
            )
        if disk.operation is not None:
            disk.operation.remove()
            disk.operation = None
        nodes = [names.throttle] if is_limited(options) else []
        for node in (*nodes, names.format, names.file):
            qmp.execute("blockdev-del", {"node-name": node})
        for item in objects(names, options):
            qmp.execute("object-del", {"id": item["id"]})

    def drop_caches(self, volume: Volume) -> int | None:
        return self._storages[volume.storage].drop_caches(volume)

    def counters(self) -> BlockCounters:
        disk = self._disk
        stats = self._qemu.qmp.ask("query-blockstats", shape=STATISTICS)
        return block_counters(disk.names, disk.plug.disk, stats)

    def statistics(self) -> str:
        """Return QEMU's response to query-blockstats."""
        return json.dumps(self._qemu.qmp.execute("query-blockstats"), indent=1)

    def environment(self) -> Environment:
        return environment(self._node, self._image, self._accelerator, self._vm)

    def host_environment(self) -> Environment:
        return environment(self._node, self._image, self._accelerator, None)

    def shutdown(self) -> None:
        self.power_off()
        release(self._storages, self._volumes.values())
        self._volumes.clear()

    @property
    def _qemu(self) -> QemuMachine:
        if self._vm is None:
            raise SwitchFailed("the VM is not running")
        return self._vm


def environment(
    node: str, image: GuestImage, accelerator: Accelerator, vm: QemuMachine | None
) -> Environment:
    """Return the environment of `node`.

    It contains QEMU only while a VM runs: the installed version may not be the running one.
    """
    facts = host_facts() | {"accel": str(accelerator)} | image.facts
    if vm is not None and vm.pid is not None:
        facts |= qemu_facts(vm.qmp)
    return Environment(node=node, facts={key: value for key, value in facts.items() if value})


TOOLS: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "fincore": "util-linux-extra",
}
"""Program -> Debian package."""
INSTALL: Final = "apt-get install --no-install-recommends"
"""Without the recommendations of QEMU's packages, which are libraries of a desktop."""


class QemuEngine(Engine):
    """`drivers.driver.Engine` of driver `qemu`."""

    boot_limit = BOOT_SECONDS

    def sites(self, settings: QemuSettings, place: DriverContext) -> list[Site]:
        image, accelerator = prepare(settings, place)
        storages = make_storages(settings, place)

        def make_vm(held: Mapping[str, Storage]) -> QemuHypervisor:
            return QemuHypervisor(
                node=settings.node,
                storages=held,
                image=image,
                accelerator=accelerator,
                runtime=place.runtime,
                journal=place.journal,
                clock=place.clock,
            )

        vm = make_vm(storages)
        kinds = tuple(BACKENDS.values())
        backends = {kind.bus: kind.make(settings, place, storages) for kind in kinds}
        router = local_router(vm, backends, kinds, partial(flush_facts, settings))
        # During runs of the host or a container, the idle VM's counters are not used.
        probe = ProcProbe(
            lambda: None if router.replacement else vm.pid,
            lambda: (router.replacement or vm).volume_path,
            container=lambda: backends[Bus.LXC].pid if Bus.LXC in backends else None,
        )
        return [
            Site(
                node=settings.node,
                hypervisor=router,
                probe=probe,
                clock=place.clock,
                vms=VmFunctions(
                    take_snapshots=vm.take_snapshots,
                    operate=vm.operate,
                    further_vm=lambda number: make_vm(make_storages(settings, place, vm=number)),
                ),
                storages=storage_functions(settings),
                guards=guards_of(settings, storages),
            )
        ]

    def undo(self, settings: QemuSettings, journal: Journal) -> list[str]:
        instance = instance_id(settings.state)
        return undo_local(journal, instance=instance, runtime=settings.runtime)

    def identities(self, settings: QemuSettings) -> dict[tuple[str, str], Callable[[], Identity]]:
        functions = identities_of(settings)
        return {(settings.node, name): look for name, look in functions.items()}

    def check(self, settings: QemuSettings, cases: Sequence[Case]) -> Iterator[Finding]:
        yield from check_networks(settings)
        for kind in BACKENDS.values():
            yield from kind.check(cases)
        for tool, package in TOOLS.items():
            where = shutil.which(tool)
            yield tool, where is not None, where or f"not installed; run `{INSTALL} {package}`"
        yield _memory(cases)
        for name in sorted({case.scenario.machine.image for case in cases} - {""}):
            yield attempt("guest.image", partial(image_format, Path(name)))
        yield from check_storages(settings)
        yield attempt("guest image", lambda: image_summary(settings))
        yield check_accelerator(settings.accelerator)


def prepare(settings: QemuSettings, place: DriverContext) -> tuple[GuestImage, Accelerator]:
    """Return what every VM of these settings needs. Raises ToolsMissing, GuestImageError."""
    require_tools()
    image = guest_image(settings, place)
    proof = prove_kvm(
        image, place.runtime, journal=place.journal, clock=place.clock, timeout=PROOF_SECONDS
    )
    return image, choose_accelerator(
        settings.accelerator, memory=kvm_memory(), prove=proof, say=place.say
    )


def require_tools() -> None:
    """Raise ToolsMissing if a program that every case needs is missing."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        packages = " ".join(TOOLS[tool] for tool in lacking)
        raise ToolsMissing(
            f"not installed: {', '.join(lacking)}", next_step=f"run `{INSTALL} {packages}`"
        )


def _memory(cases: Sequence[Case]) -> Finding:
    """Return whether the machine has the memory of the VMs that run at the same time."""
    vms = ((case.scenario.machine, 1 + case.workload.further_vms) for case in cases)
    need, total = max(machine.memory_bytes * count for machine, count in vms), total_memory()
    text = f"{show_bytes(need)} needed for VMs, this machine has {show_bytes(total)}"
    if need <= total:
        return "memory", True, text
    return "memory", False, f"{text}; reduce vms or guest.memory in the pack"


ENGINE: Final = QemuEngine()
