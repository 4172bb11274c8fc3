"""Known time: effect of an upgrade on a fleet, and on a single case."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from judging.fleets import fleet, labels_144, moved
from judging.series import KINDS, with_step
from pvebench.analysis.group_effects import (
    CASE_LEVEL,
    LEAST_RUNS,
    FleetShift,
    judge_fleet,
    known_shifts,
)

BEFORE = 60


def judged(values: np.ndarray, runs: int, labels: list[dict[str, str]]) -> FleetShift:
    """Return the detected shift of the last `runs` runs."""
    return judge_fleet(known_shifts(values[:, :-runs], values[:, -runs:]), labels)


def raised(shift: FleetShift, runs: int) -> bool:
    """Return whether any change would be reported for the event."""
    single = runs >= LEAST_RUNS and bool((shift.q_values <= CASE_LEVEL).any())
    return bool(shift.groups) or single


def group_step(
    rng: np.random.Generator, seeds: int, *, ratio: float, runs: int
) -> tuple[float, float]:
    """Return the share of fleets where a step of one bus is detected, and where it is named."""
    labels = labels_144()
    members = [case["bus"] == "virtio" for case in labels]
    events = named = 0
    for _ in range(seeds):
        values = moved(fleet(rng, len(labels), BEFORE + runs), members, runs, ratio)
        shift = judged(values, runs, labels)
        events += raised(shift, runs)
        named += any(
            group.group == (("bus", "virtio"),) and not group.all_but for group in shift.groups
        )
    return events / seeds, named / seeds


def shape(rng: np.random.Generator, seeds: int, *, what: str, ratio: float, runs: int) -> float:
    """Return how often a change of all cases, of a pair of labels, or of one case is recognized."""
    labels = labels_144()
    rows = {
        "all": [True] * len(labels),
        "pair": [case["bus"] == "virtio" and case["workload"] == "randwrite" for case in labels],
        "case": [index == 7 for index in range(len(labels))],
    }[what]
    right = 0
    for _ in range(seeds):
        shift = judged(
            moved(fleet(rng, len(labels), BEFORE + runs), rows, runs, ratio), runs, labels
        )
        if what == "case":
            right += bool(shift.q_values[7] <= CASE_LEVEL)
        else:
            expected = () if what == "all" else (("bus", "virtio"), ("workload", "randwrite"))
            right += any(set(group.group) == set(expected) for group in shift.groups)
    return right / seeds


def false_events(rng: np.random.Generator, seeds: int) -> Mapping[int, float]:
    """Return runs after -> share of upgrades without effect that are reported as changes."""
    labels = labels_144()
    return {
        runs: sum(
            raised(judged(fleet(rng, len(labels), BEFORE + runs), runs, labels), runs)
            for _ in range(seeds)
        )
        / seeds
        for runs in (1, 3, 8)
    }


def one_case(rng: np.random.Generator, series: int, *, ratio: float, runs: int) -> float:
    """Return the share of single cases with a CV of 3% in which a step is confirmed."""
    confirmed = 0
    for _ in range(series):
        values = KINDS["independent"](rng, BEFORE + runs, 0.03)
        confirmed += bool(
            judged(with_step(values, BEFORE, ratio)[None], runs, [{}]).q_values[0] <= CASE_LEVEL
        )
    return confirmed / series


def null_confirmed(rng: np.random.Generator, series: int) -> Mapping[str, float]:
    """Return kind of noise -> share of single cases confirmed at an upgrade without effect."""
    each = max(1, series // len(KINDS))
    return {
        kind: sum(
            bool(judged(noise(rng, BEFORE + 5, 0.03)[None], 5, [{}]).q_values[0] <= CASE_LEVEL)
            for _ in range(each)
        )
        / each
        for kind, noise in KINDS.items()
    }
