"""Bytes that measuring writes to a storage, its write budget, and wear of drives. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pvebench.model.units import GIB, show_bytes

YEAR_DAYS: Final = 365
BUDGET_SHARE: Final = 0.05
"""Default write budget per 24 hours, as a share of the storage's size. Consumer SSDs are usually
rated for about 0.3 of their size per day."""
MIN_BUDGET_BYTES: Final = 10 * GIB
"""Smallest default write budget; also that of a storage of unknown size."""


AT_MOST: Final = "with a fast NVMe drive at most"
"""Before stored runs show what a cycle writes."""
MIN_USED: Final = 0.05
"""Smallest wear to compute a share per year from: drives report wear in steps of 0.01."""


@dataclass(frozen=True, slots=True)
class Wear:
    """Wear of the most worn drive of a storage, from the drive's own counters.

    Attributes:
        used: share of its rated endurance.
        written_bytes: bytes written to it since it was new; 0: unknown.
    """

    used: float
    written_bytes: int = 0

    def share_of(self, written: float) -> float | None:
        """Return the share of the rated endurance that `written` more bytes use; None: unknown."""
        known = self.written_bytes and self.used >= MIN_USED
        return self.used * written / self.written_bytes if known else None


def default_budget(size_bytes: int | None) -> int:
    """Return the default write budget per 24 hours of a storage; None: its size is unknown."""
    return max(MIN_BUDGET_BYTES, round((size_bytes or 0) * BUDGET_SHARE))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCost:
    """Bytes that all packs write to a storage on a node.

    Attributes:
        cycle_bytes: in one cycle of each pack.
        day_bytes: in 24 hours, with intervals that keep to the budget.
        measured: whether they are the mean of stored runs; else an upper limit.
        budget_bytes: write budget per 24 hours; None: none.
        longer: for each pack with a longer interval than its own, both intervals as text.
        wear: of its drives, or why it is unknown.
    """

    node: str
    storage: str
    cycle_bytes: float
    day_bytes: float
    measured: bool = False
    budget_bytes: int | None = None
    longer: tuple[str, ...] = ()
    wear: Wear | str = ""

    @property
    def year_bytes(self) -> float:
        """In a year."""
        return self.day_bytes * YEAR_DAYS

    @property
    def year_wear(self) -> float | None:
        """Share of the drive's rated endurance in a year; None: unknown."""
        return self.wear.share_of(self.year_bytes) if isinstance(self.wear, Wear) else None

    @property
    def once(self) -> str:
        """The cost of one cycle in a line."""
        limit = "about" if self.measured else AT_MOST
        return f"writes to {self.storage}: {limit} {show_bytes(self.cycle_bytes)} per cycle"

    @property
    def text(self) -> str:
        """The cost of continuous measuring in a line."""
        day, year = show_bytes(self.day_bytes), show_bytes(self.year_bytes)
        return f"{self.once}, {day} per day, {year} per year{self._budget}; {self._wear}"

    @property
    def _wear(self) -> str:
        if not isinstance(self.wear, Wear):
            return ": ".join(filter(None, ("drive wear unknown", self.wear)))
        share = self.year_wear
        year = "share per year unknown" if share is None else f"about {share:.1%} more per year"
        return f"drive wear {self.wear.used:.0%} of the rated endurance, {year}"

    @property
    def _budget(self) -> str:
        if self.budget_bytes is None:
            return "; no write budget"
        budget = f"{show_bytes(self.budget_bytes)} a day (write_budget)"
        if self.longer:
            until = "" if self.measured else " until a cycle has measured it,"
            return f"; {', '.join(self.longer)}{until} to stay within {budget}"
        return f"; budget {budget}"


def cost_lines(costs: tuple[WriteCost, ...], *, once: bool = False) -> tuple[str, ...]:
    """Return a line for each storage, with the node if there are several; `once`: of one cycle."""
    several = len({cost.node for cost in costs}) > 1
    return tuple(f"{cost.node}: " * several + (cost.once if once else cost.text) for cost in costs)
