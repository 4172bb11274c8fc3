"""A year of one storage in one picture: episodes as bands, changes as marks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pvebench.analysis.case_history import GoodRun
from pvebench.analysis.change import Change
from pvebench.analysis.verdict import Verdict
from pvebench.model.definition import Definition, setting_words, workload_words
from pvebench.model.environment import EnvironmentPeriod
from pvebench.report.charts import Tick
from pvebench.report.text import iso
from pvebench.store.current import View
from pvebench.verdicts import Verdicts
from pvebench.verdicts.ranking import Ranking
from pvebench.verdicts.text import sentence
from pvebench.web.views.workers import case_url

WIDTH: Final = 800
HEIGHT: Final = 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 22, 34
"""Margins: room for what is written beside the axes, and for the numbers of the changes."""
YEAR: Final = timedelta(days=366)
MOST_LINES: Final = 4
MOST_MARKS: Final = 12
"""Changes that are marked, the newest: more would be one smear."""
DAY: Final = 86400.0
LEAST_TOP: Final = 1.2
"""The axis ends at 120 % at least: noise must not look wild."""
LOADS: Final = ("randread", "randwrite", "read", "write")
"""What is drawn of the usual disk."""


@dataclass(frozen=True, slots=True)
class YearLine:
    """One case: its number in the legend, its points in the picture, what it is."""

    number: int
    points: str
    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Band:
    """One episode: where it begins, how wide it is, when it began, and what was new in it."""

    x: float
    width: float
    iso: str
    day: str
    text: str


@dataclass(frozen=True, slots=True)
class ChangeMark:
    """One change: where, its number in the picture, when, and what is said of it."""

    x: float
    number: int
    iso: str
    day: str
    text: str
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class YearChart:
    """The picture.

    Attributes:
        title: what the lines have in common; `point` is what each of their points is.
        label: the same for those who do not see it.
    """

    title: str
    point: str
    label: str
    lines: tuple[YearLine, ...]
    bands: tuple[Band, ...]
    marks: tuple[ChangeMark, ...]
    value_ticks: tuple[Tick, ...]
    time_ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where a moment (UNIX seconds) and a ratio lie in the picture."""

    start: float
    end: float
    top: float

    def x(self, time: float) -> float:
        share = (time - self.start) / max(1.0, self.end - self.start)
        return round(LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, ratio: float) -> float:
        return round(HEIGHT - BOTTOM - ratio / self.top * (HEIGHT - TOP - BOTTOM), 1)


_Days = Sequence[tuple[float, float]]
"""(UNIX seconds, ratio) a day, oldest first."""


def year_chart(
    content: View, verdicts: Verdicts, contests: Iterable[Ranking], cases: Mapping[str, Definition]
) -> YearChart | None:
    """Return the picture of a storage; None while no case of it has two days or runs.

    Args:
        contests: of that storage.
        cases: key -> case, of that storage.
    """
    changes = [one for one in verdicts.findings if set(one.cases) & cases.keys()]
    keys, title = _chosen(verdicts, contests, cases)
    histories = {key: days for key in keys if len(days := _history(content, verdicts, key)) > 1}
    if not histories:
        return None
    end = max(days[-1][0] for days in histories.values())
    start = min(days[0][0] for days in histories.values())
    top = max(LEAST_TOP, 1.05 * max(ratio for days in histories.values() for _, ratio in days))
    axis = _Axis(start, end, top)
    node = next(iter(cases.values())).node
    lines = tuple(
        YearLine(number, _points(days, axis), _line_text(cases[key]), case_url(key))
        for number, (key, days) in enumerate(histories.items(), start=1)
    )
    marks = tuple(_marks(changes, verdicts, axis))
    return YearChart(
        title=title,
        point="a day" if end - start >= 2 * DAY else "a run",
        label=_label(histories, cases, axis),
        lines=lines,
        bands=tuple(_bands([one for one in content.episodes if one.node == node], axis)),
        marks=marks,
        value_ticks=tuple(_value_ticks(axis)),
        time_ticks=tuple(_time_ticks(axis)),
    )


def _chosen(
    verdicts: Verdicts, contests: Iterable[Ranking], cases: Mapping[str, Definition]
) -> tuple[list[str], str]:
    """Return which cases are drawn: of the weightiest change, else the usual disk's."""
    for finding in verdicts.regressions:
        mine = [key for key in finding.cases if key in cases]
        if mine:
            return _one_a_workload(mine, cases), "What the newest open change moved"
    usual: dict[str, str] = {}
    for contest in contests:
        place = contest.usual or contest.fastest
        load = str(place.definition.parameters.get("rw", "")) if place else ""
        if place is not None and load in LOADS:
            usual.setdefault(load, place.key)
    return [usual[load] for load in LOADS if load in usual], "The usual disk"


