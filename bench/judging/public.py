"""Reported changes in published histories, compared with the steps that two readings agree on.

`detection.py --public FOLDER` reads FOLDER/histories.json of `convert.py`, and FOLDER/labels.json:
name of a history -> two lists of first runs, one per reading of its picture. A step is at least 3%
and twice the scatter of its runs, and lasts eight runs. Neither file is part of this repository.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from judging import rivals
from judging.labelled import History, agreed
from judging.sampling import Row, Setup, share_row
from testing.answers import ask
from testing.noise import Series

LEAST: Final = 0.03
"""Smallest step that was marked: smaller reported changes are neither right nor wrong."""
SCATTERS: Final = 2.0
"""Size of a clear step, in standard deviations of the runs around it."""
REACH: Final = 40
"""Runs on each side of a step, up to the next ones, that measure it."""
SIDE: Final = 15
"""Runs on each side of a reported change whose medians are its size."""


@dataclass(frozen=True, slots=True)
class Published:
    """A history with the steps of both readings, and of one only."""

    history: History
    disputed: tuple[int, ...]

    @property
    def project(self) -> str:
        """Where it is from: histories of a project share machines, and so steps."""
        return self.history.name.partition("__")[0]


def read(folder: Path) -> list[Published]:
    """Return the histories of a folder; positive is better."""
    entries = json.loads((folder / "histories.json").read_text("utf-8"))
    marks = json.loads((folder / "labels.json").read_text("utf-8"))
    return [_published(name, entry, marks[name]) for name, entry in entries.items()]


def _published(
    name: str, entry: Mapping[str, Sequence[float]], marks: Sequence[Sequence[int]]
) -> Published:
    sign = 1 if entry["higher_is_better"] else -1
    logs = sign * np.log(np.array(entry["values"], dtype=float))
    labels = tuple(agreed(marks, len(marks)))
    # Runs of the same second are a second apart, so that a reported time means one run.
    place = np.arange(len(logs), dtype=float)
    times = np.maximum.accumulate(np.array(entry["times"], dtype=float) - place) + place
    history = History(name, Series(times, logs - logs[0]), labels, quiet=not any(marks))
    single = [mark for reading in marks for mark in reading if not history.near(labels, mark)]
    return Published(history, tuple(single))


def reported(_: None, history: History) -> list[int]:
    """Return the first runs of the changes that `judge` reports."""
    times = history.series.times.tolist()
    return [change.index(times) for change in ask(history.series).changes]


def _pelt(setting: rivals.PeltSetting, history: History) -> list[int]:
    return rivals.pelt(history.series.logs, setting)


def _otava(setting: tuple[float, float], history: History) -> list[int]:
    return rivals.otava(history.series, p_value=setting[0], size=setting[1])


METHODS: Final[tuple[tuple[str, Callable[..., list[int]], object], ...]] = (
    ("`judge`", reported, None),
    ("PELT 14/20", _pelt, rivals.ONLINE[0]),
    ("PELT 10/40", _pelt, rivals.ONLINE[1]),
    ("otava, p ≤ 1e-6, ≥ 3%", _otava, (1e-6, 0.03)),
    ("otava, defaults", _otava, rivals.OTAVA_DEFAULT),
)
"""Rivals with settings that suit the labelled histories of the repository."""


@dataclass(slots=True)
class Counts:
    """What a method reported: places that are right, wrong, and steps that it missed."""

    right: int = 0
    wrong: int = 0
    found: int = 0
    missed: int = 0
    clear: list[bool] = field(default_factory=list)
    """Of each clear step: whether it was missed."""

    @property
    def steps(self) -> int:
        """All steps."""
        return self.found + self.missed

    def add(self, published: Published, places: Sequence[int]) -> None:
        """Count the places in one history."""
        history = published.history
        hit = sum(history.near(places, label) for label in history.labels)
        self.found += hit
        self.missed += len(history.labels) - hit
        clear = [label for label in history.labels if is_clear(history, label)]
        self.clear += [not history.near(places, label) for label in clear]
        for place in places:
            if history.near(history.labels, place):
                self.right += 1
            elif not history.near(published.disputed, place) and size_at(history, place) >= LEAST:
                self.wrong += 1


def is_clear(history: History, label: int) -> bool:
    """Return whether a step is as large as its readers were asked for, also by number."""
    logs, labels = history.series.logs, history.labels
    begin = max([0, label - REACH, *(other for other in labels if other < label)])
    end = min([len(logs), label + REACH, *(other for other in labels if other > label)])
    before, after = logs[begin:label], logs[label:end]
    apart = abs(float(np.median(after) - np.median(before)))
    rest = np.concatenate([before - np.median(before), after - np.median(after)])
    return apart >= max(LEAST, SCATTERS * 1.4826 * float(np.median(np.abs(rest))))


def size_at(history: History, place: int) -> float:
    """Return the size of the step at a run."""
    logs = history.series.logs
    before, after = logs[max(0, place - SIDE) : place], logs[place : place + SIDE]
    return abs(float(np.median(after) - np.median(before))) if len(before) else 0.0


def public_rows(setup: Setup) -> Iterator[Row]:
    """Yield missed steps and false reports in published histories, also of other methods."""
    if setup.public is None:
        yield Row("published histories", "NOT MEASURED: no --public FOLDER")
        return
    histories = read(setup.public)
    steps = sum(len(entry.history.labels) for entry in histories)
    disputed = sum(len(entry.disputed) for entry in histories)
    projects = len({entry.project for entry in histories})
    name = f"{len(histories)} histories of {projects} projects"
    yield Row(name, f"{steps} steps, {disputed} disputed")
    for method, work, setting in METHODS[:1] if rivals.install() else METHODS:
        places = setup.over(partial(work, setting), [entry.history for entry in histories])
        yield from _rows(method, histories, places)


def _rows(
    method: str, histories: Sequence[Published], places: Sequence[Sequence[int]]
) -> Iterator[Row]:
    total = Counts()
    of_project = dict[str, Counts]()
    for entry, reports in zip(histories, places, strict=True):
        total.add(entry, reports)
        of_project.setdefault(entry.project, Counts()).add(entry, reports)
    missed = [True] * total.missed + [False] * total.found
    right = [True] * total.right + [False] * total.wrong
    ours = method == METHODS[0][0]
    yield share_row(f"{method}: steps missed", missed, most=0.2 if ours else None)
    name = f"{method}: missed, of those that measure 3% and {SCATTERS:g} scatters"
    yield share_row(name, total.clear)
    yield share_row(f"{method}: reports at a step", right, least=0.95 if ours else None)
    shares = [counts.missed / counts.steps for counts in of_project.values() if counts.steps]
    yield Row(f"{method}: steps missed, mean of the projects", f"{np.mean(shares):.1%}")
