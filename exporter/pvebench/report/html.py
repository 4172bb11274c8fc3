"""The report: one HTML file without scripts or network access, in the order of the answer.

Findings and verdict come first, then the ranking of each workload with its noise, then the tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from pvebench import __version__
from pvebench.model.consistency import is_own_share
from pvebench.model.environment import FACT_NAMES
from pvebench.model.reference_series import ReferenceSeries
from pvebench.model.run import Outcome
from pvebench.model.units import count_text, show_bytes, show_latency, show_rate
from pvebench.report.table import CellValue, ResultRow, result_rows
from pvebench.store.live_results import Trend
from pvebench.store.records import StoredRun
from pvebench.verdicts.fastest_text import (
    after_cycles,
    gap_text,
    operation_lines,
    ranking_text,
    ranking_title,
    signed_percent,
)
from pvebench.verdicts.ranking import EMULATED, Rank, RankedCase, Ranking, levels_of, totals

# --- geometry of the SVG charts: bars of one workload, curves of a sweep ---

WIDTH: Final = 900
BAR, GAP, LABEL = 16, 6, 380
"""Height of a bar, gap between bars and width of the labels, in pixels."""
VALUE: Final = 110
CHART_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 80, 30, 20, 44


def bars(
    values: Sequence[tuple[str, float, bool]], show: Callable[[float], str]
) -> list[SimpleNamespace]:
    """Return a bar in pixels for each (name, value, doubtful); the largest value is longest."""
    longest = (WIDTH - LABEL - VALUE) / (max((value for _, value, _ in values), default=0.0) or 1.0)
    return [
        SimpleNamespace(
            name=name,
            y=GAP + index * (BAR + GAP),
            length=round(longest * value, 1),
            text=show(value),
            doubtful=doubtful,
        )
        for index, (name, value, doubtful) in enumerate(values)
    ]


Curve = tuple[str, Sequence[tuple[float, float, str]]]
"""A configuration in a sweep: (IOPS, seconds, label of the point), by increasing IOPS."""


def curves(lines: Sequence[Curve]) -> SimpleNamespace:
    """Return a chart of latency against IOPS with all lines, on two logarithmic axes."""
    places = [place for _, points in lines for place in points]
    x_axis = _LogAxis.around([x for x, _, _ in places], LEFT, WIDTH - RIGHT)
    y_axis = _LogAxis.around([y for _, y, _ in places], CHART_HEIGHT - BOTTOM, TOP)
    return SimpleNamespace(
        x_ticks=[(x_axis.at(value), f"{value:,.0f}") for value in x_axis.decades],
        y_ticks=[(y_axis.at(value), f"{value * 1000:g} ms") for value in y_axis.decades],
        curves=[
            (
                name,
                [(x_axis.at(x), y_axis.at(y), _dot(name, x, y, label)) for x, y, label in points],
            )
            for name, points in lines
        ],
    )


def _dot(name: str, iops: float, seconds: float, label: str) -> str:
    return f"{name}, {label}: {iops:,.0f} IOPS, {seconds * 1000:.3g} ms"


@dataclass(frozen=True, slots=True)
class _LogAxis:
    """A logarithmic axis over whole decades, between two pixels."""

    low: int
    high: int
    start: float
    end: float

    @staticmethod
    def around(values: Sequence[float], start: float, end: float) -> _LogAxis:
        logs = [math.log10(value) for value in values if value > 0] or [0.0]
        low = math.floor(min(logs))
        return _LogAxis(low, max(low + 1, math.ceil(max(logs))), start, end)

    def at(self, value: float) -> float:
        share = (math.log10(max(value, 1e-12)) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


# --- table in the style of CrystalDiskMark: four loads, read and write, in MB/s ---
#
# CrystalDiskMark shows the best of several passes. The median is added because the best of five is
# partly chance.

_NAME: Final = re.compile(r"(SEQ|RND)\w+ Q\d+T\d+\Z")
MEGABYTE: Final = 1_000_000
"""Unit of CrystalDiskMark: multiples of 1000."""


_SPEEDS: Final = ("read_best", "read_median", "write_best", "write_median")


def profile(rows: Iterable[ResultRow]) -> list[SimpleNamespace]:
    """Return the lines of the rows with titles such as `SEQ1M Q8T1`; None: not measured."""
    speeds: dict[tuple[str, str], dict[str, float]] = {}
    passes: dict[tuple[str, str], int] = {}
    for row in rows:
        title, direction = str(row["title"]), str(row["direction"])
        if not _NAME.match(title):
            continue
        key = (str(row["scenario"]), title)
        passes[key] = max(passes.get(key, 0), int(row["good_runs"] or 0))
        for which in ("best", "median"):
            speed = _speed(row, which)
            if speed is not None:
                speeds.setdefault(key, {})[f"{direction}_{which}"] = speed
    ordered = sorted(speeds, key=lambda key: (key[0], _rank(key[1])))
    return [
        SimpleNamespace(
            name=key[1],
            scenario=key[0],
            passes=passes[key],
            **{name: speeds[key].get(name) for name in _SPEEDS},
        )
        for key in ordered
    ]


def _speed(row: ResultRow, which: str) -> float | None:
    value, block = row[which], row["block_size_bytes"]
    if not isinstance(value, int | float) or not isinstance(block, int):
        return None
    return value * (block if row["best_metric"] == "iops" else 1) / MEGABYTE


def _rank(title: str) -> tuple[bool, int]:
    """Return the sort key of CrystalDiskMark: sequential first, then deep queues first."""
    depth = re.search(r"Q(\d+)T", title)
    return title.startswith("RND"), -int(depth[1]) if depth else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Subject of the report.

    Attributes:
        source: source of a pack that reproduces a published test; otherwise empty.
        environments: environments from the store.
        devices: `node/storage` -> its device in words.
        verdict: headline of the verdicts; empty: not judged.
        rankings: of each workload, which order bars and tables.
        trends: case key -> its newest runs, for the value that the ranking used.
        advice: (heading, sentences) for each storage and purpose.
    """

    title: str
    source: str
    node: str
    now: datetime
    simulated: bool
    environments: tuple[Mapping[str, Any], ...]
    devices: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    rankings: tuple[Ranking, ...] = ()
    trends: Mapping[str, Trend] = field(default_factory=dict)
    advice: tuple[tuple[str, tuple[str, ...]], ...] = ()


