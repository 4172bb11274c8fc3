"""What the screen on the wall shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WallSlot:
    """One of the wall's four places.

    Attributes:
        scenario, workload: slugs of the case, on every node that has it.
        direction: read, write or trim.
        title: shown above the number; empty: the workload's own.
    """

    scenario: str
    workload: str
    direction: str
    title: str = ""
