"""Geometry of the SVG charts: sparklines, the history of a case, a year of a storage. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Final

from pvebench.analysis.case_history import GoodRun
from pvebench.analysis.change import Change
from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.run import Unit
from pvebench.model.units import DAY, MIB, show_clock
from pvebench.report.value_text import show_value
from pvebench.store.live_results import View
from pvebench.store.records import Point
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.ranking import Ranking
from pvebench.web.views import case_url

# --- sparklines and the history of a case ---

SPARK_WIDTH: Final = 80
SPARK_HEIGHT: Final = 20
MIN_RANGE: Final = 0.1
"""Minimum height of a sparkline as a share of the level, so that noise does not look large."""

LINE_HEIGHT: Final = 300
LINE_LEFT, LINE_RIGHT, LINE_TOP, LINE_BOTTOM = 90, 20, 24, 40
"""Margins of the large chart in pixels, for the axis labels."""


def spark(points: Sequence[Point], unit: Unit) -> SimpleNamespace | None:
    """Return the sparkline of one direction, and its last point; None: fewer than two points."""
    if len(points) < 2:
        return None
    values = [point.value for point in points]
    low, high = min(values), max(values)
    span = max(high - low, MIN_RANGE * abs(high)) or 1.0
    floor = (low + high - span) / 2
    step = (SPARK_WIDTH - 4) / (len(values) - 1)
    places = [
        (round(step * index, 1), round(2 + (SPARK_HEIGHT - 4) * (1 - (value - floor) / span), 1))
        for index, value in enumerate(values)
    ]
    return SimpleNamespace(
        points=_polyline(places),
        last_x=places[-1][0],
        last_y=places[-1][1],
        label=f"{len(values)} runs: {_range_text(values, unit)}",
    )


def chart(
    points: Sequence[Point], unit: Unit, *, changes: Sequence[tuple[datetime, str]] = ()
) -> SimpleNamespace | None:
    """Return the large chart of a case with an axis from zero; None: fewer than two runs.

    Args:
        points: oldest first, of all directions.
        changes: times of environment changes, and the changed facts.
    """
    if len({point.run for point in points}) < 2:
        return None
    start, end = points[0].finished, points[-1].finished
    values = axis_values(max(point.value for point in points), unit)
    axis = _Axis(
        start.timestamp(),
        end.timestamp(),
        values[-1],
        height=LINE_HEIGHT,
        margins=(LINE_LEFT, LINE_RIGHT, LINE_TOP, LINE_BOTTOM),
    )
    by_direction: dict[str, list[Point]] = {}
    for point in points:
        by_direction.setdefault(str(point.direction), []).append(point)
    lines = []
    for name, own in sorted(by_direction.items()):
        dots = tuple((axis.x(point.finished.timestamp()), axis.y(point.value)) for point in own)
        lines.append(SimpleNamespace(name=name, points=_polyline(dots), dots=dots))
    return SimpleNamespace(
        lines=lines,
        value_ticks=[_tick(axis.y(value), show_value(value, unit)) for value in values],
        time_ticks=[
            # Always with the date, because the range may span years.
            _tick(axis.x(moment.timestamp()), f"{moment:%Y-%m-%d %H:%M}")
            for moment in (start, start + (end - start) / 2, end)
        ],
        marks=[
            _mark(axis, number, moment, text)
            for number, (moment, text) in enumerate(changes, start=1)
        ],
        label=_chart_label(by_direction, unit, start, end),
    )


def _tick(at: float, text: str) -> SimpleNamespace:
    return SimpleNamespace(at=at, text=text)


def _mark(
    axis: _Axis, number: int, time: datetime, text: str, *, is_open: bool = False
) -> SimpleNamespace:
    """Return the mark of a change, with its number in the chart."""
    x = axis.x(time.timestamp())
    return SimpleNamespace(at=x, number=number, time=time, text=text, open=is_open)


def axis_values(highest: float, unit: Unit) -> list[float]:
    """Return round values from zero to at least `highest`, three to six of them."""
    factor = MIB if unit in (Unit.BYTES_PER_SECOND, Unit.BYTES) else 1
    minimum = (highest / factor or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(minimum))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= minimum)
    steps = math.ceil(highest / factor / step - 1e-9) or 1
    return [number * step * factor for number in range(steps + 1)]


def _chart_label(
    by_direction: dict[str, list[Point]], unit: Unit, start: datetime, end: datetime
) -> str:
    parts = (
        f"{name}: {_range_text([point.value for point in points], unit)}"
        for name, points in sorted(by_direction.items())
    )
    span = f"{show_clock(start, end)} to {show_clock(end, end)}"
    return f"Trend from {span}; {'; '.join(parts)}"


def _range_text(values: Sequence[float], unit: Unit) -> str:
    shown = (values[0], min(values), max(values), values[-1])
    first, lowest, highest, last = (show_value(value, unit) for value in shown)
    return f"first {first}, lowest {lowest}, highest {highest}, last {last}"


def _polyline(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)


# --- a year of a storage, with environment periods and changes ---

WIDTH: Final = 800
HEIGHT: Final = 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 22, 34
"""Margins in pixels, for the labels of the axes and the numbers of the changes."""
YEAR: Final = timedelta(days=366)
MAX_LINES: Final = 4
MAX_MARKS: Final = 12
"""Maximum number of marked changes, newest first; more would be illegible."""
MIN_TOP: Final = 1.2
"""Minimum end of the axis, as a ratio; a shorter axis would exaggerate noise."""
LOADS: Final = ("randread", "randwrite", "read", "write")
"""Workloads to draw for the default configuration."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Scale from time (Unix seconds) and value to pixels."""

    start: float
    end: float
    top: float
    height: int = HEIGHT
    margins: tuple[int, int, int, int] = (LEFT, RIGHT, TOP, BOTTOM)

    def x(self, time: float) -> float:
        left, right, *_ = self.margins
        share = (time - self.start) / max(1.0, self.end - self.start)
        return round(left + min(1.0, max(0.0, share)) * (WIDTH - left - right), 1)

    def y(self, value: float) -> float:
        *_, top, bottom = self.margins
        return round(self.height - bottom - value / self.top * (self.height - top - bottom), 1)


