"""Small runs of the cases of pack `quick`, by the day on which they started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Case, Direction
from testing.packs import quick

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND, *_ = quick()[1].cases


def run(day: float, case: Case = FIRST, outcome: Outcome = Outcome.OK) -> Run:
    at = START + timedelta(days=day)
    return Run(
        uid=f"{case.slug} {day}",
        case=case,
        environment=Environment(node="lab", facts={"kernel": "6.8.12"}),
        cycle="c",
        started=at,
        finished=at + timedelta(seconds=12),
        outcome=outcome,
        reason="",
        samples=(Sample("iops", Direction.READ, 1000.0, Unit.IOPS),),
        evidence={"output": "{}"},
    )
