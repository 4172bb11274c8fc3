"""Whole nodes, analyzed like those of a user: reported changes, and whether they persist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from judging.fleets import Labels, fleet, labels_144
from judging.series import KINDS, Vector
from pvebench.analysis.case_history import FIGURES, CaseHistory, CaseStep, GoodRun, GoodRuns
from pvebench.analysis.events import Event, came_with
from pvebench.analysis.judge import FigureSteps, Judge, Material, Memory, Moved, NodeReport
from pvebench.analysis.verdict import VerdictState

CV: Final = 0.03
HOUR: Final = 3600.0
DAY: Final = 86400.0
BEFORE: Final = 60
AFTER: Final = 60
OLD: Final = {"qemu_package": "9.1.2-1", "kernel": "6.8.12-4-pve"}
NEW: Final = {**OLD, "qemu_package": "9.2.0-2"}
MIXED: Final = ("independent", "AR(1)", "drift", "t3 tails", "spikes", "two modes")


def histories(
    values: Vector, labels: Sequence[Labels], times: Vector, upgrade: int
) -> list[CaseHistory]:
    """Return the rows of [cases, runs] as histories; from run `upgrade` on in environment 1.

    Each case runs some seconds after the previous one.
    """
    return [
        CaseHistory(
            case=str(row),
            of=str(row),
            name=str(row),
            figure=FIGURES["throughput"],
            labels=own,
            points=GoodRuns(
                GoodRun(float(time) + row, str(int(run >= upgrade)), 1000 * float(np.exp(value)))
                for run, (time, value) in enumerate(zip(times, values[row], strict=True))
            ),
        )
        for row, own in enumerate(labels)
    ]


def judged(cases: Sequence[CaseHistory], judge: Judge | None = None) -> NodeReport:
    """Return the report of a node with these histories."""
    timeline = sorted({(point.time, point.environment) for case in cases for point in case.points})
    facts = {"0": OLD, "1": NEW}
    material = Material(node="", histories=cases, timeline=timeline, facts=facts)
    return (judge or Judge()).judge(material)


class _Only(Memory):
    """Memory that scans only one case: the effect of an event on it needs no other scans."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self._case = case

    def scan(self, history: CaseHistory) -> Moved:
        return super().scan(history) if history.case == self._case else Moved((), None)


def lone(rng: np.random.Generator, fleets: int, ratio: float) -> float:
    """Return how often one of 144 cases that an upgrade slowed down is reported 60 runs later."""
    labels, right = labels_144(), 0
    for _ in range(fleets):
        values = fleet(rng, len(labels), BEFORE + AFTER)
        values[7] = rng.normal(0.0, CV, BEFORE + AFTER)
        values[7, BEFORE:] += np.log(ratio)
        cases = histories(values, labels, DAY * np.arange(BEFORE + AFTER), BEFORE)
        event = Event(time=cases[0].points[BEFORE].time, before=OLD, after=NEW)
        steps = FigureSteps(_Only("7"), "", cases, [event], strictness=1)
        verdict = steps.verdicts({}, "")[7]
        right += verdict.state is VerdictState.SLOWER
    return right / fleets


def withdrawn(rng: np.random.Generator, fleets: int) -> tuple[int, int]:
    """Return the number of reported changes of single cases, and of retracted ones.

    A fleet has eight cases with mixed noise: an upgrade slows two of them by 5% and 10%, a later
    event two others. A resolved change is not retracted.
    """
    reported = lost = 0
    for _ in range(fleets):
        kinds = rng.choice(MIXED, 8)
        values = np.array([KINDS[str(kind)](rng, BEFORE + AFTER, CV) for kind in kinds])
        for row, (begin, ratio) in enumerate(((0, 0.95), (0, 0.9), (20, 0.95), (20, 0.9))):
            values[row, BEFORE + begin :] += np.log(ratio)
        cases = histories(values, [{}] * 8, DAY * np.arange(BEFORE + AFTER), BEFORE)
        raised, last = _replayed(cases)
        reported += len(raised)
        lost += sum(not any(_same(change, step) for step in last) for change in raised)
    return reported, lost


Reported = tuple[str, float, bool]
"""Case, time, whether it is a regression."""


def _replayed(cases: Sequence[CaseHistory]) -> tuple[list[Reported], list[Reported]]:
    """Return all changes that were ever reported, and those at the end, for every second run."""
    judge, raised, reported = Judge(), list[Reported](), list[Reported]()
    for run in range(BEFORE + 1, BEFORE + AFTER + 1, 2):
        known = [replace(case, points=case.points[:run]) for case in cases]
        reported = [
            (verdict.history.case, step.time, step.effect < 0)
            for verdict in judged(known, judge).verdicts
            for step in verdict.steps
        ]
        raised += [new for new in reported if not any(_same(new, other) for other in raised)]
    return raised, reported


