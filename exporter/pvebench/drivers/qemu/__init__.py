"""Real VMs under this machine's QEMU: the lab."""

from pvebench.drivers.qemu.accel import Accelerator, choose_accelerator
from pvebench.drivers.qemu.lab import QemuLab
from pvebench.drivers.qemu.undo import undo_pending

__all__ = ["Accelerator", "QemuLab", "choose_accelerator", "undo_pending"]
