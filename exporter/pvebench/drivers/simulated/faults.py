"""What can go wrong in the simulation, and how often."""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum


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
