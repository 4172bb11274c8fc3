"""This machine itself: its counters, its devices, and tools that run on it without a VM."""

from __future__ import annotations

from typing import Final

from pvebench.drivers.driver import Driver
from pvebench.drivers.storages.settings import LocalSettings, local_storages
from pvebench.model.rules import Rows

DRIVER: Final = Driver(
    settings=LocalSettings,
    engine="pvebench.drivers.host.this_host",
    storages=local_storages,
    rows=Rows.HOST,
)
