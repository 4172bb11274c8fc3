"""What a simulated node has outside of our process, and what can go wrong there."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from pvebench.model.ports import Journal

VM_KIND: Final = "simulated-vm"
VOLUME_KIND: Final = "simulated-volume"
"""Kinds of the journal entries of the simulated driver."""


def _nothing() -> None:
    pass


class Reality:
    """VMs and volumes that exist.

    Args:
        moment: called before and after every change; a test may end the process there.
    """

    def __init__(self, moment: Callable[[], None] = _nothing) -> None:
        self.vms: set[str] = set()
        self.volumes: set[str] = set()
        self.moment = moment

    def start_vm(self, name: str) -> None:
        """Make a VM exist."""
        self._change(lambda: self.vms.add(name))

    def end_vm(self, name: str) -> None:
        """End a VM; none is fine."""
        self._change(lambda: self.vms.discard(name))

    def make_volume(self, name: str) -> None:
        """Make a volume exist."""
        self._change(lambda: self.volumes.add(name))

    def remove_volume(self, name: str) -> None:
        """Remove a volume; none is fine."""
        self._change(lambda: self.volumes.discard(name))

    def _change(self, change: Callable[[], None]) -> None:
        self.moment()
        change()
        self.moment()


def undo_simulated(journal: Journal, reality: Reality) -> list[str]:
    """Undo every open change of the simulated driver; return a line about each."""
    lines = []
    undo = {VM_KIND: reality.end_vm, VOLUME_KIND: reality.remove_volume}
    for number, kind, details in journal.pending():
        if kind in undo:
            undo[kind](details["name"])
            journal.close(number)
            lines.append(f"removed {kind} {details['name']}")
    return lines


class Fault(StrEnum):
    """Each is what a real driver has been seen to do."""

    BOOT_HANGS = "boot_hangs"
    ATTACH_FAILS = "attach_fails"
    WRONG_CACHE = "wrong_cache"
    QEMU_EXITS = "qemu_exits"
    TOOL_FAILS = "tool_fails"
    GUEST_HANGS = "guest_hangs"
    OUTPUT_TRUNCATED = "output_truncated"
    DETACH_FAILS = "detach_fails"
    TOOL_HANGS = "tool_hangs"


class Faults:
    """Decides by seed whether a fault strikes.

    Args:
        rates: fault -> probability each time that it could strike, 0 to 1.
    """

    def __init__(self, seed: int, rates: Mapping[Fault, float] | None = None) -> None:
        self._random = random.Random(f"faults/{seed}")  # noqa: S311 # not for secrets
        self._rates = dict(rates or {})

    def strikes(self, fault: Fault) -> bool:
        """Return whether `fault` happens now."""
        rate = self._rates.get(fault, 0.0)
        return rate > 0 and self._random.random() < rate