def _same(first: Reported, second: Reported) -> bool:
    return first[::2] == second[::2] and abs(first[1] - second[1]) < 10 * DAY


def _by_day(hours: Vector) -> Vector:
    """Return the effect of working hours: 20% slower from 8:00 to 18:00, none at weekends."""
    weekday = (hours // 24 - 4) % 7 < 5
    busy = (hours % 24 >= 8) & (hours % 24 < 18)
    return np.asarray(np.log(0.8) * (busy & weekday), dtype=float)


def _nights(_: np.random.Generator, count: int) -> Vector:
    return np.asarray(24.0 * (np.arange(count) // 2) + 1 + 2.0 * (np.arange(count) % 2))


def _weekends(_: np.random.Generator, count: int) -> Vector:
    # The epoch was a Thursday.
    runs = np.arange(count)
    return np.asarray(48 + 168.0 * (runs // 8) + 6.0 * (runs % 8))


def _mostly_nights(rng: np.random.Generator, count: int) -> Vector:
    """Return runs at night, and one in six at a random hour of the day."""
    hours = _nights(rng, count)
    return np.asarray(hours + (rng.random(count) < 1 / 6) * rng.uniform(0, 20, count))


UNEQUAL: Final[dict[str, Callable[[np.random.Generator, int], Vector]]] = {
    "nights": _nights,
    "weekends": _weekends,
    "mostly nights": _mostly_nights,
}


def unequal_hours(rng: np.random.Generator, fleets: int, before: str) -> float:
    """Return how often an upgrade without effect is reported, on a host that is slower by day.

    24 cases ran at other hours before it; five cycles on one working day follow.
    """
    false = 0
    labels = labels_144()[::6]
    for _ in range(fleets):
        early = np.sort(UNEQUAL[before](rng, BEFORE))
        start = 24 * (early[-1] // 24 + 1)
        start += 24 * next(day for day in range(3) if (start // 24 + day - 4) % 7 < 5)
        late = start + 9 + np.arange(5)
        hours = np.concatenate([early, late])
        values = fleet(rng, len(labels), len(hours)) + _by_day(hours)
        cases = histories(values, labels, hours * HOUR, BEFORE)
        false += any(change.known for change in judged(cases).findings)
    return false / fleets


def few_before(rng: np.random.Generator, fleets: int, before: int) -> tuple[float, int]:
    """Return how often a 20% change of one bus of three is named one cycle after an upgrade.

    Also return how many of the affected cases were unchanged in the three cycles after it.
    """
    labels, named, same = labels_144(), 0, 0
    hit = np.array([case["bus"] == "virtio" for case in labels])
    for _ in range(fleets):
        values = fleet(rng, len(labels), before + 3)
        values[hit, before:] += np.log(0.8)
        cases = histories(values, labels, DAY * np.arange(before + 3), before)
        for runs in (1, 3):
            known = [replace(case, points=case.points[: before + runs]) for case in cases]
            report = judged(known)
            groups = {change.group for change in report.findings}
            named += runs == 1 and (("bus", "virtio"),) in groups
            same += sum(
                verdict.state is VerdictState.UNCHANGED and hit[int(verdict.history.case)]
                for verdict in report.verdicts
            )
    return named / fleets, same


def close_events(
    rng: np.random.Generator, series: int, *, apart: int, ratio: float
) -> tuple[float, float]:
    """Return how often only the wrong one of two events is named, and how often both are."""
    wrong = both = 0
    times = (DAY * BEFORE, DAY * (BEFORE + apart))
    events = [
        Event(time=time, before={"qemu": str(number)}, after={"qemu": str(number + 1)})
        for number, time in enumerate(times)
    ]
    for _ in range(series):
        kind = str(rng.choice(MIXED))
        values, true = KINDS[kind](rng, BEFORE + AFTER, CV), int(rng.integers(2))
        values[BEFORE + true * apart :] += np.log(ratio)
        (history,) = histories(values[None], [{}], DAY * np.arange(BEFORE + AFTER), 10**6)
        step = CaseStep(
            time=times[0], known=True, effect=np.log(ratio), low=0, high=0, p_value=0, runs=AFTER
        )
        came = came_with([(history, step, [step])], events[0], events)
        both += len(came.events) > 1
        wrong += len(came.events) == 1 and came.events[0] is not events[true]
    return wrong / series, both / series
