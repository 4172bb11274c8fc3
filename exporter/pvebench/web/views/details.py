"""Values for the pages of a case and a run. Free of side effects except reading the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from pvebench.report.text import (
    SampleRow,
    definition_texts,
    environments,
    in_order,
    iso,
    outcome_text,
    sample_rows,
    show_age,
    show_moment,
    show_span,
    show_value,
    without_secrets,
)
from pvebench.store import Point, Store, StoredRun
from pvebench.store.current import MAIN_METRICS, Trend, View, read_trends
from pvebench.web.views.charts import Chart, chart
from pvebench.web.views.tables import Number, numbers_of
from pvebench.web.views.workers import case_url

CHART_RUNS: Final = 300
LISTED_RUNS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the list of its case."""

    number: int
    pass_number: int
    outcome: str
    good: bool
    reason: str
    values: str
    environment: str
    finished: str
    moment: str
    age: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """The page of one case.

    Attributes:
        definition: group -> option -> text.
        meant: the earlier definition of the case, if it changed.
        replaced_by: URL path of the case with the current definition; empty if it is this one.
        samples: samples of the latest successful run.
    """

    key: str
    slug: str
    node: str
    title: str
    caveats: str
    definition: Mapping[str, Mapping[str, str]]
    meant: str
    replaced_by: str
    numbers: tuple[Number, ...]
    chart: Chart | None
    samples: tuple[SampleRow, ...]
    good: RunRow | None
    runs: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The page of one run.

    Attributes:
        pass_number: number of the run among those of its case in the cycle; 0 if unknown.
        evidence: (name, text), with the effective configuration first.
    """

    number: int
    pass_number: int
    uid: str
    case_slug: str
    case_url: str
    outcome: str
    good: bool
    reason: str
    started: str
    finished: str
    duration: str
    environment: Mapping[str, str]
    definition: Mapping[str, Mapping[str, str]]
    samples: tuple[SampleRow, ...]
    evidence: tuple[tuple[str, str], ...]


def case_view(store: Store, content: View, key: str, now: datetime) -> CaseView | None:
    """Return the page of a case; None if it is neither planned nor has runs."""
    definition, state = content.definition(key), content.cases.get(key)
    if definition is None:
        return None
    trend = read_trends(store, {key: definition}, limit=CHART_RUNS).get(key, Trend())
    points = trend.points
    current = content.current()[definition.place]
    names = environments(store)
    values = _values_by_run(trend.metric, points)
    good = None if state is None else state.good

    def row(run: StoredRun) -> RunRow:
        slug = names.get(run.environment, {}).get("environment", "")
        return run_row(run, now, values=values.get(run.number, ""), environment=slug)

    return CaseView(
        key=key,
        slug=definition.name,
        node=definition.node,
        title=definition.title,
        caveats=", ".join(definition.all_caveats),
        definition=definition_texts(definition),
        meant=next(
            (change.text for change in content.definition_changes() if change.key == key), ""
        ),
        replaced_by="" if current == key else case_url(current),
        numbers=numbers_of(content.trends.get(key)),
        chart=chart(points, MAIN_METRICS[trend.metric], changes=_changes(points, names))
        if points
        else None,
        samples=() if good is None else sample_rows(good.samples),
        good=None if good is None else row(good),
        runs=tuple(row(run) for run in store.runs(limit=LISTED_RUNS, case_key=key)),
    )


def run_view(store: Store, number: int) -> RunView | None:
    """Return the page of a run; None if the run does not exist."""
    run = store.run(number)
    if run is None:
        return None
    return RunView(
        number=run.number,
        pass_number=run.pass_number,
        uid=run.uid,
        case_slug=f"{run.scenario}/{run.workload}",
        case_url=case_url(run.case_key),
        outcome=outcome_text(run.outcome),
        good=run.outcome.value == "ok",
        reason=without_secrets(run.reason),
        started=show_moment(run.started),
        finished=show_moment(run.finished),
        duration=show_span((run.finished - run.started).total_seconds()),
        environment=environments(store).get(run.environment, {}),
        definition=definition_texts(run.definition),
        samples=sample_rows(run.samples),
        evidence=in_order(store.evidence(number)),
    )


def run_row(run: StoredRun, now: datetime, *, values: str, environment: str) -> RunRow:
    """Return a run as a row of a list."""
    return RunRow(
        number=run.number,
        pass_number=run.pass_number,
        outcome=outcome_text(run.outcome),
        good=run.outcome.value == "ok",
        reason=without_secrets(run.reason),
        values=values,
        environment=environment,
        finished=iso(run.finished),
        moment=show_moment(run.finished),
        age=show_age((now - run.finished).total_seconds()),
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
    changes = []
    for before, after in pairwise(points):
        if before.environment != after.environment:
            old, new = names.get(before.environment, {}), names.get(after.environment, {})
            facts = [
                f"{name} {old.get(name, 'unknown')} → {new.get(name, 'unknown')}"
                for name in sorted({*old, *new} - {"environment", "node"})
                if old.get(name) != new.get(name)
            ]
            changes.append((after.finished, ", ".join(facts) or "another environment"))
    return changes
