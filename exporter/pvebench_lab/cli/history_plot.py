"""A judged history as a picture: runs, level of each segment, and the state of each step."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

from pvebench.analysis.case_history import CaseStep
from pvebench.analysis.verdict import Verdict
from pvebench.model.run import Unit
from pvebench.model.units import count_text
from pvebench.sanitize import one_line
from pvebench.verdicts.change_text import change_text
from pvebench.verdicts.overall_state import verdict_row
from pvebench.web.views.charts import axis_values

MAX_CHARTS, MAX_STEPS, MAX_TEXT = 20, 12, 130
"""Limits: charts, numbered steps of each (open ones, then the latest), characters of a line."""
WIDTH, LEFT, RIGHT, TOP, BOTTOM, ROW = 960, 76, 944, 88, 288, 20
"""Pixels: of a chart, the sides of its plotted area, and a line of text."""
OUTER, LEAST_RANGE, COLUMNS = 0.01, 0.02, 58
"""Share of runs on each side that may lie beyond an axis, as outliers; its minimum height as a
share of the level, so that noise does not look large; characters of a sparkline."""
STYLE: Final = """\
text{font:12px system-ui,sans-serif;fill:#222}.name{font-size:14px;font-weight:600}
.end{text-anchor:end}.dim{fill:#666}.back{fill:#fff}.grid{stroke:#ddd}path{fill:none}
.all{stroke:#c3d3e6}.run{stroke:#6f94bf;stroke-width:2.6;stroke-linecap:round}
.level{stroke:#123f75;stroke-width:2.4}.base{stroke:#777;stroke-dasharray:2 4}
.worse{color:#c62828}.better{color:#1b7f3b}.closed{color:#666}.ignored{color:#9a6700}
line{stroke:currentColor}line.ignored{stroke-dasharray:4 4}circle{fill:currentColor}
text.number{fill:#fff;font-size:10px;
text-anchor:middle}@media(prefers-color-scheme:dark){text{fill:#e6e6e6}.dim{fill:#a0a0a0}
.back{fill:#16191d}.grid{stroke:#33383e}.all{stroke:#2b4361}.run{stroke:#5d86b5}
.level{stroke:#cfe3ff}.worse{color:#e05252}.better{color:#2e9e54}.closed{color:#858585}}"""


class Mark(NamedTuple):
    """A step with its state in words, and the class of its line."""

    step: CaseStep
    text: str
    look: str


def marks_of(verdict: Verdict) -> list[Mark]:
    """Return all detected steps with their states, oldest first."""
    counted = (*verdict.steps, verdict.creep) if verdict.creep else verdict.steps
    marks = [Mark(step, *_state(step)) for step in counted]
    marks += [Mark(step, f"not counted: {reason}", "ignored") for step, reason in verdict.dropped]
    return sorted(marks, key=lambda mark: mark.step.time)


def _state(step: CaseStep) -> tuple[str, str]:
    if step.accepted:
        return "accepted", "closed"
    if step.lasts:
        part = f", {step.share:.0%} of the runs after it" if step.share < 1 else ""
        return f"open{', gradual' * step.slow}{part}", "worse" if step.effect < 0 else "better"
    if step.mode:
        return "not counted: a usual level of this case", "ignored"
    if step.back:
        return "closed: back at the baseline", "closed"
    ended = "the present level no longer shows it"
    return f"closed: {ended if step.end is None else f'taken back {_day(step.end)}'}", "closed"


def _day(time: float, form: str = "%Y-%m-%d") -> str:
    return f"{datetime.fromtimestamp(time, UTC):{form}}"


def _limits(values: Sequence[float], levels: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that shows all levels, and the runs but for outliers."""
    ordered, outer = sorted(values), int(OUTER * len(values))
    low, high = min(ordered[outer], *levels), max(ordered[-1 - outer], *levels)
    more = max(0.05 * (high - low), (LEAST_RANGE * high - (high - low)) / 2)
    return low - more, high + more


def sparkline(verdict: Verdict) -> Iterator[str]:
    """Yield a line of blocks, and one with the positions of open steps if there are any."""
    history, runs = verdict.history, len(verdict.history.points)
    count = min(COLUMNS, runs)
    if count < 2:
        return
    borders = [place * runs // count for place in range(count + 1)]
    bins = [statistics.median(history.points.values[a:b]) for a, b in pairwise(borders)]
    low, high = _limits(bins, bins)
    yield "  " + "".join("▁▂▃▄▅▆▇█"[int(8 * (value - low) / (high - low))] for value in bins)
    opened = [m.step.time for m in marks_of(verdict) if m.look in {"worse", "better"}]
    places = {sum(border <= history.split(time) for border in borders[1:-1]) for time in opened}
    if places:
        line = "".join("^" if place in places else " " for place in range(max(places) + 1))
        yield f"  {'open ':>{min(places)}}{line.lstrip()}" if min(places) > 4 else f"  {line} open"


def plot(verdicts: Sequence[Verdict]) -> bytes:
    """Return an SVG file with a chart per metric, one below the other."""
    charts, top = [], 0
    for verdict in [verdict for verdict in verdicts if verdict.history.points][:MAX_CHARTS]:
        chart = _Chart(verdict)
        charts.append(f'<g transform="translate(0 {top})">{"".join(chart.draw())}</g>')
        top += chart.height
    if more := len(verdicts) - len(charts):
        names = ", ".join(verdict.history.name for verdict in verdicts[-more:])
        charts.append(_text(LEFT, top + ROW, f"{count_text(more, 'more metric')}: {names}", "dim"))
        top += 2 * ROW
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}"'
    back = '<rect class="back" width="100%" height="100%"/>'
    parts = [f'{head} viewBox="0 0 {WIDTH} {top}"><style>{STYLE}</style>{back}', *charts, "</svg>"]
    return "\n".join(parts).encode()


def _text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text class="{look}" x="{x}" y="{y}">{escape(one_line(text, MAX_TEXT))}</text>'


def _line(look: str, x: tuple[float, float], y: tuple[float, float]) -> str:
    return f'<line class="{look}" x1="{x[0]}" x2="{x[1]}" y1="{y[0]}" y2="{y[1]}"/>'


class _Chart:
    """Chart of one metric; `height` in pixels."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict, self._points, marks = verdict, verdict.history.points, marks_of(verdict)
        order = sorted(marks, key=lambda m: (m.look in {"closed", "ignored"}, -m.step.time))
        self._marks = sorted(order[:MAX_STEPS], key=lambda mark: mark.step.time)
        self._rest = Counter(mark.text for mark in order[MAX_STEPS:])
        self.height = BOTTOM + (3 + len(self._marks) + bool(self._rest)) * ROW
        dropped = {step.time for step, _ in verdict.dropped}
        self._levels = list(self._segments([m.step for m in marks if m.step.time not in dropped]))
        levels = [level for _, _, *ends in self._levels for level in ends]
        levels.append(verdict.baseline or levels[0])
        self._low, self._high = _limits(self._points.values, levels)

    def _segments(self, steps: Sequence[CaseStep]) -> Iterator[tuple[float, float, float, float]]:
        """Yield begin, end, first and last level of each; the levels differ if it is gradual."""
        times, values = self._points.times, self._points.values
        borders = [0, *(self._verdict.history.split(step.time) for step in steps), len(values)]
        for (begin, end), slow in zip(
            pairwise(borders), [False, *(s.slow for s in steps)], strict=True
        ):
            if begin < end:
                part = max(1, (end - begin) // 8) if slow else end - begin
                first = statistics.median(values[begin : begin + part])
                last = statistics.median(values[end - part : end])
                yield times[begin], times[min(end, len(times) - 1)], first, last

    def _x(self, time: float) -> float:
        first, last = self._points.times[0], self._points.times[-1]
        return round(LEFT + (time - first) / max(1e-9, last - first) * (RIGHT - LEFT), 1)

    def _y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return round(BOTTOM - min(1.0, max(0.0, share)) * (BOTTOM - TOP), 1)

    def draw(self) -> Iterator[str]:
        """Yield the elements."""
        direction, metric, word, ratio, interval, _ = verdict_row(self._verdict)
        size = f", {ratio} ({interval})" if ratio else ""
        beyond = sum(not self._low <= value <= self._high for value in self._points.values)
        runs = f"{len(self._points)}{f', {beyond} beyond the axis' if beyond else ''}"
        yield _text(LEFT, 24, self._verdict.history.name[:80], "name")
        yield _text(LEFT, 42, f"{direction} {metric}: {word}{size}, runs: {runs}", "dim")
        yield from self._axes()
        yield from self._runs()
        for begin, end, first, last in self._levels:
            yield _line("level", (self._x(begin), self._x(end)), (self._y(first), self._y(last)))
        yield from self._steps()

    def _axes(self) -> Iterator[str]:
        step = axis_values(self._high - self._low, Unit.IOPS)[1]
        for number in range(math.ceil(self._low / step), math.floor(self._high / step) + 1):
            y = self._y(number * step)
            yield _line("grid", (LEFT, RIGHT), (y, y))
            yield _text(LEFT - 8, y + 4, f"{number * step:.10g}", "dim end")
        if self._verdict.baseline is not None:
            yield _line("base", (LEFT, RIGHT), (self._y(self._verdict.baseline),) * 2)
        first, last = self._points.times[0], self._points.times[-1]
        for number in range(5):
            time, look = first + number / 4 * (last - first), "dim end" if number == 4 else "dim"
            text = _day(time, "%Y-%m-%d" if last - first > 4 * 86_400 else "%m-%d %H:%M")
            yield _text(LEFT + number / 4 * (RIGHT - LEFT), BOTTOM + ROW, text, look)

    def _runs(self) -> Iterator[str]:
        """Yield the range and the median of the runs in each column of pixels."""
        columns: dict[int, list[float]] = {}
        for time, value in zip(self._points.times, self._points.values, strict=True):
            columns.setdefault(round(self._x(time)), []).append(self._y(value))
        bars = "".join(f"M{x} {max(ys)}V{min(ys)}" for x, ys in columns.items())
        dots = "".join(f"M{x} {statistics.median_low(ys)}h0" for x, ys in columns.items())
        yield f'<path class="all" d="{bars}"/><path class="run" d="{dots}"/>'

    def _steps(self) -> Iterator[str]:
        """Yield the marks of the steps, and their list below the chart."""
        rows, y = [-math.inf, -math.inf], BOTTOM + 2 * ROW
        for number, (step, state, look) in enumerate(self._marks, start=1):
            x = self._x(step.time)
            row = 0 if x - rows[0] > ROW else 1
            rows[row], top = x, TOP - 10 - row * 18
            yield _line(look, (x, x), (top, BOTTOM))
            for at in ((x, top), (LEFT + 8, y)):
                yield f'<circle class="{look}" cx="{at[0]}" cy="{at[1]}" r="8"/>'
                yield _text(at[0], at[1] + 3.5, str(number), "number")
            text = change_text(step.effect, self._verdict.history.figure)
            yield _text(LEFT + 24, y + 4, f"{_day(step.time)}: {text}; {state}")
            y += ROW
        if self._rest:
            states = "; ".join(f"{count} {state}" for state, count in self._rest.most_common())
            text = f"{count_text(self._rest.total(), 'more step')}: {states}"
            yield _text(LEFT + 24, y + 4, text, "dim")