def _one_a_workload(keys: Sequence[str], cases: Mapping[str, Definition]) -> list[str]:
    found: dict[str, str] = {}
    for key in keys:
        found.setdefault(cases[key].workload, key)
    return list(found.values())[:MOST_LINES]


def _line_text(definition: Definition) -> str:
    return f"{workload_words(definition)}: {setting_words(definition)}"


def _history(content: View, verdicts: Verdicts, key: str) -> _Days:
    """Return a case's newest year a day, 1 being the level that the present is compared with.

    Before anything was judged: the newest runs.
    """
    verdict = next(
        (one for one in verdicts.of_case(key) if one.history.figure.name == "throughput"), None
    )
    if verdict is not None:
        return _daily(verdict.history.points, _level(verdict))
    trend = content.trends.get(key)
    if trend is None or not trend.points:
        return ()
    first = trend.points[0].direction
    runs = [
        GoodRun(point.finished.timestamp(), point.environment, point.value)
        for point in trend.points
        if point.direction == first
    ]
    return _daily(runs, statistics.median(run.value for run in runs))


def _level(verdict: Verdict) -> float:
    points = verdict.history.points
    return verdict.baseline or statistics.median([run.value for run in points] or [1.0])


def _daily(runs: Sequence[GoodRun], level: float) -> _Days:
    """Return the median of each day; of a history of less than two days each run."""
    if not runs or level <= 0:
        return ()
    newest = [run for run in runs if run.time >= runs[-1].time - YEAR.total_seconds()]
    if newest[-1].time - newest[0].time < 2 * DAY:
        return [(run.time, run.value / level) for run in newest]
    days: dict[int, list[GoodRun]] = {}
    for run in newest:
        days.setdefault(int(run.time // DAY), []).append(run)
    return [
        (mine[-1].time, statistics.median(run.value for run in mine) / level)
        for mine in days.values()
    ]


def _points(days: _Days, axis: _Axis) -> str:
    return " ".join(f"{axis.x(time):g},{axis.y(ratio):g}" for time, ratio in days)


def _bands(episodes: Sequence[EnvironmentPeriod], axis: _Axis) -> Iterator[Band]:
    """Yield the episodes that the picture shows, each as far as the next one."""
    ends = [*(one.started.timestamp() for one in episodes[1:]), axis.end]
    for place, (episode, end) in enumerate(zip(episodes, ends, strict=True)):
        begun = episode.started.timestamp()
        if end <= axis.start or begun >= axis.end:
            continue
        x = axis.x(begun)
        before = episodes[place - 1].facts if place else {}
        yield Band(
            x=x,
            width=round(axis.x(end) - x, 1),
            iso=iso(episode.started),
            day=f"{episode.started:%Y-%m-%d}",
            text=_news(before, episode.facts) if place else "the first runs",
        )


def _news(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return which facts are others than before."""
    found = [
        f"{name} {after.get(name, 'unknown')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    return ", ".join(found) or "another environment"


def _marks(changes: Sequence[Change], verdicts: Verdicts, axis: _Axis) -> Iterator[ChangeMark]:
    """Yield the changes that the picture shows, oldest first."""
    standing = verdicts.open_findings
    shown = sorted((one for one in changes if one.time >= axis.start), key=lambda one: one.time)
    for number, finding in enumerate(shown[-MOST_MARKS:], start=1):
        at = datetime.fromtimestamp(finding.time, UTC)
        yield ChangeMark(
            x=axis.x(finding.time),
            number=number,
            iso=iso(at),
            day=f"{at:%Y-%m-%d}",
            text=sentence(finding, evidence=False),
            open=finding in standing,
        )


def _value_ticks(axis: _Axis) -> Iterator[Tick]:
    step = 0.25 if axis.top < 2 else 0.5 if axis.top < 4 else round(axis.top / 5)
    count = int(axis.top / step)
    for number in range(count + 1):
        yield Tick(axis.y(number * step), f"{100 * number * step:.0f} %")


def _time_ticks(axis: _Axis) -> Iterator[Tick]:
    form = "%Y-%m-%d" if axis.end - axis.start > 2 * DAY else "%m-%d %H:%M"
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        time = axis.start + share * (axis.end - axis.start)
        yield Tick(axis.x(time), f"{datetime.fromtimestamp(time, UTC):{form}}")


def _label(histories: Mapping[str, _Days], cases: Mapping[str, Definition], axis: _Axis) -> str:
    first, last = (f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d}" for t in (axis.start, axis.end))
    parts = [
        f"{_line_text(cases[key])}: last {100 * days[-1][1]:.0f} %"
        for key, days in histories.items()
    ]
    return f"From {first} to {last}, 100 % being the level compared with. {'; '.join(parts)}"
