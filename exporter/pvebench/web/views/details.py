"""Values for the pages of a case and a run. Free of side effects except reading the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Final

from pvebench.advice.recommendation import Recommendation, recommendations
from pvebench.advice.sentences import advice_lines, heading, newest_runs
from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.durability import durable_of
from pvebench.model.figures import warm_text
from pvebench.report.value_text import environments, in_order, show_value
from pvebench.store.current import MAIN_METRICS, Trend, View, read_trends
from pvebench.store.records import Point
from pvebench.store.store import Store
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.web.views import case_url
from pvebench.web.views.charts import changed_facts, chart
from pvebench.web.views.tables import numbers_of

CHART_RUNS: Final = 300
LISTED_RUNS: Final = 50


def case_view(store: Store, content: View, key: str, now: datetime) -> SimpleNamespace | None:
    """Return the values of `case.html`; None if the case is neither planned nor has runs."""
    definition, state = content.definition(key), content.cases.get(key)
    if definition is None:
        return None
    trend = read_trends(store, {key: definition}, limit=CHART_RUNS).get(key, Trend())
    points, names = trend.points, environments(store)
    current = content.current()[definition.place]
    changes = (change.text for change in content.definition_changes() if change.key == key)
    return SimpleNamespace(
        definition=definition,
        durable=durable_of(definition, content.durability),
        now=now,
        meant=next(changes, ""),  # the earlier definition, if it changed
        replaced_by="" if current == key else case_url(current),
        numbers=numbers_of(content.trends.get(key)),
        chart=chart(points, MAIN_METRICS[trend.metric], changes=_changes(points, names))
        if points
        else None,
        good=None if state is None else state.good,
        warm=warm_text(state.good.samples) if state and state.good else "",
        runs=store.runs(limit=LISTED_RUNS, case_key=key),
        values=_values_by_run(trend.metric, points),
        environments={digest: facts["environment"] for digest, facts in names.items()},
    )


def run_view(store: Store, number: int) -> SimpleNamespace | None:
    """Return the values of `run.html`; None if the run does not exist."""
    run = store.run(number)
    if run is None:
        return None
    environment = environments(store).get(run.environment, {})
    evidence = in_order(store.evidence(number))
    return SimpleNamespace(run=run, environment=environment, evidence=evidence)


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


def advice_blocks(
    view: View, store: Store, verdicts: Verdicts
) -> list[tuple[str, list[str], list[tuple[str, str]]]]:
    """Return heading, sentences and the cases that they rest on, for each storage and purpose."""
    return [
        (heading(advised), [*advice_lines(advised, newest_runs(store))], _case_links(advised))
        for advised in recommendations(view, regressions=verdicts.regressions)
    ]


def _case_links(advised: Recommendation) -> list[tuple[str, str]]:
    """Return name and URL path of the compared cases."""
    choices = dict.fromkeys((advised.chosen, advised.default or advised.chosen))
    places = [place for choice in choices for place in choice.places]
    return [(_name(place.definition), case_url(place.key)) for place in places]


def _name(case: Definition) -> str:
    return f"{configuration_text(case)}: {workload_text(case)}"
