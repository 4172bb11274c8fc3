"""Result tables of one storage: bus × cache per workload, further options as rows.

Free of side effects.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Final

from pvebench.analysis.verdict import Verdict
from pvebench.model import run_metrics
from pvebench.model.definition import Definition, further_options, option_description, workload_text
from pvebench.model.disk import Cache
from pvebench.model.run import Outcome, Unit
from pvebench.model.workload import Direction
from pvebench.report.value_text import iso, outcome_text, show_age, show_spread, show_value
from pvebench.store.live_results import MAIN_METRICS, PlannedCase, Trend, View, cached_by_trend
from pvebench.store.records import CaseRecord, StoredRun
from pvebench.verdicts.change_text import change_text
from pvebench.verdicts.fastest_text import NOT_COUNTED, When, gap_text, ranking_text
from pvebench.verdicts.overall_state import verdict_sign
from pvebench.verdicts.ranking import (
    Exclusion,
    Rank,
    RankedCase,
    Ranking,
    counted,
    emulated_in,
    exclusion_of,
    levels_of,
)
from pvebench.web.views import case_url
from pvebench.web.views.charts import spark

# --- Main numbers of a case with their recent history.


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """Main number of one direction, with its recent history.

    Attributes:
        metric: `iops` or `bandwidth`.
        value: the level of the ranking, in `unit`: the median of `runs` runs.
        spread: standard deviation / mean of these runs; None below two runs.
        last: value of the latest successful run as text; empty if it is the only one.
    """

    direction: Direction
    metric: str
    unit: Unit
    value: float
    text: str
    spread: float | None
    spread_text: str
    runs: int
    last: str
    spark: SimpleNamespace | None


def numbers_of(trend: Trend | None) -> tuple[Number, ...]:
    """Return the numbers per direction; none without successful runs or without data transfer."""
    return _numbers(trend) if trend is not None and trend.points else ()


# Cached: a page with a thousand cases is rendered every few seconds.
@cached_by_trend
def _numbers(trend: Trend) -> tuple[Number, ...]:
    return tuple(_number(trend, direction, level) for direction, level in levels_of(trend).items())


def _number(trend: Trend, direction: Direction, level: float) -> Number:
    unit = MAIN_METRICS[trend.metric]
    points = [point for point in trend.points if point.direction is direction]
    values = [point.value for point in counted(trend) if point.direction is direction]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) / mean if len(values) > 1 and mean else None
    return Number(
        direction=direction,
        metric=trend.metric,
        unit=unit,
        value=level,
        text=show_value(level, unit),
        spread=spread,
        spread_text="" if spread is None else show_spread(spread),
        runs=len(values),
        last=show_value(points[-1].value, unit) if len(points) > 1 else "",
        spark=spark(points, unit),
    )


def main_value(record: CaseRecord) -> str:
    """Return the main value of a case without data transfer: boot time, or CPU of an idle VM."""
    run: StoredRun | None = record.good
    samples = {(sample.metric, sample.part): sample for sample in run.samples} if run else {}
    boots = record.definition.tool == "boot"
    sample = samples.get(
        (run_metrics.BOOT_TIME.name, "") if boots else (run_metrics.HOST_CPU.name, "qemu")
    )
    return "" if sample is None else show_value(sample.value, sample.unit)


STALE_INTERVALS: Final = 2.5
"""Same limit as in alerts and dashboards: two runs are missing."""
CACHES: Final = tuple(map(str, Cache))
"""From the safest to the least safe; others follow in alphabetical order."""
_UNMEASURED: Final = {
    "numbers": (),
    "absent": "not measured yet",
    "age": "",
    "finished": "",
    "notes": (),
    "against": "",
    "best": False,
}
_SOFT: Final = (Exclusion.UNFLUSHED, Exclusion.WARM)


@dataclass(frozen=True, slots=True)
class Note:
    """Note of a cell: sign, text and link.

    Attributes:
        soft: whether it is informational only.
    """

    sign: str
    word: str
    url: str = ""
    good: bool = False
    soft: bool = False


def is_stale(planned: PlannedCase | None, state: CaseRecord, now: datetime) -> bool:
    """Return whether a case's latest successful run is older than 2.5 intervals."""
    if planned is None or state.good is None:
        return False
    age = (now - state.good.finished).total_seconds()
    return age > STALE_INTERVALS * planned.every_seconds


def tables_view(
    content: View,
    shown: Mapping[str, Definition],
    now: datetime,
    changed: Mapping[str, Verdict],
    rankings: Sequence[Ranking],
    when: When,
) -> list[SimpleNamespace]:
    """Return the tables of the shown cases, one per storage and workload, in a stable order.

    Args:
        changed: case key -> its confirmed change.
        rankings: of each workload.
        when: when further runs are expected.
    """
    groups: dict[tuple[str, str, str], dict[str, Definition]] = {}
    for key, definition in shown.items():
        group = (definition.node, definition.storage, definition.workload)
        groups.setdefault(group, {})[key] = definition
    several = len({node for node, *_ in groups}) > 1
    by_group: dict[tuple[str, str, str], list[Ranking]] = {}
    for ranking in rankings:
        group = (ranking.node, ranking.storage, ranking.workload)
        by_group.setdefault(group, []).append(ranking)

    def order(group: tuple[str, str, str]) -> tuple[str, str, bool, str]:
        node, storage, workload = group  # those without data transfer last
        return node, storage, not next(iter(groups[group].values())).directions, workload

    return [
        _table(
            content, groups[group], now, changed, by_group.get(group, []), when, name_node=several
        )
        for group in sorted(groups, key=order)
    ]


