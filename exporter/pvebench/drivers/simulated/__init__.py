"""Driver `simulated`: deterministic by seed, in simulated time, with optional faults.

All of its results are marked `simulated`, and the store rejects mixing them with measured ones.
"""

from __future__ import annotations

from typing import Final

from pydantic import StrictInt

from pvebench.drivers.driver import Driver
from pvebench.drivers.storages.settings import LocalSettings, local_storages
from pvebench.fields import Strict


class SimulationSettings(Strict):
    """Settings of the simulation. `seed` determines every number."""

    seed: StrictInt = 1


class SimulatedSettings(LocalSettings):
    """Settings of driver `simulated`."""

    simulation: SimulationSettings = SimulationSettings()


DRIVER: Final = Driver(
    settings=SimulatedSettings,
    engine="pvebench.drivers.simulated.simulated_hypervisor",
    storages=local_storages,
    simulated=True,
)
