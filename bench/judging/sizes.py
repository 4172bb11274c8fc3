"""Whether the size of a reported change, and its interval, are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from judging.sampling import Row, Setup, share_row
from pvebench.analysis.judge import Judge
from pvebench_lab.cli.judge import judged
from testing.answers import Moved, ask, material
from testing.fleets import mixed_case
from testing.noise import KINDS, Random, Series, unchanged

BEFORE: Final = 100
AFTER: Final = 60
LEAST_OF_KIND: Final = 0.88
NEAR: Final = 8
"""Maximum runs between a change and its reported begin."""


def step_size(rng: Random, upgrade: bool) -> list[tuple[Moved, float]]:
    """Return the reported changes at a step of a random size, with its true size."""
    runs = int(rng.integers(10, AFTER))
    effect = float(rng.choice([-1, -1, 1]) * np.exp(rng.uniform(np.log(0.03), np.log(0.6))))
    series = mixed_case(rng, BEFORE + runs, float(rng.choice([1, 4, 8, 24])))
    series = series.changed(BEFORE, float(np.exp(effect)))
    answer = ask(series.upgraded(BEFORE) if upgrade else series)
    times = series.times.tolist()
    return [
        (change, effect)
        for change in answer.changes
        if abs(change.index(times) - BEFORE) <= NEAR and not change.slow
    ]


def size_rows(name: str, found: Sequence[tuple[Moved, float]]) -> Iterator[Row]:
    """Yield how right reported sizes are; `found`: changes with their true sizes, logarithms."""
    yield share_row(
        f"0 in the interval, {name}", [one.low <= 0 <= one.high for one, _ in found], most=0.0
    )
    right = [
        one.effect * true > 0 and abs(np.log(abs(one.effect / true))) <= np.log(2)
        for one, true in found
        if true
    ]
    yield share_row(f"size within a factor of two, {name}", right, least=0.95)


def synthetic_rows(setup: Setup) -> Iterator[Row]:
    """Yield how right the sizes of made changes are."""
    for upgrade, name in ((False, "a step at any time"), (True, "an upgrade")):
        found = [one for some in setup.each(step_size, upgrade, share=4) for one in some]
        yield from size_rows(name, found)
        inside = [np.log1p(one.low) <= true <= np.log1p(one.high) for one, true in found]
        row = share_row(f"95% interval has the true size, {name}", inside)
        good = 0.93 <= float(np.mean(inside)) <= 0.97 if inside else None
        yield Row(row.name, row.measured, "93 to 97%", good)


def kind_size(rng: Random, kind: str, upgrade: bool) -> list[bool]:
    """Return for the reported changes at a step whether their intervals have its size."""
    runs = int(rng.integers(10, AFTER))
    effect = float(rng.choice([-1, -1, 1]) * np.exp(rng.uniform(np.log(0.05), np.log(0.6))))
    series = unchanged(kind, rng, BEFORE + runs, float(rng.choice([2, 8, 24])))
    series = Series(series.times, series.logs).changed(BEFORE, float(np.exp(effect)))
    times = series.times.tolist()
    return [
        float(np.log1p(change.low)) <= effect <= float(np.log1p(change.high))
        for change in ask(series.upgraded(BEFORE) if upgrade else series).changes
        if abs(change.index(times) - BEFORE) <= NEAR and not change.slow
    ]


def kind_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often the interval has the true size, over all kinds of noise and in each one."""
    inside = {
        kind: [
            hit
            for upgrade in (False, True)
            for series in setup.each(kind_size, kind, upgrade)
            for hit in series
        ]
        for kind in KINDS
    }
    total = [hit for hits in inside.values() for hit in hits]
    row = share_row(f"95% interval has the true size, {len(inside)} kinds of noise", total)
    yield Row(row.name, row.measured, "93 to 97%", 0.93 <= float(np.mean(total)) <= 0.97)
    lowest = sorted((float(np.mean(hits)), kind, hits) for kind, hits in inside.items() if hits)
    for share, kind, hits in lowest:
        if share < LEAST_OF_KIND or kind == lowest[0][1]:
            yield share_row(f"the same, {kind}", hits, least=LEAST_OF_KIND)


# --- what is ruled out ---


def claimed(rng: Random, kind: str, ratio: float) -> bool | None:
    """Return whether what is ruled out is false; None: nothing is.

    Args:
        kind: of the noise.
        ratio: of a change in the latest 8 to 90 of 300 runs.
    """
    series = unchanged(kind, rng, 300, float(rng.choice([2, 8, 24])))
    series = Series(series.times, series.logs).changed(300 - int(rng.integers(8, 90)), ratio)
    (verdict,) = judged(material([series], [{}]), Judge()).verdicts
    if str(verdict.state) != "unchanged":
        return None
    return abs(float(np.log(ratio))) > verdict.excluded


def claim_rows(setup: Setup) -> Iterator[Row]:
    """Yield how often a change is ruled out that there is."""
    pairs = [(kind, ratio) for kind in KINDS for ratio in (0.88, 0.92, 0.95, 0.97, 1.05)]
    results = [result for pair in pairs for result in setup.each(claimed, *pair)]
    claims = [result for result in results if result is not None]
    yield share_row(f"a change of 3 to 12% is ruled out ({len(results)} series)", claims, most=0.02)
