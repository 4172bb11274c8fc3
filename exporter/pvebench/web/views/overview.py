"""The page at `/` as values of its template: changes, tables, runs with issues. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Final
from urllib.parse import quote

from pvebench.advice.recommendation import recommendations
from pvebench.advice.sentences import PURPOSES, first_sentence
from pvebench.analysis.change import Change
from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.run import Outcome
from pvebench.model.status import State, WorkerStatus
from pvebench.model.units import show_span
from pvebench.model.write_cost import cost_lines
from pvebench.report.value_text import show_when, state_text
from pvebench.store.current import View
from pvebench.verdicts.fastest_text import (
    latest_operation_lines,
    milestone_text,
    milestones,
    schedule_of,
    summaries,
)
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.outages import outage_text
from pvebench.verdicts.overall_state import calm, standing
from pvebench.verdicts.ranking import of_storage, shown_definitions
from pvebench.web.views import case_url
from pvebench.web.views.charts import year_chart
from pvebench.web.views.tables import is_stale, tables_view

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
    return [(_place_text(cases[key]), case_url(key)) for key in keys if key in cases]


def _place_text(case: Definition) -> str:
    place = f"{workload_text(case)} on {case.node}, {case.storage}"
    return f"{place}: {configuration_text(case)}"


def chosen_storage(requested: str, verdicts: Verdicts, cases: Mapping[str, Definition]) -> str:
    """Return the storage to show: `requested`, else that of a regression, else the first.

    Raises:
        KeyError: there is no storage `requested`.
    """
    known = list(of_storage(cases))
    if requested:
        if requested not in known:
            raise KeyError(requested)
        return requested
    for change in verdicts.regressions:
        changed = [cases[key] for key in change.cases if key in cases]
        if changed:
            return f"{changed[0].node}/{changed[0].storage}"
    return known[0] if known else ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Status of a worker.

    Attributes:
        working: whether it runs a case, or is between two.
        elapsed: elapsed and expected time of the phase.
        phase_seconds: the same for a progress bar; None if unknown.
    """

    status: WorkerStatus
    state: str
    working: bool
    elapsed: str
    phase_seconds: tuple[float, float] | None


def worker_view(status: WorkerStatus, now: datetime) -> WorkerView:
    """Return the status of a worker."""
    expected, elapsed = status.phase_seconds, max(0.0, (now - status.since).total_seconds())
    between = status.state is State.IDLE and bool(status.upcoming) and status.next_due is None
    return WorkerView(
        status=status,
        state="between two cases" if between else state_text(status.state),
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
        storage: `node/storage` that tables and year show; empty: that of a regression, or the
            first.

    Raises:
        KeyError: there is no such storage.
    """
    shown = shown_definitions(content)
    chosen = chosen_storage(storage, verdicts, shown)
    cases = of_storage(shown).get(chosen, {})
    ranked = summaries(content, schedule_of(content, statuses, now), cases)
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
        tables=tables_view(content, cases, now, verdicts.standing(), ranked),
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
        card=f"/card.png?storage={quote(chosen, safe='')}" if content.cases else "",
        year=year_chart(content, verdicts, [s.contest for s in ranked], cases) if cases else None,
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
    state = standing(verdicts)
    if (
        not content.cases
        or state == "regression"
        or (young and state == "inconclusive" and not verdicts.failed)
    ):
        return ""
    if not (young or verdicts.counts() or verdicts.failed):
        return JUDGING
    return calm(verdicts)


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


def _advice(workers: Sequence[WorkerView], now: datetime) -> str:
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
