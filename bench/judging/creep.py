"""Gradual changes: delay of their detection, and false alarms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from judging.series import KINDS, Vector, with_ramp
from judging.unknown import CV, KNOWN_RUNS
from pvebench.analysis.gradual_change import CREEP_LEVEL, WINDOWS, slow_trend

MOST_RUNS = 400
"""Runs after which an undetected gradual change counts as missed."""
APART = 40
"""Runs without an alarm after which the next one is a new alarm."""
EVERY = 4
"""Runs between two analyses, since gradual changes do not vary from run to run."""


def alarms(values: Vector) -> list[int]:
    """Return the runs at which a gradual change is first detected; each change once."""
    detected: list[int] = []
    last = -APART
    for run in range(WINDOWS[0], len(values) + 1, EVERY):
        trend = slow_trend(values[max(0, run - WINDOWS[-1]) : run].tolist())
        if trend is not None and trend.p_value <= CREEP_LEVEL:
            if run - last >= APART:
                detected.append(run - 1)
            last = run
    return detected


def false_creeps(rng: np.random.Generator, runs: int) -> Mapping[str, float]:
    """Return kind of noise -> alarms per 1,000 runs of series without a change."""
    judged = 600
    series = max(1, runs // judged)
    return {
        kind: 1000
        * sum(
            run >= KNOWN_RUNS
            for _ in range(series)
            for run in alarms(noise(rng, KNOWN_RUNS + judged, CV))
        )
        / (series * judged)
        for kind, noise in KINDS.items()
    }


def delay(rng: np.random.Generator, series: int, *, ratio: float) -> float:
    """Return the median number of runs until a gradual change of `ratio` per run is detected."""
    delays = []
    for _ in range(series):
        values = KINDS["independent"](rng, KNOWN_RUNS + MOST_RUNS, CV)
        changed = with_ramp(values, KNOWN_RUNS, ratio, runs=MOST_RUNS)
        after = [run for run in alarms(changed) if run >= KNOWN_RUNS]
        delays.append(after[0] - KNOWN_RUNS + 1 if after else np.inf)
    return float(np.median(delays))
