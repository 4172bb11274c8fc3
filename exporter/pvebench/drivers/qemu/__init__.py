"""Driver for VMs under QEMU on this machine, with host and container cases."""

from __future__ import annotations

from typing import Final, Literal

from pvebench.drivers.driver import Driver
from pvebench.drivers.storages.settings import LocalSettings, local_storages, require_paths


class LabSettings(LocalSettings):
    """What the lab is told.

    Attributes:
        accelerator: `auto` uses KVM only after a guest has proved that it boots under it.
    """

    accelerator: Literal["auto", "kvm", "tcg"] = "auto"


DRIVER: Final = Driver(
    settings=LabSettings,
    engine="pvebench.drivers.qemu.lab",
    storages=local_storages,
    require=require_paths,
)
