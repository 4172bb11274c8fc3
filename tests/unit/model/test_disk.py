"""Every bus has its traits, and all code that depends on the bus handles it."""

from __future__ import annotations

import pytest

from pvebench.drivers.proxmox.vm.drive import SLOT, slot_name
from pvebench.drivers.qemu.block_graph import Names, devices
from pvebench.drivers.qemu.disk_readback import Seen, _bus
from pvebench.model.disk import BUSES, Bus, Cache, Disk, Format
from pvebench_lab.simulated.simulated_tools import BUS_SPEED

OF_VMS = [bus for bus in Bus if Disk(bus=bus, format=Format.RAW, cache=Cache.NONE).in_vm]


def test_every_bus_has_traits_and_a_simulated_speed() -> None:
    assert [*BUSES] == [*Bus]
    assert [*BUS_SPEED] == [*Bus]


@pytest.mark.parametrize("bus", OF_VMS)
def test_a_bus_is_recognized_by_its_device_and_controller(bus: Bus) -> None:
    *controllers, device = devices(Names(1), Disk(bus=bus, format=Format.RAW, cache=Cache.NONE))
    controller = controllers[0]["driver"] if controllers else ""
    seen = Seen(
        nodes=[], blocks=[], guest={}, device_type=device["driver"], controller_type=controller
    )
    assert _bus(seen) == bus


@pytest.mark.parametrize("bus", OF_VMS)
def test_a_bus_of_vms_has_modules_and_slots(bus: Bus) -> None:
    assert BUSES[bus].modules
    slots = [slot_name(bus, index) for index in range(2 * len(BUSES[bus].slots))]
    assert len({*slots}) == len(BUSES[bus].slots)
    assert {match["bus"] for slot in slots if (match := SLOT.match(slot))} == {bus}