def report_html(
    subject: Subject,
    runs: Sequence[StoredRun],
    series: ReferenceSeries | None = None,
    relative_to: str = "",
) -> str:
    """Return the report as the text of an HTML file; all values are escaped.

    Args:
        relative_to: slug of the scenario to divide the others by; empty: none.
    """
    rows = [row for row in result_rows(runs, series, relative_to) if row.current]
    blocks = _blocks(rows, subject)
    environments = _environments(subject, runs)
    several = len({run.definition.node for run in runs}) > 1
    return _ENVIRONMENT.get_template("report.html").render(
        subject=subject,
        version=__version__,
        findings=[
            (ranking_title(ranking, name_node=several), ranking_text(ranking, after_cycles))
            for ranking in subject.rankings
        ],
        blocks=blocks,
        series=series,
        environments=environments,
        facts=FACT_NAMES,
        doubtful=[row for row in rows if not row.good],
        operations=operation_lines(
            (run for run in runs if run.outcome.good),
            [e["digest"] for e in environments if e["facts"].get("accel") == EMULATED],
        ),
        profile=profile(row for row in rows if row.good),
        sweeps=_sweeps(rows),
        cases=count_text(len({row["scenario"] for row in rows}), "configuration"),
        runs=count_text(len(runs), "run"),
        passes=any(row["passes"] for row in rows),
        relative_to=relative_to,
        network=_have(rows, "network_share_ratio"),
        trips=_have(rows, "network_round_trip_seconds"),
    )


def _environments(subject: Subject, runs: Sequence[StoredRun]) -> list[Mapping[str, Any]]:
    used = {run.environment for run in runs}
    return [entry for entry in subject.environments if entry["digest"] in used]


def _have(rows: Sequence[ResultRow], column: str) -> bool:
    return any(row[column] is not None for row in rows)


def _blocks(rows: Sequence[ResultRow], subject: Subject) -> list[SimpleNamespace]:
    grouped: dict[tuple[str, str], list[ResultRow]] = {}
    for row in rows:
        grouped.setdefault((str(row["workload"]), str(row["direction"])), []).append(row)
    places = {
        place.key: place
        for ranking in subject.rankings
        for place in (*ranking.places, *ranking.excluded)
    }
    return [
        _block(slug, direction, [_with_rank(row, places, subject.trends) for row in group])
        for (slug, direction), group in grouped.items()
    ]


