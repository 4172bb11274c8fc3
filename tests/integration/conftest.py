"""A real VM, booted once for all tests that only switch its disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.qemu_hypervisor import QemuHypervisor
from pvebench.drivers.storages.contract import StorageOptions
from pvebench.drivers.storages.directory import DirectoryStorage
from pvebench.guest import GuestImage, build_image, default_directory
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.ports import Guest
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment, Plug
from pvebench.store import Store

MACHINE = Machine(memory_bytes=768 * MIB, cpus=1)


@pytest.fixture(scope="session")
def image() -> GuestImage:
    return build_image(default_directory(), say=print)


class Lab:
    """A lab with its store; `scenario` makes scenarios on its storage `local`."""

    def __init__(
        self, directory: Path, image: GuestImage, kind: type[QemuHypervisor] = QemuHypervisor
    ) -> None:
        self.directory = directory
        self.store = Store(directory / "pvebench.db", simulated=False)
        self.storage = directory / "storage"
        self.storage.mkdir(exist_ok=True)
        self.clock = SystemClock()
        options = StorageOptions(name="local", kind="dir", owner="test", path=str(self.storage))
        self.storages = {"local": DirectoryStorage(options, self.store.journal)}
        self.qemu = kind(
            node="lab",
            storages=self.storages,
            image=image,
            accelerator=Accelerator.TCG,
            runtime=directory / "run",
            journal=self.store.journal,
            clock=self.clock,
        )

    def plug(self, wanted: Scenario) -> tuple[Guest, Attachment]:
        """Attach the scenario's disk as a run does: by a boot where the bus cannot hot-plug."""
        volume, _ = self.qemu.volume(wanted)
        cold = Plug(volume, wanted.disk) if wanted.disk.cold else None
        guest = self.qemu.boot(MACHINE, cold)
        return guest, self.qemu.attach(volume, wanted.disk)

    def close(self) -> None:
        self.qemu.shutdown()
        self.store.close()


def scenario(
    bus: Bus = Bus.VIRTIO,
    kind: Format = Format.RAW,
    cache: Cache = Cache.NONE,
    size: int = 64 * MIB,
    **options: object,
) -> Scenario:
    disk = Disk(bus=bus, format=kind, cache=cache, **options)  # type: ignore[arg-type] # options by name
    return Scenario(node="lab", storage="local", disk=disk, machine=MACHINE, volume_bytes=size)


@pytest.fixture(scope="session")
def shared_lab(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"), image)
    yield lab
    lab.close()


@pytest.fixture
def own_lab(image: GuestImage, tmp_path: Path) -> Iterator[Lab]:
    """A lab that a test may break."""
    lab = Lab(tmp_path, image)
    yield lab
    lab.close()