def _table(
    content: View,
    cases: Mapping[str, Definition],
    now: datetime,
    changed: Mapping[str, Verdict],
    rankings: Sequence[Ranking],
    when: When,
    *,
    name_node: bool,
) -> SimpleNamespace:
    """Return the table of a workload: bus, format and non-default options × cache."""
    first = next(iter(cases.values()))
    grid: dict[tuple[str, tuple[str, ...]], dict[str, SimpleNamespace]] = {}
    for key, definition in cases.items():
        place, ranking = _placed(key, rankings)
        cell = _cell(content, key, now, changed.get(key), place, _gap(place, ranking))
        options = (definition.format, *map(option_description, further_options(definition)))
        grid.setdefault((definition.bus, options), {})[definition.cache] = cell
    caches = sorted({cache for row in grid.values() for cache in row}, key=_cache_order)
    storage = f"storage {first.storage}"
    name = f"{first.node}-{first.storage}-{first.workload}"
    return SimpleNamespace(
        anchor="table-" + re.sub(r"[^A-Za-z0-9]+", "-", name).lower(),
        title=workload_text(first),
        slug=first.workload,
        place=f"node {first.node}, {storage}" if name_node else storage,
        found=" ".join(ranking_text(ranking, when) for ranking in rankings),
        caches=caches,
        rows=[
            SimpleNamespace(
                bus=bus, options=options, cells=[grid[bus, options].get(cache) for cache in caches]
            )
            for bus, options in sorted(grid)
        ],
    )


def _cache_order(cache: str) -> tuple[int, str]:
    return (CACHES.index(cache) if cache in CACHES else len(CACHES), cache)


def _placed(key: str, rankings: Sequence[Ranking]) -> tuple[RankedCase | None, Ranking | None]:
    places = ((ranking.place(key), ranking) for ranking in rankings)
    return next((pair for pair in places if pair[0] is not None), (None, None))


def _gap(place: RankedCase | None, ranking: Ranking | None) -> tuple[str, bool]:
    """Return the gap of a case to the fastest as text, and whether it is among the best."""
    if place is None or ranking is None or not place.compared:
        return "", False
    if place.rank is Rank.FASTEST:
        alone, word = len(ranking.places) < 2, "fastest" if ranking.decided else "highest so far"
        return "" if alone else word, ranking.sound and not alone
    equal = place.rank is Rank.EQUAL and ranking.sound and not place.exclusion
    return gap_text(place), equal


def _cell(
    content: View,
    key: str,
    now: datetime,
    changed: Verdict | None,
    place: RankedCase | None,
    gap: tuple[str, bool],
) -> SimpleNamespace:
    """Return the cell of a case; `gap`: to the fastest of its table, and if it is the best."""
    state = content.cases.get(key)
    if state is None:
        return SimpleNamespace(url=case_url(key), **_UNMEASURED)
    notes = [] if changed is None else [_change(changed)]
    if state.last.outcome is not Outcome.OK:
        outcome = outcome_text(state.last.outcome)
        notes.append(Note("×", outcome, f"/runs/{state.last.number}"))
    trend = content.trends.get(key)
    if exclusion := place.exclusion if place else _unranked(content, key):
        notes.append(Note(*NOT_COUNTED[exclusion][1:], soft=exclusion in _SOFT))
    if trend and trend.points and trend.points[-1].environment in emulated_in(content.periods):
        notes.append(Note("~", "emulated CPU", soft=True))
    if is_stale(content.planned.get(key), state, now):
        notes.append(Note("!", "stale"))
    good = state.good
    return SimpleNamespace(
        url=case_url(key),
        numbers=numbers_of(trend),
        absent=main_value(state) or "no result",
        age="" if good is None else show_age((now - good.finished).total_seconds()),
        finished="" if good is None else iso(good.finished),
        notes=tuple(notes),
        against=gap[0],
        best=gap[1],
    )


def _unranked(content: View, key: str) -> Exclusion:
    """Return why a case is in no ranking: it has no result in the present environment."""
    definition, trend = content.definition(key), content.trends.get(key) or Trend()
    return exclusion_of(definition, content.durability, trend) if definition else Exclusion.NO


def _change(verdict: Verdict) -> Note:
    sign = verdict_sign(verdict.state)
    text = change_text(verdict.effect, verdict.history.figure)
    word = f"implausible: {text}" if sign == "!" else f"{text} than before"
    return Note(sign, word, good=sign == "▲")
