"""Unknown time: false alarms, and the delay until a change is detected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from judging.rivals import Alarms
from judging.series import KINDS, Vector, with_glitch, with_ramp, with_step
from pvebench.analysis.changepoints import LevelScan, Scanned

CV = 0.03
KNOWN_RUNS = 150
"""Runs before the evaluation: the first jump of a bimodal case looks like a step."""


@dataclass(frozen=True, slots=True)
class Size:
    """Amount of data: runs per kind of noise, series per question."""

    ours: int
    rivals: int
    series: int


def ours(values: Vector) -> list[int]:
    """Return the runs at which pvebench's scan raises an alarm."""
    return [step.seen for step in LevelScan(values).detect().steps if not step.mode]


def reported(values: Vector) -> list[int]:
    """Return the first runs of the levels that are reported to a user, found run by run."""
    return [step.index for step in LevelScan(values).detect().steps if not step.mode]


def false_alarms(method: Alarms, rng: np.random.Generator, runs: int) -> dict[str, float]:
    """Return kind of noise -> alarms per 1,000 evaluated runs of series without a change."""
    rates = {}
    for kind, noise in KINDS.items():
        judged = raised = 0
        while judged < runs:
            values = noise(rng, KNOWN_RUNS + 200, CV)
            raised += sum(run >= KNOWN_RUNS for run in method(values))
            judged += 200
        rates[kind] = 1000 * raised / judged
    return rates


def _delays(method: Alarms, series: Iterable[Vector], at: int) -> np.ndarray:
    """Return for each series the number of runs from the change to the alarm; inf if none."""
    delays = []
    for values in series:
        after = [run for run in method(values) if run >= at]
        delays.append(after[0] - at + 1 if after else np.inf)
    return np.array(delays)


def step_recall(
    method: Alarms, rng: np.random.Generator, series: int, *, ratio: float, runs: int = 20
) -> Mapping[int, float]:
    """Return runs after a step -> share of series in which it was detected by then."""
    at = KNOWN_RUNS
    changed = (
        with_step(KINDS["independent"](rng, at + runs, CV), at, ratio) for _ in range(series)
    )
    delays = _delays(method, changed, at)
    return {count: float((delays <= count).mean()) for count in (3, 5, 10, 20)}


def seen_recall(
    rng: np.random.Generator, series: int, *, ratio: float, runs: int = 10
) -> tuple[float, float]:
    """Return the shares of series with a possible, and with a confirmed step within `runs`."""
    doubted = confirmed = 0
    for _ in range(series):
        values = with_step(KINDS["independent"](rng, KNOWN_RUNS + runs, CV), KNOWN_RUNS, ratio)
        scans = [LevelScan(values[: KNOWN_RUNS + after]).detect() for after in range(1, runs + 1)]
        doubted += any(scan.doubt or _fresh(scan) for scan in scans)
        confirmed += any(map(_fresh, scans))
    return doubted / series, confirmed / series


def _fresh(scan: Scanned) -> bool:
    """Return whether a step was detected after the change."""
    return any(not step.mode and step.seen >= KNOWN_RUNS for step in scan.steps)


def ramp_delay(method: Alarms, rng: np.random.Generator, series: int) -> float:
    """Return the median number of runs until a ramp of 1% per run is detected."""
    at = KNOWN_RUNS
    changed = (with_ramp(KINDS["independent"](rng, at + 40, CV), at, 0.99) for _ in range(series))
    return float(np.median(_delays(method, changed, at)))


def glitch_alarms(method: Alarms, rng: np.random.Generator, series: int) -> float:
    """Return the share of series in which one single run of half the speed raises an alarm."""
    at = KNOWN_RUNS
    changed = (
        with_glitch(KINDS["independent"](rng, at + 20, CV), at + 5, 0.5) for _ in range(series)
    )
    return float(np.isfinite(_delays(method, changed, at + 5)).mean())
