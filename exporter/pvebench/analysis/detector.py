"""What finds a level that moved at an unknown time, and what it says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A level that moved; effects are logarithms, plus for better.

    Attributes:
        index: first run after the change, as far as can be told.
        seen: run at which it was found.
        effect, low, high: shift and its 95 % interval.
        p_value: of a shift as large at any place by chance.
        runs: it rests on.
    """

    index: int
    seen: int
    effect: float
    low: float
    high: float
    p_value: float
    runs: int


class Detector(Protocol):
    """Finds changes in a series of logarithms, oldest first."""

    def detect(self, values: Sequence[float]) -> tuple[Step, ...]:
        """Return all changes in the order of their index."""
