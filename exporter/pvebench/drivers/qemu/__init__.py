"""Driver `qemu`: VMs under this machine's QEMU, with host and container cases."""

from __future__ import annotations

from typing import Final, Literal

from pvebench.drivers.driver import Driver
from pvebench.drivers.storages.storage_settings import (
    LocalSettings,
    cached_storages,
    require_paths,
    spaces_of,
    wear_of,
)
from pvebench.model.rules import Rows
from pvebench.plugins import plugins


class QemuSettings(LocalSettings):
    """Settings of driver `qemu`.

    Attributes:
        accelerator: `auto` uses KVM only after a test boot of a guest succeeded with it.
    """

    accelerator: Literal["auto", "kvm", "tcg"] = "auto"


DRIVER: Final = Driver(
    settings=QemuSettings,
    engine="pvebench.drivers.qemu.qemu_hypervisor",
    storages=cached_storages,
    wear=wear_of,
    spaces=spaces_of,
    require=require_paths,
    # Host and container cases are of plug-ins.
    rows=Rows.BOTH if plugins("backends") else Rows.VM,
)
