"""The result tables of one storage: bus × cache of each workload, further options as rows. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pvebench.analysis.verdict import Verdict
from pvebench.model.definition import Definition, further_options, option_words, workload_words
from pvebench.model.disk import Cache
from pvebench.model.run import Outcome, Unit
from pvebench.model.workload import Direction
from pvebench.report.charts import Spark, spark
from pvebench.report.text import iso, outcome_text, show_age, show_spread, show_value
from pvebench.store import CaseRecord, Point, StoredRun
from pvebench.store.current import MAIN_METRICS, PlannedCase, Trend, View, remembered
from pvebench.verdicts.headline import verdict_sign
from pvebench.verdicts.ranking import Exclusion, Place, Rank, Ranking, exclusion_of
from pvebench.verdicts.summary import Summary
from pvebench.verdicts.text import change_text
from pvebench.web.views.workers import case_url

# --- The main numbers of a case with their recent past, for a cell of a table. Pure.

SPREAD_RUNS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The main number of one direction, and its recent past.

    Attributes:
        metric: `iops` or `bandwidth`.
        value: of the last good run, in `unit`.
        spread: standard deviation / mean over the last runs; None below two runs.
        runs: how many runs the spread is of.
    """

    direction: Direction
    metric: str
    unit: Unit
    value: float
    text: str
    spread: float | None
    spread_text: str
    runs: int
    spark: Spark | None


def numbers_of(trend: Trend | None) -> tuple[Number, ...]:
    """Return the numbers of each direction; none where no run was good or none moves data."""
    return () if trend is None else _numbers(trend)


# A page of a thousand cases is made anew every few seconds.
@remembered
def _numbers(trend: Trend) -> tuple[Number, ...]:
    by_direction: dict[Direction, list[Point]] = {}
    for point in trend.points:
        by_direction.setdefault(point.direction, []).append(point)
    return tuple(_number(trend.metric, mine) for mine in by_direction.values())


def _number(metric: str, points: Sequence[Point]) -> Number:
    unit = MAIN_METRICS[metric]
    values = [point.value for point in points[-SPREAD_RUNS:]]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) / mean if len(values) > 1 and mean else None
    return Number(
        direction=points[-1].direction,
        metric=metric,
        unit=unit,
        value=values[-1],
        text=show_value(values[-1], unit),
        spread=spread,
        spread_text="" if spread is None else show_spread(spread),
        runs=len(values),
        spark=spark(points, unit),
    )


def figure_of(record: CaseRecord) -> str:
    """Return the main figure of a case that moves no data: its boot, or what an idle VM costs."""
    run: StoredRun | None = record.good
    found = {(one.metric, one.part): one for one in run.samples} if run else {}
    boots = record.definition.tool == "boot"
    sample = found.get(("boot_time", "") if boots else ("host_cpu", "qemu"))
    return "" if sample is None else show_value(sample.value, sample.unit)


STALE_INTERVALS: Final = 2.5
"""As in the alerts and dashboards: of two runs neither came."""
CACHES: Final = tuple(map(str, Cache))
"""From the safest to the least safe; others follow by name."""
MINUS: Final = "\N{MINUS SIGN}"
"""A hyphen is easily missed."""
APART_WORDS: Final = {
    Exclusion.NOT_DURABLE: ("!", "not durable"),
    Exclusion.WARM: ("~", "warm cache"),
    Exclusion.HOST: ("", "no VM"),
    Exclusion.LXC: ("", "no VM"),
}
"""Why a cell does not compete: sign and word."""


@dataclass(frozen=True, slots=True)
class Note:
    """A word beside a number, with the sign that goes before it, and where it leads.

    Attributes:
        soft: whether it only tells: nothing is wrong.
    """

    sign: str
    word: str
    url: str = ""
    good: bool = False
    soft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One case in a table.

    Attributes:
        absent: what to say instead of numbers.
        age: of the last good run; empty if there is none.
        against: how it compares with the fastest of its table; empty where it does not.
        best: whether it is that one, or as fast within noise.
    """

    url: str
    numbers: tuple[Number, ...]
    absent: str
    age: str
    finished: str
    notes: tuple[Note, ...]
    against: str = ""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A bus, the format and the further options that differ from their defaults."""

    bus: str
    options: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Bus × cache of one storage and workload.

    Attributes:
        title: the workload in plain words; `slug` is its own.
        found: which setting is the fastest, what the usual disk loses; empty without a result.
    """

    anchor: str
    title: str
    slug: str
    place: str
    found: str
    caches: tuple[str, ...]
    rows: tuple[Row, ...]


def shown_cases(content: View) -> dict[str, Definition]:
    """Return key -> definition: of the present packs, or of all results where no pack is known."""
    if content.planned:
        return {key: case.definition for key, case in content.planned.items()}
    return {key: content.cases[key].definition for key in content.current().values()}


def is_stale(planned: PlannedCase | None, state: CaseRecord, now: datetime) -> bool:
    """Return whether a case's last good run is older than two and a half of its intervals."""
    if planned is None or state.good is None:
        return False
    age = (now - state.good.finished).total_seconds()
    return age > STALE_INTERVALS * planned.every_seconds


