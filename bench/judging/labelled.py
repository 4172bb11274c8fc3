"""Real histories with the labels of four or five people, compared with the reported changes.

See `sap-hana/README.md` for the data and its origin.
"""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from testing.noise import Series, Vector

DATA: Final = Path(__file__).parent / "sap-hana" / "series.json.gz"
MARGIN: Final = 5
"""Tolerance in runs between two people, or between a person and a method."""
FOLDS: Final = 5
Found = Mapping[str, Sequence[int]]
"""Name of a history -> first runs of the reported levels."""
BACK: Final = "back to an earlier level"
NEW: Final = "to a new level"


@dataclass(frozen=True, slots=True)
class History:
    """A labelled history. `labels`: agreed changes; `quiet`: most people marked none."""

    name: str
    series: Series
    labels: tuple[int, ...]
    quiet: bool

    @property
    def fold(self) -> int:
        """The fold that it belongs to: both parts of a divided history are in the same one."""
        whole, _, _ = self.name.partition("_split")
        return zlib.crc32(whole.encode()) % FOLDS

    def near(self, places: Sequence[int], label: int) -> bool:
        """Return whether one of the places is at a label."""
        return any(abs(place - label) <= MARGIN for place in places)


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
        """Reported changes per 1,000 runs of quiet histories."""
        return 1000 * self.alarms / max(1, self.quiet_runs)

    def add(self, history: History, reported: Sequence[int]) -> None:
        """Add the changes that a method reported in a history."""
        left, hit = list(reported), set[int]()
        for label in history.labels:
            near = [place for place in left if abs(place - label) <= MARGIN]
            if near:
                left.remove(min(near, key=lambda place: abs(place - label)))
                hit.add(label)
        self.true += len(hit)
        self.false += len(left)
        self.missed += len(history.labels) - len(hit)
        if history.quiet:
            self.alarms += len(reported)
            self.quiet_runs += len(history.series.logs)
        for label in history.labels:
            kind = kind_of(history.series.logs, label, history.labels)
            if kind:
                count = self.clear.get(kind, (0, 0))
                self.clear[kind] = count[0] + (label in hit), count[1] + 1


def read() -> list[History]:
    """Return all histories; their values are times, so less is better."""
    with gzip.open(DATA) as file:
        entries = json.load(file)
    return [_history(name, entry) for name, entry in entries.items()]


def _history(name: str, entry: Mapping[str, Sequence[float] | Sequence[Sequence[int]]]) -> History:
    marks: Sequence[Sequence[int]] = entry["labels"]  # type: ignore[assignment] # of the two, this is the latter
    need = min(3, (len(marks) + 1) // 2)
    logs = -np.log(np.array(entry["values"], dtype=float))
    labels = tuple(agreed(marks, need))
    quiet = not labels and sum(not own for own in marks) >= need
    # Runs of the same second are a second apart, so that a reported time means one run.
    own = np.arange(len(logs), dtype=float)
    times = np.maximum.accumulate(np.cumsum(np.array(entry["times"], dtype=float)) - own) + own
    return History(name, Series(times, logs - logs[0]), labels, quiet)


def score(histories: Sequence[History], found: Found) -> Score:
    """Return the score of what a method reported."""
    total = Score()
    for history in histories:
        total.add(history, found[history.name])
    return total


def cross_validated(histories: Sequence[History], settings: Mapping[str, Found]) -> Found:
    """Return what is reported with the setting that has the best F1 on the other folds."""
    found: dict[str, Sequence[int]] = {}
    for fold in range(FOLDS):
        best = best_of([one for one in histories if one.fold != fold], settings)
        found |= {one.name: settings[best][one.name] for one in histories if one.fold == fold}
    return found


def best_of(histories: Sequence[History], settings: Mapping[str, Found]) -> str:
    """Return the setting with the best F1."""
    return max(settings, key=lambda name: score(histories, settings[name]).f1)


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


def kind_of(logs: Vector, label: int, labels: Sequence[int]) -> str:
    """Return the kind of a clear label; empty: not clear.

    A clear change is at least 5% and three times the scatter before it.
    """
    before = max([0, *(other for other in labels if other < label)])
    after = min([len(logs), *(other for other in labels if other > label)])
    base = logs[max(before, label - 40) : label]
    now = logs[label : min(after, label + 40)]
    if label < 20 or min(len(base), len(now)) < 10:
        return ""
    level = np.median(base)
    size = abs(np.median(now) - level)
    if size < max(0.05, 3 * 1.4826 * np.median(np.abs(base - level))):
        return ""
    present = np.median(logs[label : label + 20])
    earlier = [np.median(logs[max(0, other - 20) : other]) for other in labels if other < label]
    back = any(abs(present - level) < 0.35 * size for level in earlier)
    return BACK if back else NEW
