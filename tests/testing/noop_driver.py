"""A driver that does nothing: the least that a driver's folder must offer."""

from __future__ import annotations

from typing import Any

from pvebench.drivers.driver import Driver, DriverContext, DriverSettings, Engine, MeasuredStorage
from pvebench.drivers.storages import KINDS
from pvebench.model.ports import Site


def storages(settings: DriverSettings, node: str | None) -> dict[str, MeasuredStorage]:
    return {"local": MeasuredStorage(holds=KINDS["dir"].holds)}


class NothingEngine(Engine):
    def sites(self, settings: Any, place: DriverContext) -> list[Site]:
        return []


DRIVER = Driver(settings=DriverSettings, engine=__name__, storages=storages)
ENGINE = NothingEngine()
