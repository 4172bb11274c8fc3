"""What is remembered between two judgings: little, and the same as judging from nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType

import numpy as np

from pvebench.analysis.case_history import CaseHistory, GoodRuns
from pvebench.analysis.judge import Judge, Material
from testing.histories import histories

KIB = 1024
UPGRADES = 18
CASES = [{"bus": bus, "rw": way} for bus in ("scsi", "virtio") for way in ("read", "write")]
SHARED = (type, FunctionType, ModuleType)
"""What Python has once for all objects."""


def upgraded(runs: int, *, upgrades: int = UPGRADES, moved: float = 1.1) -> Material:
    """Return histories in which every upgrade moves all on one bus, to and fro."""
    every = runs / upgrades

    def effect(labels: object, figure: str, run: int) -> float:
        hit = isinstance(labels, dict) and labels["bus"] == "scsi"
        return moved if hit and int(run / every) % 2 else 1.0

    found = [
        replace(one, points=_with_upgrades(one.points, every))
        for one in histories(effect, labels=CASES, runs=runs)
    ]
    return material_of(found)


def _with_upgrades(points: GoodRuns, every: float) -> GoodRuns:
    names = [f"e{int(run / every):02}" for run in range(len(points))]
    return GoodRuns.of_columns(points.times, names, points.values)


def material_of(found: Sequence[CaseHistory]) -> Material:
    timeline = sorted({(point.time, point.environment) for one in found for point in one.points})
    facts = {name: {"kernel": f"6.8.{name[1:]}"} for _, name in timeline}
    return Material(node="", histories=found, timeline=timeline, facts=facts)


def remembered(judge: Judge, given: Material) -> int:
    """Return the bytes that a judge keeps alive beside what it was given, a history."""
    known = {id(part) for one in given.histories for part in (one, one.points, one.figure)}
    return sum(map(sys.getsizeof, _reached(judge, known))) // len(given.histories)


def _reached(root: object, known: set[int]) -> Iterator[object]:
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) in known or isinstance(one, SHARED):
            continue
        known.add(id(one))
        yield one
        todo += gc.get_referents(one)


def test_what_is_remembered_of_a_history_is_small_after_years_of_upgrades() -> None:
    judge, given = Judge(), upgraded(3000)
    report = judge.judge(given)
    assert len(report.events) == UPGRADES - 1
    assert sum(len(one.steps) for one in report.verdicts) >= UPGRADES  # the upgrades were judged
    assert remembered(judge, given) < 50 * KIB


def test_what_is_remembered_does_not_grow_with_the_runs() -> None:
    sizes = []
    for runs in (1500, 3000):
        judge, given = Judge(), upgraded(runs)
        judge.judge(given)
        sizes.append(remembered(judge, given))
    assert sizes[1] < 1.1 * sizes[0]


def said(judge: Judge, given: Material) -> tuple[object, ...]:
    """Return all that a judge says; the histories themselves are another object each time."""
    report = judge.judge(given)
    verdicts = [replace(one, history=given.histories[0]) for one in report.verdicts]
    return (*verdicts, *report.findings, *report.levels)


def test_a_judge_that_remembers_says_the_same_as_one_that_does_not() -> None:
    whole, judge = upgraded(90, upgrades=3), Judge()
    states = set[str]()
    for end in range(50, 90):
        until = whole.histories[1].points.times[end]  # of a round, the first case alone has its run
        found = [one.before(until) for one in whole.histories]
        # A run of a day that is over comes late, after the next upgrade.
        late = found[0].points.chosen(np.delete(np.arange(len(found[0].points)), 40))
        found[0] = replace(found[0], points=late) if end < 70 else found[0]
        given = material_of(found)
        assert said(judge, given) == said(Judge(), given)
        states |= {one.state.value for one in judge.judge(given).verdicts}
    assert len(states) > 1
