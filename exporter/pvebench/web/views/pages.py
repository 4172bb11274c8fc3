"""Values for the templates of the pages: `/`, a case, a run, advice.

Free of side effects except reading the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Final
from urllib.parse import quote

from pvebench.advice.recommendation import Recommendation, recommendations
from pvebench.advice.recommendation_text import (
    PURPOSES,
    advice_lines,
    first_sentence,
    heading,
    newest_runs,
)
from pvebench.analysis.change import Change
from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.durability import durable_of
from pvebench.model.run import Outcome
from pvebench.model.run_metrics import warm_text
from pvebench.model.status import State, WorkerStatus
from pvebench.model.storage_use import cost_lines
from pvebench.model.units import show_span
from pvebench.report.value_text import STATES, environments, in_order, show_value, show_when
from pvebench.store.live_results import MAIN_METRICS, Trend, View, read_trends
from pvebench.store.records import Point, StoredRun
from pvebench.store.store import Store
from pvebench.verdicts.fastest_text import (
    latest_operation_lines,
    milestone_text,
    milestones,
    schedule_of,
)
from pvebench.verdicts.node_verdicts import Verdicts, outage_text
from pvebench.verdicts.overall_state import count_line, overall_state
from pvebench.verdicts.ranking import answers, of_storage, shown_definitions
from pvebench.web.views import case_url
from pvebench.web.views.charts import changed_facts, chart, year_chart
from pvebench.web.views.tables import is_stale, numbers_of, tables_view

# --- Open and closed changes, and the storages to choose from.

CASES_NAMED: Final = 40
"""Maximum linked cases of a change; of more the page gives the number."""
MAX_PAST: Final = 50
"""Maximum resolved and accepted changes; `pvebench verdict` lists all."""
Link = tuple[str, str]
"""Text, and URL path."""


def open_changes(
    verdicts: Verdicts, cases: Mapping[str, Definition]
) -> list[tuple[Change, list[Link]]]:
    """Return the open changes with links to their first cases, regressions first."""
    better = [change for change in verdicts.open_changes if not change.regression]
    return [(change, _case_links(change, cases)) for change in (*verdicts.regressions, *better)]


def _case_links(change: Change, cases: Mapping[str, Definition]) -> list[Link]:
    keys = list(dict.fromkeys(change.cases))[:CASES_NAMED]
    links = []
    for key, case in ((key, cases[key]) for key in keys if key in cases):
        place = f"{workload_text(case)} on {case.node}, {case.storage}"
        links.append((f"{place}: {configuration_text(case)}", case_url(key)))
    return links


def first_storage(verdicts: Verdicts, cases: Mapping[str, Definition]) -> str:
    """Return the storage to show first: that of a regression, else any; empty: there is none."""
    for change in verdicts.regressions:
        changed = [cases[key] for key in change.cases if key in cases]
        if changed:
            return f"{changed[0].node}/{changed[0].storage}"
    return next(iter(of_storage(cases)), "")


def storage_choices(
    chosen: str, verdicts: Verdicts, cases: Mapping[str, Definition]
) -> list[tuple[str, str, bool, int]]:
    """Return name, URL, whether it is chosen, and regressions of each storage; none for one."""
    definitions = of_storage(cases)
    if len(definitions) < 2:
        return []
    counts = Counter(
        place
        for change in verdicts.regressions
        for place in {f"{cases[k].node}/{cases[k].storage}" for k in change.cases if k in cases}
    )
    several = len({case.node for case in cases.values()}) > 1
    return [
        (
            place.replace("/", ", ", 1) if several else place.partition("/")[2],
            f"/?storage={quote(place, safe='')}#results",
            place == chosen,
            counts[place],
        )
        for place in definitions
    ]


# --- Status of workers.


def worker_view(status: WorkerStatus, now: datetime) -> SimpleNamespace:
    """Return the status of a worker; `working`: it runs a case, or is between two."""
    expected, elapsed = status.phase_seconds, max(0.0, (now - status.since).total_seconds())
    between = status.state is State.IDLE and bool(status.upcoming) and status.next_due is None
    return SimpleNamespace(
        status=status,
        state="between two cases" if between else STATES[status.state],
        working=status.case is not None or between,
        elapsed=_elapsed_text(elapsed, expected),
        phase_seconds=(min(elapsed, expected), expected) if expected > 0 else None,
    )


def _elapsed_text(elapsed: float, expected: float) -> str:
    if expected <= 0:
        return f"for {show_span(elapsed)}"
    return f"{show_span(elapsed)} of about {show_span(max(1.0, expected))}"


# --- The whole page.

NO_VERDICTS: Final = Verdicts()
JUDGING: Final = "Analyzing the history. The first verdict will appear here."
REDEFINED: Final = 5
"""Maximum listed cases with a changed definition."""


def index_view(
    content: View,
    statuses: Sequence[WorkerStatus],
    now: datetime,
    verdicts: Verdicts = NO_VERDICTS,
    storage: str = "",
) -> SimpleNamespace:
    """Return the values of `index.html`.

    Args:
        storage: existing `node/storage` that tables and year show; empty: `first_storage`.
    """
    shown = shown_definitions(content)
    chosen = storage or first_storage(verdicts, shown)
    cases = of_storage(shown).get(chosen, {})
    rankings, when = answers(content, cases), schedule_of(content, statuses, now)
    workers = [worker_view(status, now) for status in statuses]
    ahead = [
        (milestone_text(milestone, now), milestone.reached)
        for milestone in milestones(content, statuses, now)
    ]
    return SimpleNamespace(
        now=now,
        simulated=content.simulated,
        workers=workers,
        counts=_counts(content, list(shown), now),
        tables=tables_view(content, cases, now, verdicts.most_important(), rankings, when),
        failures=content.failures,
        # Cases with results that belong to no current pack.
        elsewhere=len(content.cases.keys() - shown.keys()),
        verdict=_verdict(content, verdicts, young=bool(ahead)),
        changes=open_changes(verdicts, shown),
        past=verdicts.closed_changes[:MAX_PAST],
        outages=[outage_text(outage) for outage in verdicts.outages],
        redefined=[change.text for change in content.definition_changes()[:REDEFINED]],
        ahead=ahead,  # empty once every case can have a verdict
        choices=storage_choices(chosen, verdicts, shown),
        chosen=chosen.replace("/", ", ", 1),
        year=year_chart(content, verdicts, rankings, cases) if cases else None,
        device=content.devices.get(chosen, ""),
        costs=cost_lines(
            tuple(cost for cost in content.costs if f"{cost.node}/{cost.storage}" == chosen)
        ),
        recommended=[
            (PURPOSES[advised.purpose], first_sentence(advised))
            for advised in recommendations(content, cases, verdicts.regressions)
        ],
        advice="" if content.cases else _advice(workers, now),
        operations=latest_operation_lines(content, cases),
    )


def _verdict(content: View, verdicts: Verdicts, *, young: bool) -> str:
    """Return the headline without a regression; upcoming results replace it in a young store."""
    state = overall_state(verdicts)
    if (
        not content.cases
        or state == "regression"
        or (young and state == "inconclusive" and not verdicts.failed)
    ):
        return ""
    if not (young or verdicts.counts() or verdicts.failed):
        return JUDGING
    return count_line(verdicts)


def _counts(content: View, keys: Sequence[str], now: datetime) -> tuple[tuple[int, str], ...]:
    tried = [(content.planned.get(key), content.cases[key]) for key in keys if key in content.cases]
    counts = (
        (len(keys), "case" if len(keys) == 1 else "cases"),
        (sum(state.good is not None for _, state in tried), "with a result"),
        (sum(state.last.outcome is not Outcome.OK for _, state in tried), "last run not ok"),
        (sum(is_stale(planned, state, now) for planned, state in tried), "stale"),
        (len(keys) - len(tried), "not measured yet"),
    )
    return tuple((count, word) for count, word in counts if count)


def _advice(workers: Sequence[SimpleNamespace], now: datetime) -> str:
    """Return status or next step while there is no result."""
    for worker in workers:
        if worker.working:
            end = worker.status.cycle_end(now)
            until = f"; the cycle ends at about {show_when(end, now)}" if end else ""
            return f"No results yet. The first case is running now{until}."
        if due := worker.status.next_due:
            return f"No results yet. The first case is due at {show_when(due, now)}."
    return (
        "No results yet, and nothing is running. Start measuring with “pvebench serve”. "
        "“pvebench check” lists missing parts, “pvebench plan” the due cases."
    )


# --- A case, a run, and advice.

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


def run_view(store: Store, run: StoredRun) -> SimpleNamespace:
    """Return the values of `run.html`."""
    environment = environments(store).get(run.environment, {})
    evidence = in_order(store.evidence(run.number))
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
) -> list[tuple[str, list[str], list[Link]]]:
    """Return heading, sentences and the cases that they rest on, for each storage and purpose."""
    return [
        (heading(advised), [*advice_lines(advised, newest_runs(store))], _compared_cases(advised))
        for advised in recommendations(view, regressions=verdicts.regressions)
    ]


def _compared_cases(advised: Recommendation) -> list[Link]:
    """Return name and URL path of the compared cases."""
    choices = dict.fromkeys((advised.chosen, advised.default or advised.chosen))
    places = [(place.definition, place.key) for choice in choices for place in choice.places]
    return [
        (f"{configuration_text(case)}: {workload_text(case)}", case_url(key))
        for case, key in places
    ]
