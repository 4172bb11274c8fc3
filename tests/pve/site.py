"""A driver at a test cluster, with a guest that costs nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pve.cluster import Cluster
from pve.faults import Faults
from pve.machines import CheapMachine
from pve.server import RunningApi, fingerprint
from pvebench.drivers.proxmox.api.connection import Api, Server, Token
from pvebench.drivers.proxmox.api.privileges import vm_privileges
from pvebench.drivers.proxmox.hypervisor import ProxmoxHypervisor
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.drivers.proxmox.vm.leftover_vms import undo_vms
from pvebench.drivers.proxmox.vm.vm_create import NodeContext, VmOptions
from pvebench.guest.image import GuestImage
from pvebench.guest.recipe import PROGRAMS
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.ports import Clock
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Plug, Volume
from testing.stores import TemporaryStore

MACHINE = Machine(memory_bytes=512 * MIB, cpus=1)
POOL = "bench"
SPEED = 20.0


class QuickClock:
    """Real time, seen twenty times as fast: the driver's waits are short, the server's are not."""

    _skipped = 0.0

    def skip(self, seconds: float) -> None:
        """Let so much time be over at once."""
        self._skipped += seconds

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic() * SPEED + self._skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / SPEED)


def scenario(
    bus: Bus = Bus.SCSI,
    kind: Format = Format.RAW,
    cache: Cache = Cache.NONE,
    storage: str = "local",
    size: int = 64 * MIB,
    **options: object,
) -> Scenario:
    disk = Disk(bus=bus, format=kind, cache=cache, **options)  # type: ignore[arg-type] # options by name
    return Scenario(node="pve1", storage=storage, disk=disk, machine=MACHINE, volume_bytes=size)


def small_image(directory: Path) -> GuestImage:
    """Return an image whose files are tiny: nothing boots from it here."""
    for name in ("kernel", "initramfs", "guest.iso"):
        (directory / name).write_bytes(name.encode() * 100)
    return GuestImage(
        directory=directory,
        kernel=directory / "kernel",
        initramfs=directory / "initramfs",
        iso=directory / "guest.iso",
        digest="0" * 64,
        manifest={"kernel_version": "6.1.0", "packages": dict.fromkeys(PROGRAMS.values(), "1.0-1")},
    )


class Site:
    """One test cluster with a driver for node pve1."""

    def __init__(
        self,
        api: RunningApi,
        directory: Path,
        major: int,
        *,
        image: GuestImage | None = None,
        clock: QuickClock | None = None,
    ) -> None:
        self.clock = clock or QuickClock()
        self.api = api
        self.cluster: Cluster = api.cluster
        self.faults: Faults = api.faults
        user, _, secret = self.cluster.grant(POOL, vm_privileges(major)).partition("=")
        name, _, token = user.partition("!")
        self.token = Token(name, token, secret)
        self.store = TemporaryStore(directory / "pvebench.db", simulated=False)
        self.image = image or small_image(directory)
        self.node = self.driver("pve1")

    @property
    def server(self) -> Server:
        pin = fingerprint(self.api.certificate)
        return Server(host="127.0.0.1", port=self.api.port, fingerprint=pin)

    def keep_token(self, directory: Path) -> None:
        """Write the token's file, as the settings of `pve.instance` name it."""
        (directory / "token").write_text(f"{self.token}={self.token.secret}\n")
        (directory / "token").chmod(0o600)

    def connect(self, token: Token | None = None) -> Api:
        return Api(self.server, token or self.token, self.clock)

    def access(self, node: str = "pve1", **changes: Any) -> NodeContext:
        """Return pvebench's access to a node."""
        storages = self.cluster.storages.items()
        access = NodeContext(
            api=self.connect(),
            clock=self.clock,
            journal=self.store.journal,
            node=node,
            pool=POOL,
            vmids=(9000, 9009),
            image=self.image,
            storages={
                name: ClusterStorage(id=name, type=storage.type) for name, storage in storages
            },
        )
        return replace(access, **changes)

    def driver(self, node: str, **options: Any) -> ProxmoxHypervisor:
        return ProxmoxHypervisor(self.access(node), VmOptions(iso_storage="local", **options))

    def plug(self, asked: Scenario) -> Volume:
        """Boot the benchmark VM with the disk of a scenario; return its volume."""
        volume = self.node.volume(asked)[0]
        self.node.boot(asked.machine, Plug(volume, asked.disk) if asked.disk.cold else None)
        self.node.attach(volume, asked.disk)
        return volume

    def undo(self, clock: Clock | None = None, node: str = "pve1") -> list[str]:
        """Do as the next start of pvebench does with what the journal has."""
        return undo_vms(self.access(node, clock=clock or QuickClock()))

    @property
    def machine(self) -> CheapMachine:
        """What runs under the benchmark VM."""
        found = self.cluster.vms[self.node.vmid].machine
        assert isinstance(found, CheapMachine)
        return found

    def close(self) -> None:
        self.store.close()