_Days = Sequence[tuple[float, float]]
"""(Unix seconds, ratio) per day, oldest first."""


def year_chart(
    content: View, verdicts: Verdicts, rankings: Iterable[Ranking], cases: Mapping[str, Definition]
) -> SimpleNamespace | None:
    """Return the chart of a storage; None while no case of it has two days or runs.

    Args:
        rankings: rankings of that storage.
        cases: key -> case of that storage.
    """
    changes = [change for change in verdicts.changes if set(change.cases) & cases.keys()]
    keys, title = _chosen(verdicts, rankings, cases)
    histories = {key: days for key in keys if len(days := _history(content, verdicts, key)) > 1}
    if not histories:
        return None
    end = max(days[-1][0] for days in histories.values())
    start = min(days[0][0] for days in histories.values())
    top = max(MIN_TOP, 1.05 * max(ratio for days in histories.values() for _, ratio in days))
    axis = _Axis(start, end, top)
    node = next(iter(cases.values())).node
    return SimpleNamespace(
        title=title,
        point="one day" if end - start >= 2 * DAY else "one run",
        label=_label(histories, cases, axis),
        lines=[
            SimpleNamespace(
                number=number,
                points=_polyline([(axis.x(time), axis.y(ratio)) for time, ratio in days]),
                text=_line_text(cases[key]),
                url=case_url(key),
            )
            for number, (key, days) in enumerate(histories.items(), start=1)
        ],
        bands=[*_bands([period for period in content.periods if period.node == node], axis)],
        marks=[*_marks(changes, axis)],
        value_ticks=[*_value_ticks(axis)],
        time_ticks=[*_time_ticks(axis)],
    )


def _chosen(
    verdicts: Verdicts, rankings: Iterable[Ranking], cases: Mapping[str, Definition]
) -> tuple[list[str], str]:
    """Return the cases to draw and their title: of the most important open change, else default."""
    for finding in verdicts.regressions:
        keys = [key for key in finding.cases if key in cases]
        if keys:
            return _one_per_workload(keys, cases), "Cases of the latest open change"
    default: dict[str, str] = {}
    for ranking in rankings:
        place = ranking.usual or ranking.fastest
        load = str(place.definition.parameters.get("rw", "")) if place else ""
        if place is not None and load in LOADS:
            default.setdefault(load, place.key)
    return [default[load] for load in LOADS if load in default], "Default configuration"


