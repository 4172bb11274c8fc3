"""Drivers behind the Protocols of `model.ports`, and their registry.

A driver is one package and one entry in `DRIVERS`; `drivers.driver` defines its interface.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from pvebench.drivers.driver import Driver, Engine

DRIVERS: Final[dict[str, str]] = {
    "qemu": "pvebench.drivers.qemu",
    "proxmox": "pvebench.drivers.proxmox",
    "host": "pvebench.drivers.host",
    "simulated": "pvebench.drivers.simulated",
}
"""Name in the settings -> its folder."""


def driver_of(name: str) -> Driver:
    """Return what is known of a driver; no library of its own is imported for that."""
    found: Driver = import_module(DRIVERS[name]).DRIVER
    return found


def engine_of(name: str) -> Engine:
    """Return what does the driver's work; its libraries are imported by now."""
    found: Engine = import_module(driver_of(name).engine).ENGINE
    return found
