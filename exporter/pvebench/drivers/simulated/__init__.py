"""Driver without VMs: deterministic by seed, in simulated time, with optional faults.

All results carry the mark `simulated`; the store rejects a mix with measured results.
"""

from __future__ import annotations

from typing import Final

from pydantic import StrictInt

from pvebench.drivers.driver import Driver
from pvebench.drivers.storages.settings import LocalSettings, local_storages
from pvebench.fields import Strict


class SimulationSettings(Strict):
    """The simulated driver. `seed` decides every number it invents."""

    seed: StrictInt = 1


class SimulatedSettings(LocalSettings):
    """What the simulation is told."""

    simulation: SimulationSettings = SimulationSettings()


DRIVER: Final = Driver(
    settings=SimulatedSettings,
    engine="pvebench.drivers.simulated.simulated_hypervisor",
    storages=local_storages,
    simulated=True,
)
