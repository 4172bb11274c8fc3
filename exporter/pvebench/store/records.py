"""What the store gives back: plain values, already joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.run import Outcome, Run, Sample
from pvebench.model.workload import Direction

GOOD: Final = tuple(outcome for outcome in Outcome if outcome.good)
"""Outcomes whose numbers are published."""
Number = tuple[str, str, str]
"""Which of a run's: metric, direction or "", part."""
SUMMED: Final = frozenset({"clat_histogram"})
"""Metrics that are added up over all good runs of a case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A finished run as stored.

    Attributes:
        number: the store's own number, for links.
        definition: what its case means.
        environment: digest of the environment it ran in.
        pass_number: which run of its case in its cycle, from 1; 0: not known.
    """

    number: int
    uid: str
    case_key: str
    node: str
    scenario: str
    workload: str
    definition: Definition
    cycle: str
    environment: str
    started: datetime
    finished: datetime
    outcome: Outcome
    reason: str
    pass_number: int = 0
    samples: tuple[Sample, ...] = ()

    @classmethod
    def of(cls, run: Run, number: int) -> StoredRun:
        """Return a run as the store gives it back after it was stored under `number`."""
        definition = Definition.of(run.case)
        return cls(
            number=number,
            uid=run.uid,
            case_key=run.case.key,
            node=definition.node,
            scenario=definition.scenario,
            workload=definition.workload,
            definition=definition,
            cycle=run.cycle,
            environment=run.environment.digest,
            started=run.started,
            finished=run.finished,
            outcome=run.outcome,
            reason=run.reason,
            pass_number=run.pass_number,
            samples=tuple(sorted(run.samples, key=_place)),
        )


def _place(sample: Sample) -> tuple[str, str, str]:
    """Return where a sample stands among those of its run: the order of the table's key."""
    return sample.metric, str(sample.direction or ""), sample.part


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


Sums = Mapping[tuple[str, str, str], float]
"""(metric, direction or "", part) -> sum over all good runs."""


def summed(known: Sums, samples: Iterable[Sample]) -> Sums:
    """Return sums with those of one more good run, of what is counted over all runs."""
    more = dict(known)
    for sample in samples:
        if sample.metric in SUMMED:
            place = _place(sample)
            more[place] = more.get(place, 0.0) + sample.value
    return more


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord:
    """What is known of one case: its last attempt, its last good run, its counts.

    Attributes:
        good: None if no run was ever good.
        outcomes: outcome -> how many runs ended so, those included that were removed since.
        failures_in_row: attempts since the last good run.
        first_started: of its first run; what it means has not changed since.
        sums: of good runs, those included that were removed since.
    """

    last: StoredRun
    good: StoredRun | None
    outcomes: Mapping[Outcome, int]
    failures_in_row: int
    first_started: datetime
    sums: Sums = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Key of the case."""
        return self.last.case_key

    @property
    def definition(self) -> Definition:
        """What the case means."""
        return self.last.definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters of the whole history: (node, storage) -> bytes, pack tier -> cycles."""

    bytes: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    cycles: Mapping[tuple[str, str], int] = field(default_factory=dict)
    runs: int = 0
