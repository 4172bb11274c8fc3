"""Drivers, which implement the Protocols of `model.ports`, and their registry.

A driver is one package with a `DRIVER`, and one line here or an entry point in the group
`pvebench.drivers`; `drivers.driver` defines what the package must have.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pvebench.plugins import Registry

if TYPE_CHECKING:
    from pvebench.drivers.driver import Driver, Engine


def _valid(plugin: Any) -> bool:
    from pvebench.drivers.driver import Driver  # noqa: PLC0415 # it is below this package

    return isinstance(plugin, Driver)


DRIVERS: Final = Registry["Driver"](
    "drivers",
    _valid,
    {"qemu": "pvebench.drivers.qemu:DRIVER", "proxmox": "pvebench.drivers.proxmox:DRIVER"},
)
"""Name in the settings -> description of the driver, without its libraries."""


def driver_of(name: str) -> Driver:
    """Return the description of a driver, without importing its libraries."""
    return DRIVERS[name]


def engine_of(name: str) -> Engine:
    """Return the engine of a driver; this imports its libraries."""
    engine: Engine = import_module(driver_of(name).engine).ENGINE
    return engine
