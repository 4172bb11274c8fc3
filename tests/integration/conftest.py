"""A real VM, booted once for all tests that only switch its disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.qemu.accelerator import Accelerator
from pvebench.drivers.qemu.qemu_hypervisor import QemuHypervisor
from pvebench.drivers.storages.contract import release
from pvebench.drivers.storages.directory import DirectoryStorage
from pvebench.guest.build import build_image
from pvebench.guest.image import GuestImage, default_directory
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.guest import Guest
from pvebench.model.ports import Site, StorageFunctions, StorageNetwork, VmFunctions
from pvebench.model.run import Run
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment, Plug
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from testing.packs import Recorder, tool_workload
from testing.storages import storage_context
from testing.stores import TemporaryStore

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
        self.store = TemporaryStore(directory / "pvebench.db", simulated=False)
        self.storage = directory / "storage"
        self.storage.mkdir(exist_ok=True)
        self.clock = SystemClock()
        self._image, self._kind = image, kind
        self.storages, self.qemu = self._make("test")

    def _make(self, owner: str) -> tuple[dict[str, DirectoryStorage], QemuHypervisor]:
        options = storage_context(name="local", kind="dir", owner=owner, path=str(self.storage))
        storages = {"local": DirectoryStorage(options, self.store.journal)}
        vm = self._kind(
            node="lab",
            storages=storages,
            image=self._image,
            accelerator=Accelerator.TCG,
            runtime=self.directory / "run",
            journal=self.store.journal,
            clock=self.clock,
        )
        return storages, vm

    def further_vm(self, number: int) -> QemuHypervisor:
        """Return another VM with volumes of its own, as `make_storages` gives it."""
        return self._make(f"test-vm{number}")[1]

    def plug(self, requested: Scenario) -> tuple[Guest, Attachment]:
        """Attach the scenario's disk as a run does: by a boot where the bus cannot hot-plug."""
        volume, _ = self.qemu.volume(requested)
        cold = Plug(volume, requested.disk) if requested.disk.cold else None
        guest = self.qemu.boot(MACHINE, cold)
        return guest, self.qemu.attach(volume, requested.disk)

    def remove_volumes(self) -> None:
        """Do what `shutdown` does, but with the VM running for the next test."""
        self.qemu.detach()
        release(self.qemu._storages, self.qemu._volumes.values())
        self.qemu._volumes.clear()

    def close(self) -> None:
        self.qemu.shutdown()
        self.store.close()


class LabBench:
    """Runs short jobs in a lab, as the product does.

    Attributes:
        job: options of fio, unless a test has others.
        ramp, seconds: duration of a run.
    """

    job: ClassVar[Mapping[str, object]] = {"rw": "randwrite", "bs": "4k"}
    ramp = 0.2
    seconds = 2.0

    def __init__(self, lab: Lab, networks: Mapping[str, StorageNetwork] | None = None) -> None:
        self.lab = lab
        site = Site(
            node="lab",
            hypervisor=lab.qemu,
            probe=ProcProbe(lambda: lab.qemu.pid, lambda: lab.qemu.volume_path),
            clock=lab.clock,
            vms=VmFunctions(
                take_snapshots=lab.qemu.take_snapshots,
                operate=lab.qemu.operate,
                further_vm=lab.further_vm,
            ),
            storages=StorageFunctions(networks=networks or {}),
        )
        self.runner = Runner(site, Recorder())

    def run(
        self, tested: Scenario, tool: str = "fio", seconds: float | None = None, **job: object
    ) -> Run:
        options = {**self.job, **job} if tool == "fio" else job
        workload = tool_workload(
            tool, options, ramp_seconds=self.ramp, runtime_seconds=seconds or self.seconds
        )
        case = Case(scenario=tested, workload=workload)
        return self.runner.run(case, cycle="", conduct=Conduct(settle_seconds=0.1))

    def close(self) -> None:
        """End the lab; no process, volume, socket and journal entry may be left."""
        pid = self.lab.qemu.pid
        self.runner.close()
        assert pid is not None
        assert not Path(f"/proc/{pid}").exists()
        assert list(self.lab.storage.iterdir()) == []
        assert list((self.lab.directory / "run").iterdir()) == []
        assert not self.lab.store.journal.pending()
        self.lab.close()


def scenario(
    bus: Bus = Bus.VIRTIO,
    kind: Format = Format.RAW,
    cache: Cache = Cache.NONE,
    size: int = 16 * MIB,
    **options: object,
) -> Scenario:
    """Return a configuration of the lab; its volume is small, as a guest under TCG fills it."""
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
