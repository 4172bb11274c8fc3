"""What `pvebench judge` answers about histories: the function of the command, and its JSON."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np

from pvebench.analysis.case_history import CaseHistory, GoodRuns
from pvebench.analysis.judge import Judge, Material
from pvebench.model.run_metrics import JUDGED
from pvebench.verdicts.overall_state import exit_code, verdicts_data
from pvebench_lab.cli.judge import judged
from testing.fleets import Fleet
from testing.noise import Series

LEVEL: Final = 1000.0
"""Throughput whose logarithm is 0 in a series."""
PACKAGES: Final = ("9.0.2-5", "9.1.2-1", "9.2.0-2", "10.0.2-4")


@dataclass(frozen=True, slots=True)
class Moved:
    """One reported change of a throughput; ratios: positive is faster.

    Attributes:
        begin: Unix seconds.
        state: open, accepted or resolved.
        upgrade: whether an environment change is named as its cause.
        single: whether it is attributed to one environment change at most.
        group: labels that its cases share; None: its cases are only listed.
        cases: numbers of its cases.
    """

    begin: float
    ratio: float
    low: float
    high: float
    state: str
    slow: bool
    upgrade: bool
    single: bool
    group: Mapping[str, str] | None
    all_but: bool
    cases: frozenset[int]
    text: str

    @property
    def effect(self) -> float:
        """Its logarithm."""
        return float(np.log1p(self.ratio))

    def index(self, times: Sequence[float]) -> int:
        """Return its first run."""
        return bisect_left(times, self.begin)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a user gets: exit code 1 is red. `states`: verdict of each case, by its number."""

    red: bool
    headline: str
    changes: tuple[Moved, ...]
    states: Mapping[int, str]

    def worse(self) -> list[Moved]:
        """Return the reported regressions, also closed ones."""
        return [change for change in self.changes if change.ratio < 0]

    def blamed(self) -> list[Moved]:
        """Return the changes that are attributed to an environment change."""
        return [change for change in self.changes if change.upgrade]


def ask(series: Series, judge: Judge | None = None) -> Answer:
    """Return the answer about one history; `judge`: with what it remembers of earlier runs."""
    return answered(material([series], [{}]), judge)


def ask_latency(throughput: Series, latency: Series, since: int) -> bool:
    """Return whether a rise of a case's p99 latency is reported from run `since` on."""
    given = material([throughput], [{}])
    (first,) = given.histories
    rise = replace(material([latency], [{}]).histories[0], figure=JUDGED["latency_p99"])
    changes = judged(replace(given, histories=[first, rise]), Judge()).changes
    begin = latency.times[since]
    return any(
        move.figure.name == "latency_p99" and move.effect < 0 and change.begin >= begin
        for change in changes
        for move in change.moves
    )


def ask_node(fleet: Fleet, cycles: int | None = None) -> Answer:
    """Return the answer about a node after its first `cycles` cycles."""
    return answered(
        material([one.until(cycles or len(one.logs)) for one in fleet.series()], fleet.labels)
    )


def answered(given: Material, judge: Judge | None = None) -> Answer:
    """Return the answer to the material of a node."""
    verdicts = judged(given, judge or Judge())
    data = verdicts_data(verdicts)
    return Answer(
        red=exit_code(verdicts, strict=False) == 1,
        headline=data["headline"],
        changes=tuple(_moved(change) for change in data["changes"]),
        states={int(one["case_key"]): one["state"] for one in data["verdicts"]},
    )


def material(every: Sequence[Series], labels: Sequence[Mapping[str, str]]) -> Material:
    """Return what `judge` reads from a CSV file with these cases; and their labels."""
    histories = [
        _history(row, one, own) for row, (one, own) in enumerate(zip(every, labels, strict=True))
    ]
    timeline = sorted({(p.time, p.environment) for one in histories for p in one.points})
    facts = {name: {"qemu_package": PACKAGES[int(name)]} for _, name in timeline}
    return Material(node="", histories=histories, timeline=timeline, facts=facts)


def _history(row: int, series: Series, labels: Mapping[str, str]) -> CaseHistory:
    points = GoodRuns.of_columns(
        array("d", series.times.tolist()),
        list(series.environments) or ["0"] * len(series.times),
        array("d", (LEVEL * np.exp(series.logs)).tolist()),
    )
    return CaseHistory(
        case=str(row),
        of=str(row),
        name=str(row),
        figure=JUDGED["throughput"],
        labels=labels,
        points=points,
    )


def _moved(change: Mapping[str, Any]) -> Moved:
    first = change["moves"][0]
    return Moved(
        begin=datetime.fromisoformat(change["time"]).timestamp(),
        ratio=first["change_ratio"],
        low=first["low_ratio"],
        high=first["high_ratio"],
        state=change["state"],
        slow=change["slow"],
        upgrade=change["known_time"],
        single=change["separable"],
        group=change["shared"],
        all_but=change["all_but"],
        cases=frozenset(map(int, change["case_keys"])),
        text=change["text"],
    )
