"""Real histories with the labels of four or five people, compared with the reported changes.

See `sap-hana/README.md` for the data and its origin.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from judging.series import Vector

DATA: Final = Path(__file__).parent / "sap-hana" / "series.json.gz"
MARGIN: Final = 5
"""Tolerance in runs between two people, or between a person and a method."""
Method = Callable[[Vector], list[int]]
"""Logarithms, positive is better -> first runs of the reported levels."""


@dataclass(slots=True)
class Score:
    """Agreement of reported changes and labels; `clear` counts (detected, all) by kind."""

    true: int = 0
    false: int = 0
    missed: int = 0
    alarms: int = 0
    quiet_runs: int = 0
    clear: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.true / max(1, 2 * self.true + self.false + self.missed)

    @property
    def rate(self) -> float:
        """Reported changes per 1,000 runs of series in which most people marked none."""
        return 1000 * self.alarms / max(1, self.quiet_runs)


def score(method: Method) -> Score:
    """Return the score of a method on all series."""
    with gzip.open(DATA) as file:
        series = json.load(file)
    total = Score()
    for entry in series.values():
        values = -np.log(np.array(entry["values"]))
        _add(total, method(values), values, entry["labels"])
    return total


def agreed(marks: Sequence[Sequence[int]], need: int) -> list[int]:
    """Return the places that at least `need` people marked, within the margin of each other."""
    groups: list[list[int]] = []
    for place in sorted(place for own in marks for place in own):
        if sum(any(abs(place - mark) <= MARGIN for mark in own) for own in marks) < need:
            continue
        if groups and place - groups[-1][-1] <= MARGIN:
            groups[-1].append(place)
        else:
            groups.append([place])
    return [int(statistics.median(group)) for group in groups]


def _add(score: Score, reported: list[int], values: Vector, marks: Sequence[Sequence[int]]) -> None:
    need = min(3, (len(marks) + 1) // 2)
    labels = agreed(marks, need)
    left, hit = list(reported), set[int]()
    for label in labels:
        near = [place for place in left if abs(place - label) <= MARGIN]
        if near:
            left.remove(min(near, key=lambda place: abs(place - label)))
            hit.add(label)
    score.true += len(hit)
    score.false += len(left)
    score.missed += len(labels) - len(hit)
    if not labels and sum(not own for own in marks) >= need:
        score.alarms += len(reported)
        score.quiet_runs += len(values)
    for label in labels:
        kind = _kind(values, label, labels)
        if kind:
            count = score.clear.get(kind, (0, 0))
            score.clear[kind] = count[0] + (label in hit), count[1] + 1


def _kind(values: Vector, label: int, labels: Sequence[int]) -> str:
    """Return the kind of a clear label; empty: not clear.

    A clear change is at least 5% and three times the scatter before it.
    """
    before = max([0, *(other for other in labels if other < label)])
    after = min([len(values), *(other for other in labels if other > label)])
    base = values[max(before, label - 40) : label]
    now = values[label : min(after, label + 40)]
    if label < 20 or min(len(base), len(now)) < 10:
        return ""
    level = np.median(base)
    size = abs(np.median(now) - level)
    if size < max(0.05, 3 * 1.4826 * np.median(np.abs(base - level))):
        return ""
    present = np.median(values[label : label + 20])
    earlier = [np.median(values[max(0, other - 20) : other]) for other in labels if other < label]
    back = any(abs(present - level) < 0.35 * size for level in earlier)
    return "back to an earlier level" if back else "to a new level"
