"""Decisions of the gate without peers: relative to the own past, and after A B B A."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from judging.sampling import Row, Setup, share_row
from pvebench.advice.gate import GateResult, series_of
from pvebench.advice.gate_statistic import TOLERANCE, Decision, bounds
from testing.noise import HOUR, Random, Vector, autocorrelated
from testing.simulated_results import case

PHASES: Final = (40, 30, 20)
"""Runs of A, of both B, and of A again."""
PAST: Final = 20
PRESENT: Final = 40
CASES: Final = ((0.03, 0.0), (0.03, 0.6), (0.05, 0.0), (0.05, 0.6))
"""CV and autocorrelation of the noise."""
LOSSES: Final = ((0.1, "10% loss"), (0.0, "no loss"))


def _look(before: Vector, after: Vector, back: GateResult | None = None) -> GateResult:
    runs = [(place * HOUR, value) for place, value in enumerate([*before, *after])]
    series = series_of(case("scsi.raw.none"), runs, [], len(before) * HOUR)
    groups, cases = bounds([series], TOLERANCE)
    return GateResult(
        canary="", since=0.0, tolerance=TOLERANCE, peers=(), groups=groups, cases=cases, back=back
    )


def returned(rng: Random, lost: float, cv: float, share: float) -> Decision:
    """Return the decision of A B B A."""
    first, both, _ = PHASES
    noise = autocorrelated(rng, np.zeros(sum(PHASES)), share=share, cv=cv)
    noise[first : first + both] += np.log(1 - lost)
    old, new, again = np.split(noise, [first, first + both])
    return _look(old, new, _look(-new, -again)).decision


def own_past(rng: Random, lost: float, cv: float, share: float) -> tuple[Decision, bool]:
    """Return the decision within 40 runs, and whether a time was stated before it."""
    noise = autocorrelated(rng, np.zeros(PAST + PRESENT), share=share, cv=cv)
    noise[PAST:] += np.log(1 - lost)
    stated = False
    for runs in range(2, PRESENT + 1):
        look = _look(noise[:PAST], noise[PAST : PAST + runs])
        if look.decision is not Decision.UNDECIDED:
            return look.decision, stated
        stated |= look.wait is not None
    return Decision.UNDECIDED, stated


def gate_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often the gate is undecided, or stops without a loss."""
    for lost, name in LOSSES:
        for cv, share in CASES:
            noise = f"{name}, CV {cv:.0%}" + (f", AR(1) {share:g}" if share else "")
            decisions = setup.each(returned, lost, cv, share, share=4)
            yield from _decided(f"A B B A of 40, 30, 20 runs, {noise}", decisions, lost, 0.35)
            pairs = setup.each(own_past, lost, cv, share, share=4)
            title = f"own past of 20 runs, {noise}, within 40"
            yield from _decided(title, [decision for decision, _ in pairs], lost, 0.2)
            waits = [stated for decision, stated in pairs if decision is Decision.UNDECIDED]
            if waits and lost:
                yield share_row(f"{title}: undecided, but a time was stated", waits)


def _decided(title: str, decisions: list[Decision], lost: float, most: float) -> Iterator[Row]:
    if lost:
        undecided = [decision is Decision.UNDECIDED for decision in decisions]
        yield share_row(f"{title}: undecided", undecided, most=most)
    else:
        yield share_row(
            f"{title}: stops", [decision is Decision.STOP for decision in decisions], most=0.05
        )
