"""Known time: what an upgrade did to a fleet, and to one case alone."""

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
    """Return what the last `runs` runs are found to have done."""
    return judge_fleet(known_shifts(values[:, :-runs], values[:, -runs:]), labels)


def raised(shift: FleetShift, runs: int) -> bool:
    """Tell whether anything at all would be told of the event."""
    single = runs >= LEAST_RUNS and bool((shift.q_values <= CASE_LEVEL).any())
    return bool(shift.groups) or single


def group_step(
    rng: np.random.Generator, seeds: int, *, ratio: float, runs: int
) -> tuple[float, float]:
    """Return the share of fleets where a step of one bus is raised, and where it is named."""
    labels = labels_144()
    members = [one["bus"] == "virtio" for one in labels]
    events = named = 0
    for _ in range(seeds):
        values = moved(fleet(rng, len(labels), BEFORE + runs), members, runs, ratio)
        found = judged(values, runs, labels)
        events += raised(found, runs)
        named += any(
            group.group == (("bus", "virtio"),) and not group.all_but for group in found.groups
        )
    return events / seeds, named / seeds


def shape(rng: np.random.Generator, seeds: int, *, what: str, ratio: float, runs: int) -> float:
    """Return how often a change of everything, one pair of labels, or one case is told rightly."""
    labels = labels_144()
    rows = {
        "all": [True] * len(labels),
        "pair": [one["bus"] == "virtio" and one["workload"] == "randwrite" for one in labels],
        "case": [index == 7 for index in range(len(labels))],
    }[what]
    right = 0
    for _ in range(seeds):
        found = judged(
            moved(fleet(rng, len(labels), BEFORE + runs), rows, runs, ratio), runs, labels
        )
        if what == "case":
            right += bool(found.q_values[7] <= CASE_LEVEL)
        else:
            wanted = () if what == "all" else (("bus", "virtio"), ("workload", "randwrite"))
            right += any(set(group.group) == set(wanted) for group in found.groups)
    return right / seeds


def false_events(rng: np.random.Generator, seeds: int) -> Mapping[int, float]:
    """Return runs after -> share of upgrades that changed nothing and are told of all the same."""
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
    """Return the share of single cases with a CV of 3 % in which a step is confirmed."""
    found = 0
    for _ in range(series):
        values = KINDS["independent"](rng, BEFORE + runs, 0.03)
        found += bool(
            judged(with_step(values, BEFORE, ratio)[None], runs, [{}]).q_values[0] <= CASE_LEVEL
        )
    return found / series


def null_confirmed(rng: np.random.Generator, series: int) -> Mapping[str, float]:
    """Return kind of noise -> share of single cases that an upgrade without effect confirms."""
    each = max(1, series // len(KINDS))
    return {
        kind: sum(
            bool(judged(noise(rng, BEFORE + 5, 0.03)[None], 5, [{}]).q_values[0] <= CASE_LEVEL)
            for _ in range(each)
        )
        / each
        for kind, noise in KINDS.items()
    }
