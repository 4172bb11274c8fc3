"""Small runs of the cases of pack `quick`, by the day on which they started."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Case, Direction
from testing.packs import quick

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND, *_ = quick()[1].cases


def run(day: float, case: Case = FIRST, outcome: Outcome = Outcome.OK) -> Run:
    iops = Sample("iops", Direction.READ, 1000.0, Unit.IOPS)
    changes = {"uid": f"{case.slug} {day}", "cycle": "c", "outcome": outcome}
    return ended(case, START + timedelta(days=day), iops, **changes, evidence={"output": "{}"})


def ended(case: Case, at: datetime, *samples: Sample, **changes: Any) -> Run:
    """Return a run of 12 seconds that began at a time, with what differs from a successful one."""
    known = Run(
        uid=f"{case.key} {at}",
        case=case,
        environment=Environment(node="lab", facts={"kernel": "6.8.12"}),
        cycle="c1",
        started=at,
        finished=at + timedelta(seconds=12),
        outcome=Outcome.OK,
        samples=samples,
    )
    return replace(known, **changes)
