"""Values for the pages of a case and a run. Free of side effects except reading the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from pvebench.advice.recommendation import recommendations
from pvebench.advice.sentences import advice_lines, heading, newest_runs
from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.durability import Durable, durable_of
from pvebench.model.figures import warm_text
from pvebench.report.value_text import environments, in_order, show_value
from pvebench.store.current import MAIN_METRICS, Trend, View, read_trends
from pvebench.store.records import Point, StoredRun
from pvebench.store.store import Store
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.web.views import case_url
from pvebench.web.views.charts import Chart, changed_facts, chart
from pvebench.web.views.tables import Number, numbers_of

CHART_RUNS: Final = 300
LISTED_RUNS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """The page of one case.

    Attributes:
        meant: the earlier definition of the case, if it changed.
        replaced_by: URL path of the case with the current definition; empty if it is this one.
        good, warm: the latest successful run, and how much it read from memory.
        values: number of a run -> its main values as text.
        environments: digest -> name of the environment.
    """

    key: str
    definition: Definition
    durable: Durable
    now: datetime
    meant: str
    replaced_by: str
    numbers: tuple[Number, ...]
    chart: Chart | None
    good: StoredRun | None
    warm: str
    runs: tuple[StoredRun, ...]
    values: Mapping[int, str]
    environments: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The page of one run.

    Attributes:
        evidence: (name, text), with the effective configuration first.
    """

    run: StoredRun
    environment: Mapping[str, str]
    evidence: tuple[tuple[str, str], ...]


def case_view(store: Store, content: View, key: str, now: datetime) -> CaseView | None:
    """Return the page of a case; None if it is neither planned nor has runs."""
    definition, state = content.definition(key), content.cases.get(key)
    if definition is None:
        return None
    trend = read_trends(store, {key: definition}, limit=CHART_RUNS).get(key, Trend())
    points, names = trend.points, environments(store)
    current = content.current()[definition.place]
    changes = (change.text for change in content.definition_changes() if change.key == key)
    return CaseView(
        key=key,
        definition=definition,
        durable=durable_of(definition, content.durability),
        now=now,
        meant=next(changes, ""),
        replaced_by="" if current == key else case_url(current),
        numbers=numbers_of(content.trends.get(key)),
        chart=chart(points, MAIN_METRICS[trend.metric], changes=_changes(points, names))
        if points
        else None,
        good=None if state is None else state.good,
        warm=warm_text(state.good.samples) if state and state.good else "",
        runs=tuple(store.runs(limit=LISTED_RUNS, case_key=key)),
        values=_values_by_run(trend.metric, points),
        environments={digest: facts["environment"] for digest, facts in names.items()},
    )


def run_view(store: Store, number: int) -> RunView | None:
    """Return the page of a run; None if the run does not exist."""
    run = store.run(number)
    if run is None:
        return None
    return RunView(
        run=run,
        environment=environments(store).get(run.environment, {}),
        evidence=in_order(store.evidence(number)),
    )


def _values_by_run(metric: str, points: Sequence[Point]) -> dict[int, str]:
    by_run: dict[int, list[str]] = {}
    for point in points:
        text = f"{point.direction} {show_value(point.value, MAIN_METRICS[metric])}"
        by_run.setdefault(point.run, []).append(text)
    return {number: ", ".join(texts) for number, texts in by_run.items()}


def _changes(
    points: Sequence[Point], names: Mapping[str, Mapping[str, str]]
) -> list[tuple[datetime, str]]:
    """Return the environment changes between runs: (time, changed facts)."""
    none: Mapping[str, str] = {}
    return [
        (
            after.finished,
            changed_facts(names.get(before.environment, none), names.get(after.environment, none)),
        )
        for before, after in pairwise(points)
        if before.environment != after.environment
    ]


# --- Advice


@dataclass(frozen=True, slots=True)
class AdviceBlock:
    """A recommendation: its sentences, and (name, URL path) of the cases that they rest on."""

    title: str
    lines: tuple[str, ...]
    cases: tuple[tuple[str, str], ...]


def advice_blocks(view: View, store: Store, verdicts: Verdicts) -> tuple[AdviceBlock, ...]:
    """Return the advice for every storage and purpose."""
    return tuple(
        AdviceBlock(
            title=heading(advised),
            lines=tuple(advice_lines(advised, newest_runs(store))),
            cases=tuple(
                (
                    f"{configuration_text(place.definition)}: {workload_text(place.definition)}",
                    case_url(place.key),
                )
                for choice in dict.fromkeys((advised.chosen, advised.default or advised.chosen))
                for place in choice.places
            ),
        )
        for advised in recommendations(view, regressions=verdicts.regressions)
    )
