"""The cases of the packs as the pages want them."""

from __future__ import annotations

from pvebench.cli.choice import intervals_of
from pvebench.plan import Assignment
from pvebench.store import define
from pvebench.web import PlannedCase


def planned_cases(given: list[Assignment]) -> list[PlannedCase]:
    """Return every case of all packs once, as the pages want it."""
    intervals = intervals_of(given)
    cases = {case.key: case for assignment in given for case in assignment.matrix.cases}
    return [
        PlannedCase(key=key, definition=define(case), every_seconds=intervals[key])
        for key, case in cases.items()
    ]
