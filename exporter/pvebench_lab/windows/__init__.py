"""Windows guests: an image of the user's, through QEMU's agent and PowerShell."""

from __future__ import annotations

from typing import Final

from pvebench.drivers.vm_lifecycle import GuestSystem
from pvebench.model.units import GIB
from pvebench_lab.windows.windows_guest import WindowsGuest

WINDOWS: Final = GuestSystem(
    guest=lambda client, clock, machine: WindowsGuest(client, clock, fio=machine.fio),
    min_memory=2 * GIB,
    boot_seconds=120.0,
    if_silent="boot the image by hand, run setup.ps1 and check.ps1, allow guest-ping in "
    "qemu-ga.conf, shut it down, run `pvebench check --boot`; see docs/windows.md",
)
