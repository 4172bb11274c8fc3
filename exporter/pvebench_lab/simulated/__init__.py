"""Driver `simulated`: deterministic by seed, in simulated time, with optional faults.

All of its results are marked `simulated`, and the store rejects mixing them with measured ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydantic import StrictInt

from pvebench.drivers.driver import Driver, MeasuredStorage
from pvebench.drivers.storages.storage_settings import LocalSettings, local_storages
from pvebench.fields import Strict


class SimulationSettings(Strict):
    """Settings of the simulation. `seed` determines every number."""

    seed: StrictInt = 1


class SimulatedSettings(LocalSettings):
    """Settings of driver `simulated`."""

    simulation: SimulationSettings = SimulationSettings()


def _storages(settings: SimulatedSettings, node: str | None) -> Mapping[str, MeasuredStorage]:
    """Return the storages, without a default write budget: nothing is written."""
    budgets = {name: entry.write_budget for name, entry in settings.active_storages().items()}
    return {
        name: replace(had, holds=replace(had.holds, boots=""), budget_bytes=budgets[name] or None)
        for name, had in local_storages(settings, node).items()
    }


DRIVER: Final = Driver(
    settings=SimulatedSettings,
    engine="pvebench_lab.simulated.simulated_hypervisor",
    storages=_storages,
    simulated=True,
)
