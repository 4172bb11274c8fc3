"""What the store gives back: plain values, already joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pvebench.model.run import Outcome, Sample
from pvebench.model.workload import Case, Direction

GOOD: Final = tuple(outcome for outcome in Outcome if outcome.good)
"""Outcomes whose numbers are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A finished run as stored.

    Attributes:
        number: the store's own number, for links.
        definition: labels, meaning and workload of the case when it ran (see `define`).
        environment: digest of the environment it ran in.
        pass_number: which run of its case in its cycle, from 1; 0: not known.
        samples: empty where the caller did not ask for them.
    """

    number: int
    uid: str
    case_key: str
    node: str
    scenario: str
    workload: str
    definition: Mapping[str, Any]
    cycle: str
    environment: str
    started: datetime
    finished: datetime
    outcome: Outcome
    reason: str
    pass_number: int = 0
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord:
    """What is known of one case: its last attempt, its last good run, its counts.

    Attributes:
        good: with samples; None if no run was ever good.
        outcomes: outcome -> how many runs ended so.
        failures_in_row: attempts since the last good run.
    """

    last: StoredRun
    good: StoredRun | None
    outcomes: Mapping[Outcome, int]
    failures_in_row: int


@dataclass(frozen=True, slots=True)
class Point:
    """One number of one good run, for trends.

    Attributes:
        run: its number.
        finished: UTC.
        environment: digest of the environment it ran in.
        value: in the metric's base unit.
    """

    run: int
    finished: datetime
    environment: str
    direction: Direction
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters of the whole history: (node, storage) -> bytes, pack tier -> cycles."""

    bytes: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    cycles: Mapping[tuple[str, str], int] = field(default_factory=dict)
    runs: int = 0


def define(case: Case) -> dict[str, Any]:
    """Return everything that a result needs to be understood without its pack."""
    workload = case.workload
    return {
        "labels": {**case.scenario.labels(), "workload": workload.slug},
        "scenario": case.scenario.meaning(),
        "workload": {
            "slug": workload.slug,
            "tool": workload.tool,
            "title": workload.title,
            "directions": [str(direction) for direction in workload.directions],
            "ramp_seconds": workload.ramp_seconds,
            "runtime_seconds": workload.runtime_seconds,
            "parameters": dict(workload.parameters),
            "caveats": [str(caveat) for caveat in workload.caveats],
        },
    }