def tables_view(
    content: View,
    shown: Mapping[str, Definition],
    now: datetime,
    changed: Mapping[str, Verdict],
    found: Sequence[Summary] = (),
) -> tuple[Table, ...]:
    """Return the tables of the shown cases, in a stable order.

    Args:
        changed: case key -> what is confirmed of it.
        found: what is said of each workload.
    """
    groups: dict[tuple[str, str, str], dict[str, Definition]] = {}
    for key, definition in shown.items():
        group = (definition.node, definition.storage, definition.workload)
        groups.setdefault(group, {})[key] = definition
    several = len({node for node, *_ in groups}) > 1
    said: dict[tuple[str, str, str], list[Summary]] = {}
    for one in found:
        contest = one.contest
        said.setdefault((contest.node, contest.storage, contest.workload), []).append(one)
    return tuple(
        _table(content, groups[group], now, changed, said.get(group, []), name_node=several)
        for group in sorted(groups, key=lambda one: _table_order(one, groups[one]))
    )


def _table_order(
    group: tuple[str, str, str], cases: Mapping[str, Definition]
) -> tuple[str, str, bool, str]:
    """By place; what moves no data comes last."""
    node, storage, workload = group
    return node, storage, not next(iter(cases.values())).directions, workload


def _table(
    content: View,
    cases: Mapping[str, Definition],
    now: datetime,
    changed: Mapping[str, Verdict],
    found: Sequence[Summary],
    *,
    name_node: bool,
) -> Table:
    first = next(iter(cases.values()))
    grid: dict[tuple[str, tuple[str, ...]], dict[str, Cell]] = {}
    for key, definition in cases.items():
        place, contest = _placed(key, found)
        cell = _cell(content, key, now, changed.get(key), _against(place, contest))
        options = (definition.format, *map(option_words, further_options(definition)))
        grid.setdefault((definition.bus, options), {})[definition.cache] = cell
    caches = sorted({cache for row in grid.values() for cache in row}, key=_cache_order)
    where = f"storage {first.storage}"
    named = f"{first.node}-{first.storage}-{first.workload}"
    return Table(
        anchor="table-" + re.sub(r"[^A-Za-z0-9]+", "-", named).lower(),
        title=workload_words(first),
        slug=first.workload,
        place=f"node {first.node}, {where}" if name_node else where,
        found=" ".join(one.text for one in found),
        caches=tuple(caches),
        rows=tuple(
            Row(bus, options, tuple(grid[bus, options].get(cache) for cache in caches))
            for bus, options in sorted(grid)
        ),
    )


def _cache_order(cache: str) -> tuple[int, str]:
    return (CACHES.index(cache) if cache in CACHES else len(CACHES), cache)


def _placed(key: str, found: Sequence[Summary]) -> tuple[Place | None, Ranking | None]:
    for one in found:
        place = one.contest.place(key)
        if place is not None:
            return place, one.contest
    return None, None


def _against(place: Place | None, contest: Ranking | None) -> tuple[str, bool]:
    """Return how a case compares with the fastest, and whether it is among the best."""
    if place is None or contest is None or place.exclusion:
        return "", False
    if place.rank is Rank.FASTEST:
        alone = len(contest.places) < 2
        known = all(one.rank is not Rank.UNKNOWN for one in contest.places[1:])
        return ("" if alone else "fastest" if known else "the most so far"), known and not alone
    gap = signed_percent(place.ratio)
    if place.rank is Rank.EQUAL:
        return f"{gap}, within noise", True
    return (gap if place.rank is Rank.SLOWER else f"{gap}, noise not known"), False


def signed_percent(ratio: float) -> str:
    """Return a ratio with its sign, always: minus 18 %, plus 2.3 %."""
    digits = 0 if abs(ratio) >= 0.0995 else 1
    return f"{100 * ratio:+.{digits}f} %".replace("-", MINUS)


def _cell(
    content: View, key: str, now: datetime, changed: Verdict | None, against: tuple[str, bool]
) -> Cell:
    state = content.cases.get(key)
    if state is None:
        return Cell(
            url=case_url(key), numbers=(), absent="not measured yet", age="", finished="", notes=()
        )
    notes = [] if changed is None else [_change(changed)]
    if state.last.outcome is not Outcome.OK:
        word = outcome_text(state.last.outcome)
        notes.append(Note("×", word, f"/runs/{state.last.number}"))
    definition = content.definition(key)
    if definition is not None and exclusion_of(definition):
        notes.append(Note(*APART_WORDS[exclusion_of(definition)], soft=definition.is_warm))
    if is_stale(content.planned.get(key), state, now):
        notes.append(Note("!", "stale"))
    good = state.good
    return Cell(
        url=case_url(key),
        numbers=numbers_of(content.trends.get(key)),
        absent=figure_of(state) or "no result",
        age="" if good is None else show_age((now - good.finished).total_seconds()),
        finished="" if good is None else iso(good.finished),
        notes=tuple(notes),
        against=against[0],
        best=against[1],
    )


def _change(verdict: Verdict) -> Note:
    sign = verdict_sign(verdict.state)
    text = change_text(verdict.effect, verdict.history.figure)
    return Note(sign, f"implausible: {text}" if sign == "!" else text, good=sign == "▲")
