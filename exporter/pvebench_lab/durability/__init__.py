"""Which writes of a guest survive a killed QEMU and a loss of power."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from pvebench.drivers.driver import DriverContext
from pvebench.model.durability import Durability
from pvebench.plugins import load


class DurabilityProbe(Protocol):
    """Measures which writes of a guest survive, on disks of its own."""

    @property
    def configurations(self) -> Sequence[str]:
        """All that it can measure, as keys of `model.durability`."""

    def measure(self, configurations: Sequence[str]) -> Iterator[Durability]:
        """Yield the durability of each. Raises DriverError, Interrupted."""


_PROBES: Final = {
    "qemu": "pvebench_lab.durability.qemu:probe",
    "proxmox": "pvebench_lab.durability.proxmox:probe",
}
"""Driver that can kill a VM and read its disks back -> function that returns its probe."""


def probe_of(
    driver: str, settings: Any, place: DriverContext, storage: str
) -> DurabilityProbe | None:
    """Return the probe of a storage; None: the driver cannot kill a VM and read it back.

    Args:
        storage: its id; empty: the first possible one.

    Raises:
        VolumeError: not possible on that storage.
    """
    if driver not in _PROBES:
        return None
    make: Callable[[Any, DriverContext, str], DurabilityProbe] = load(_PROBES[driver])
    return make(settings, place, storage)
