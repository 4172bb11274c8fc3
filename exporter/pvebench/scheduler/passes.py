"""Passes: a case that runs several times in a cycle, and how the later compare with the first.

The first pass finds caches of the storage cold (dm-cache, ARC, an SSD's own), the last finds
them as warm as the case itself makes them. So they are kept apart instead of averaged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pvebench.model.run import Run, Sample, Unit, rates
from pvebench.model.workload import Direction

Rates = dict[Direction, float]


class Passes:
    """Counts the runs of each case within a cycle. Owned by one worker."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._first: dict[str, Rates] = {}

    def begin(self) -> None:
        """Start counting anew: another cycle begins."""
        self._made.clear()
        self._first.clear()

    def counted(self, run: Run) -> Run:
        """Return a run that was made with its pass number, and its rates over the first pass's.

        A failed run counts too: it may have warmed what the next one finds. Its numbers are
        none, so nothing is compared with them.
        """
        key = run.case.key
        self._made[key] += 1
        number = self._made[key]
        reached = rates(run.samples) if run.outcome.good else {}
        if number == 1:
            self._first[key] = reached
            return replace(run, pass_number=number)
        ratios = tuple(
            Sample("pass_to_first", direction, rate / first, Unit.RATIO)
            for direction, rate in reached.items()
            if (first := self._first[key].get(direction))
        )
        return replace(run, pass_number=number, samples=run.samples + ratios)
