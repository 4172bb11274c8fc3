"""Routing of cases to the VM or to another backend, and their shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.drivers.backend_router import BackendRouter
from pvebench.drivers.clocks import SimulatedClock
from pvebench.errors import ServerGone, SwitchFailed
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Plug
from pvebench.store.store import Store
from testing.faulty_node import FaultyHypervisor
from testing.stores import TemporaryStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = TemporaryStore(tmp_path / "pvebench.db", simulated=True)
    yield opened
    opened.close()


MACHINE = Machine(memory_bytes=MIB, cpus=1)


def disk(bus: Bus) -> Disk:
    return Disk(bus=bus, format=Format.RAW, cache=Cache.NONE)


def scenario(bus: Bus) -> Scenario:
    return Scenario(
        node="lab", storage="local", disk=disk(bus), machine=MACHINE, volume_bytes=8 * MIB
    )


class FailingBackend(FaultyHypervisor):
    def shutdown(self) -> None:
        super().shutdown()
        raise ServerGone("container 9500 remains")


def backend(store: Store, kind: type[FaultyHypervisor], name: str) -> FaultyHypervisor:
    clock = SimulatedClock()
    return kind(node="lab", seed=1, clock=clock, journal=store.journal, instance=name)


def test_a_backend_with_its_own_volumes_is_used_for_its_bus_only(store: Store) -> None:
    vm = backend(store, FaultyHypervisor, "vm-")
    container = backend(store, FaultyHypervisor, "container-")
    router = BackendRouter(vm, {Bus.LXC: container}, volumes={Bus.LXC: container})
    volume, _ = router.volume(scenario(Bus.LXC))
    router.boot(MACHINE, Plug(volume, disk(Bus.LXC)))
    assert router.replacement is container
    assert (len(container.volumes), len(vm.volumes)) == (1, 0)
    router.volume(scenario(Bus.SCSI))
    assert router.boot(MACHINE) is vm.guest
    assert router.replacement is None
    assert (len(container.volumes), len(vm.volumes)) == (1, 1)
    router.shutdown()
    assert store.journal.pending() == []


def test_a_bus_without_a_backend_is_rejected(store: Store) -> None:
    router = BackendRouter(backend(store, FaultyHypervisor, ""), {})
    volume, _ = router.volume(scenario(Bus.LXC))
    with pytest.raises(SwitchFailed, match="this driver has no backend for bus lxc"):
        router.boot(MACHINE, Plug(volume, disk(Bus.LXC)))


def test_the_vm_is_shut_down_also_after_a_failed_backend(store: Store) -> None:
    vm = backend(store, FaultyHypervisor, "vm-")
    router = BackendRouter(vm, {Bus.LXC: backend(store, FailingBackend, "container-")})
    router.boot(MACHINE)
    with pytest.raises(ServerGone, match="container 9500 remains"):
        router.shutdown()
    assert store.journal.pending() == []
