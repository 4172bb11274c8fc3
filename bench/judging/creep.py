"""Slow degradation: how soon a creep is told, and how often one is told where there is none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from judging.series import KINDS, Vector, with_ramp
from judging.unknown import CV, KNOWN_RUNS
from pvebench.analysis.gradual_change import CREEP_LEVEL, WINDOWS, slow_trend

MOST_RUNS = 400
"""Runs after which a creep that is not told counts as never told."""
APART = 40
"""Runs without a creep after which the next one is another alarm."""
EVERY = 4
"""Runs between two looks: a creep does not come and go from one run to the next."""


def told(values: Vector) -> list[int]:
    """Return the runs at which a creep is told for the first time; each creep once."""
    found: list[int] = []
    last = -APART
    for run in range(WINDOWS[0], len(values) + 1, EVERY):
        trend = slow_trend(values[max(0, run - WINDOWS[-1]) : run].tolist())
        if trend is not None and trend.p_value <= CREEP_LEVEL:
            if run - last >= APART:
                found.append(run - 1)
            last = run
    return found


def false_creeps(rng: np.random.Generator, runs: int) -> Mapping[str, float]:
    """Return kind of noise -> creeps told per 1,000 runs of series that never change."""
    judged = 600
    series = max(1, runs // judged)
    return {
        kind: 1000
        * sum(
            run >= KNOWN_RUNS
            for _ in range(series)
            for run in told(noise(rng, KNOWN_RUNS + judged, CV))
        )
        / (series * judged)
        for kind, noise in KINDS.items()
    }


def delay(rng: np.random.Generator, series: int, *, ratio: float) -> float:
    """Return after how many runs a creep of `ratio` a run is told in half of the series."""
    found = []
    for _ in range(series):
        values = KINDS["independent"](rng, KNOWN_RUNS + MOST_RUNS, CV)
        crept = with_ramp(values, KNOWN_RUNS, ratio, runs=MOST_RUNS)
        after = [run for run in told(crept) if run >= KNOWN_RUNS]
        found.append(after[0] - KNOWN_RUNS + 1 if after else np.inf)
    return float(np.median(found))
