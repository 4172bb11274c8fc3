"""Drivers, which implement the Protocols of `model.ports`, and their registry.

A driver is one package and one line here; `drivers.driver` defines what the package must have.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pvebench.drivers.driver import Driver, Engine

DRIVERS: Final[dict[str, str]] = {
    "qemu": "pvebench.drivers.qemu",
    "proxmox": "pvebench.drivers.proxmox",
    "host": "pvebench.drivers.host",
    "simulated": "pvebench.drivers.simulated",
}
"""Name in the settings -> package."""


def driver_of(name: str) -> Driver:
    """Return the description of a driver, without importing its libraries."""
    driver: Driver = import_module(DRIVERS[name]).DRIVER
    return driver


def engine_of(name: str) -> Engine:
    """Return the engine of a driver; this imports its libraries."""
    engine: Engine = import_module(driver_of(name).engine).ENGINE
    return engine