def _with_rank(
    row: ResultRow, places: Mapping[str, RankedCase], trends: Mapping[str, Trend]
) -> SimpleNamespace:
    """Return a row with metric, value and number of runs that the ranking used, gap and order.

    Host cases come first, then the ranking, then what is not ranked.
    """
    place, trend = places.get(str(row["case"])), trends.get(str(row["case"]))
    metric = trend.metric if trend else str(row["best_metric"] or "iops")
    median = None if row["median"] is None else _number(row["median"])
    levels = (
        {str(direction): level for direction, level in levels_of(trend).items()} if trend else {}
    )
    value = levels.get(str(row["direction"]), median)
    ranked = place is not None and not place.exclusion
    order = (row["bus"] != "host", not ranked, -(value or 0.0))
    runs = len(totals(trend)) if trend and trend.points else int(_number(row["good_runs"]))
    return SimpleNamespace(
        row=row, metric=metric, value=value, runs=runs, gap=_gap(place), order=order
    )


def _gap(place: RankedCase | None) -> str:
    if place is None or not place.compared:
        return f"not ranked ({place.exclusion.replace('_', ' ')})" if place else "not ranked"
    if place.rank is Rank.FASTEST:
        return "highest"
    if not place.gap.known:
        return gap_text(place)
    low, high = signed_percent(place.gap.low), signed_percent(place.gap.high)
    return f"{gap_text(place)} ({low} to {high})"


def _block(slug: str, direction: str, rows: list[SimpleNamespace]) -> SimpleNamespace:
    """Return rows in the order of the ranking, and bars, of a workload in one direction."""
    rows = sorted(rows, key=lambda row: row.order)
    first = rows[0].row
    metric = next((row.metric for row in rows if row.value is not None), "iops")
    names = short_names([str(row.row["scenario"]) for row in rows])
    shown = [
        (name, row.value, row.row["outcome"] != Outcome.OK)
        for name, row in zip(names, rows, strict=True)
        if row.value is not None and row.metric == metric
    ]
    return SimpleNamespace(
        title=f"{first['title']}, {direction}" if direction else str(first["title"]),
        slug=slug,
        caveats=str(first["caveats"] or ""),
        rows=rows,
        bars=bars(shown, _iops if metric == "iops" else _rate),
    )


def short_names(slugs: Sequence[str]) -> list[str]:
    """Return the slugs without the options that all guests share; host cases have none."""
    split = [slug.split(".") for slug in slugs]
    options = [set(parts[4:]) for parts in split if parts[1] != "host"]
    shared = set.intersection(*options) if options else set()
    return [
        ".".join([*parts[:4], *(part for part in parts[4:] if part not in shared)])
        for parts in split
    ]


def _number(cell: CellValue) -> float:
    return float(cell) if isinstance(cell, int | float) else 0.0


def _sweeps(rows: Sequence[ResultRow]) -> list[Any]:
    """Return a chart of latency against IOPS for each pattern with several depths."""
    grouped: dict[str, dict[str, list[tuple[float, float, str]]]] = {}
    for row in rows:
        latency = row["latency_mean_seconds"]
        if row["tool"] != "fio" or latency is None or row["iops"] is None or not row.good:
            continue
        pattern = f"{row['rw']} {show_bytes(_number(row['block_size_bytes']))} {row['direction']}"
        point = (_number(row["iops"]), _number(latency), f"depth {row['io_depth']}")
        grouped.setdefault(pattern, {}).setdefault(str(row["scenario"]), []).append(point)
    sweeps = []
    for pattern, scenarios in grouped.items():
        lines = [(name, sorted(points)) for name, points in scenarios.items() if len(points) >= 3]
        if lines:
            sweeps.append((pattern, curves(lines)))
    return sweeps


def _or_dash(show: Callable[[float], str]) -> Callable[[CellValue], str]:
    return lambda value: "–" if value is None else show(_number(value))


_iops, _rate, _ratio = _or_dash("{:,.0f}".format), _or_dash(show_rate), _or_dash("{:.2f}".format)


def _share(value: CellValue) -> str:
    return _ratio(value if value is not None and is_own_share(_number(value)) else None)


def templates_of(package: str) -> Environment:
    """Return the templates of a package; they escape every value and reject undefined ones."""
    return Environment(
        loader=PackageLoader(package),
        # In all templates, because reasons, titles and evidence come from outside.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


_ENVIRONMENT = templates_of("pvebench.report")
_ENVIRONMENT.globals |= {
    name.lower(): globals()[name]
    for name in ("WIDTH", "BAR", "GAP", "LABEL", "CHART_HEIGHT", "LEFT", "RIGHT", "TOP", "BOTTOM")
}
_ENVIRONMENT.filters |= {
    "iops": _iops,
    "rate": _rate,
    "ms": _or_dash(show_latency),
    "ratio": _ratio,
    "share": _share,
    "by_metric": lambda value, metric: (_iops if metric == "iops" else _rate)(value),
}