def _one_per_workload(keys: Sequence[str], cases: Mapping[str, Definition]) -> list[str]:
    by_workload: dict[str, str] = {}
    for key in keys:
        by_workload.setdefault(cases[key].workload, key)
    return list(by_workload.values())[:MAX_LINES]


def _line_text(definition: Definition) -> str:
    return f"{workload_text(definition)}: {configuration_text(definition)}"


def _history(content: View, verdicts: Verdicts, key: str) -> _Days:
    """Return a case's latest year per day, relative to its baseline (1).

    Before the first verdict: the latest runs, relative to their median.
    """
    verdict = next(
        (entry for entry in verdicts.of_case(key) if entry.history.figure.name == "throughput"),
        None,
    )
    if verdict is not None:
        points = verdict.history.points
        median = statistics.median([run.value for run in points] or [1.0])
        return _daily(points, verdict.baseline or median)
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


def _daily(runs: Sequence[GoodRun], level: float) -> _Days:
    """Return the median of each day; for less than two days of history, each run."""
    if not runs or level <= 0:
        return ()
    newest = [run for run in runs if run.time >= runs[-1].time - YEAR.total_seconds()]
    if newest[-1].time - newest[0].time < 2 * DAY:
        return [(run.time, run.value / level) for run in newest]
    days: dict[int, list[GoodRun]] = {}
    for run in newest:
        days.setdefault(int(run.time // DAY), []).append(run)
    return [
        (day[-1].time, statistics.median(run.value for run in day) / level) for day in days.values()
    ]


def _bands(periods: Sequence[EnvironmentPeriod], axis: _Axis) -> Iterator[SimpleNamespace]:
    """Yield the visible environment periods, each up to the start of the next one."""
    ends = [*(period.started.timestamp() for period in periods[1:]), axis.end]
    for index, (period, end) in enumerate(zip(periods, ends, strict=True)):
        begun = period.started.timestamp()
        if end <= axis.start or begun >= axis.end:
            continue
        x = axis.x(begun)
        before = periods[index - 1].facts if index else {}
        yield SimpleNamespace(
            x=x,
            width=round(axis.x(end) - x, 1),
            started=period.started,
            text=changed_facts(before, period.facts) if index else "first runs",
        )


def changed_facts(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the facts that differ from before, as text."""
    changed = [
        f"{name} {before.get(name, 'unknown')} → {after.get(name, 'unknown')}"
        for name in sorted({*before, *after} - {"environment", "node"})
        if before.get(name) != after.get(name)
    ]
    return ", ".join(changed) or "another environment"


def _marks(changes: Sequence[Change], axis: _Axis) -> Iterator[SimpleNamespace]:
    """Yield the visible changes, oldest first."""
    visible = [change for change in changes if change.begin >= axis.start]
    visible.sort(key=lambda change: change.begin)
    for number, change in enumerate(visible[-MAX_MARKS:], start=1):
        time, text = datetime.fromtimestamp(change.begin, UTC), sentence(change, evidence=False)
        yield _mark(axis, number, time, text, is_open=change.state == "open")


def _value_ticks(axis: _Axis) -> Iterator[SimpleNamespace]:
    step = 0.25 if axis.top < 2 else 0.5 if axis.top < 4 else round(axis.top / 5)
    count = int(axis.top / step)
    for number in range(count + 1):
        yield _tick(axis.y(number * step), f"{100 * number * step:.0f}%")


def _time_ticks(axis: _Axis) -> Iterator[SimpleNamespace]:
    form = "%Y-%m-%d" if axis.end - axis.start > 2 * DAY else "%m-%d %H:%M"
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        time = axis.start + share * (axis.end - axis.start)
        yield _tick(axis.x(time), f"{datetime.fromtimestamp(time, UTC):{form}}")


def _label(histories: Mapping[str, _Days], cases: Mapping[str, Definition], axis: _Axis) -> str:
    first, last = (f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d}" for t in (axis.start, axis.end))
    parts = [
        f"{_line_text(cases[key])}: last {100 * days[-1][1]:.0f}%"
        for key, days in histories.items()
    ]
    return f"From {first} to {last}, 100% is the baseline. {'; '.join(parts)}"
