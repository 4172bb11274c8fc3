"""The page at `/` as values: changes, tables, runs with issues. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from pvebench.advice.recommendation import recommendations
from pvebench.advice.sentences import PURPOSES, first_sentence
from pvebench.analysis.change import Change
from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.run import Outcome
from pvebench.model.status import State, WorkerStatus
from pvebench.model.workload import Case
from pvebench.model.write_cost import cost_lines
from pvebench.report.value_text import iso, show_age, show_clock, show_span, state_text
from pvebench.store.current import View
from pvebench.store.records import StoredRun
from pvebench.verdicts.change_text import sentence
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
from pvebench.web.views.charts import YearChart, year_chart
from pvebench.web.views.tables import Table, is_stale, tables_view

# --- Open changes, upcoming results, and the storages to choose from, as values for the page.

CASES_NAMED: Final = 40
"""Maximum linked cases of a change; of more the page gives the number."""
MAX_PAST: Final = 50
"""Maximum resolved and accepted changes; `pvebench verdict` lists all."""


@dataclass(frozen=True, slots=True)
class CaseLink:
    """A case in words, and the address of its page."""

    text: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeView:
    """An open change.

    Attributes:
        worse: whether it is a regression.
        text: its sentence.
        age: how long ago it began, in words; `since` is the time.
        cases: linked cases; `further` more are not linked.
    """

    anchor: str
    worse: bool
    text: str
    since: str
    age: str
    count: int
    cases: tuple[CaseLink, ...]
    further: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastChange:
    """A resolved or accepted change: date and time of its start, duration or state, sentence."""

    began: str
    since: str
    lasted: str
    text: str


@dataclass(frozen=True, slots=True)
class StorageOption:
    """A storage that the tables can show."""

    name: str
    url: str
    chosen: bool
    changes: int


@dataclass(frozen=True, slots=True)
class UpcomingResult:
    """An upcoming result, and whether it is available already."""

    text: str
    reached: bool


def open_changes(
    verdicts: Verdicts, cases: Mapping[str, Definition], now: datetime
) -> tuple[ChangeView, ...]:
    """Return the open changes, regressions first."""
    better = [change for change in verdicts.open_changes if not change.regression]
    return tuple(_change_view(change, cases, now) for change in (*verdicts.regressions, *better))


def _change_view(change: Change, cases: Mapping[str, Definition], now: datetime) -> ChangeView:
    keys = list(dict.fromkeys(change.cases))
    links = tuple(_case_link(key, cases) for key in keys[:CASES_NAMED] if key in cases)
    begin = datetime.fromtimestamp(change.begin, UTC)
    return ChangeView(
        anchor=f"change-{change.id}",
        worse=change.regression,
        text=sentence(change),
        since=iso(begin),
        age=show_age((now - begin).total_seconds()),
        count=len(keys),
        cases=links,
        further=len(keys) - len(links),
    )


def _case_link(key: str, cases: Mapping[str, Definition]) -> CaseLink:
    case = cases[key]
    where = f"{case.node}, {case.storage}"
    return CaseLink(f"{workload_text(case)} on {where}: {configuration_text(case)}", case_url(key))


def past_changes(verdicts: Verdicts) -> tuple[PastChange, ...]:
    """Return the newest resolved and accepted changes."""
    return tuple(_past_change(change) for change in verdicts.closed_changes[:MAX_PAST])


def _past_change(change: Change) -> PastChange:
    begin = datetime.fromtimestamp(change.begin, UTC)
    lasted = change.state if change.end is None else show_span(change.end - change.begin)
    return PastChange(
        began=f"{begin:%Y-%m-%d}",
        since=iso(begin),
        lasted=lasted,
        text=sentence(change, evidence=False),
    )


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
) -> tuple[StorageOption, ...]:
    """Return the storages to choose from; none if there is only one."""
    definitions = of_storage(cases)
    if len(definitions) < 2:
        return ()
    counts: dict[str, int] = {}
    for change in verdicts.regressions:
        places = {f"{cases[k].node}/{cases[k].storage}" for k in change.cases if k in cases}
        for place in places:
            counts[place] = counts.get(place, 0) + 1
    several = len({case.node for case in cases.values()}) > 1
    return tuple(
        StorageOption(
            name=place.replace("/", ", ", 1) if several else place.partition("/")[2],
            url=f"/?storage={quote(place, safe='')}#results",
            chosen=place == chosen,
            changes=counts.get(place, 0),
        )
        for place in definitions
    )


def upcoming_results(
    content: View, statuses: Sequence[WorkerStatus], now: datetime
) -> tuple[UpcomingResult, ...]:
    """Return the upcoming results; empty once every case can have a verdict."""
    return tuple(
        UpcomingResult(milestone_text(milestone, now), milestone.reached)
        for milestone in milestones(content, statuses, now)
    )


# --- Status of workers.


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as text and as ISO 8601."""

    text: str
    iso: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Status of a worker.

    Attributes:
        elapsed: elapsed and expected time of the phase.
        phase_seconds: elapsed and expected time, for a progress bar; None if unknown.
        ends: expected end of the running cycle; None: none runs, or it is late.
        upcoming: the next cases with their expected starts.
        due: for an idle worker, start of the next case.
    """

    status: WorkerStatus
    state: str
    working: bool
    elapsed: str
    phase_seconds: tuple[float, float] | None
    ends: Moment | None
    upcoming: tuple[tuple[Case, Moment], ...]
    due: Moment | None


def moment(at: datetime, now: datetime) -> Moment:
    """Return a time with its distance: `12:30 UTC, in 3 min`."""
    seconds = (at - now).total_seconds()
    distance = f"in {show_span(seconds)}" if seconds >= 1 else "now"
    return Moment(f"{show_clock(at, now)}, {distance}", iso(at))


def worker_view(status: WorkerStatus, now: datetime) -> WorkerView:
    """Return the status of a worker."""
    expected, end = status.phase_seconds, status.cycle_end(now)
    between = status.state is State.IDLE and bool(status.upcoming) and status.next_due is None
    elapsed = max(0.0, (now - status.since).total_seconds())
    starts = (moment(start, now) for start in status.expected_starts(now))
    return WorkerView(
        status=status,
        state="between two cases" if between else state_text(status.state),
        working=status.case is not None or between,
        elapsed=_elapsed_text(elapsed, expected),
        phase_seconds=(min(elapsed, expected), expected) if expected > 0 else None,
        ends=None if end is None else moment(end, now),
        upcoming=tuple(zip(status.upcoming, starts, strict=True)),
        due=None if status.next_due is None else moment(status.next_due, now),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The page at `/`.

    Attributes:
        counts: number and word, such as (12, "cases"); zeros are absent.
        elsewhere: number of cases with results that belong to no current pack.
        verdict: the headline without a regression; may be empty.
        changes: open changes, regressions first.
        past: resolved and accepted changes, newest first.
        outages: times without results of a node, in a sentence each, newest first.
        redefined: cases with a changed definition, the newest change first.
        ahead: upcoming results; empty once every case can have a verdict.
        choices: the storages to choose from; tables and year show `chosen`.
        card: address of the picture of the chosen storage; empty without a result.
        year: None with fewer than two runs.
        device: model, serial, file system and transport of the chosen storage; empty: unknown.
        costs: what measuring writes to each shown storage, in a line each.
        recommended: (purpose, advice) for each purpose on the chosen storage.
        advice: status or next step while there is no result; empty otherwise.
        operations: effects of backups and other operations on the chosen storage, as sentences.
    """

    now: datetime
    simulated: bool
    workers: tuple[WorkerView, ...]
    counts: tuple[tuple[int, str], ...]
    tables: tuple[Table, ...]
    failures: Sequence[StoredRun]
    elsewhere: int
    verdict: str
    changes: tuple[ChangeView, ...]
    past: tuple[PastChange, ...]
    outages: tuple[str, ...]
    redefined: tuple[str, ...]
    ahead: tuple[UpcomingResult, ...]
    choices: tuple[StorageOption, ...]
    chosen: str
    card: str
    year: YearChart | None
    device: str
    costs: tuple[str, ...]
    recommended: tuple[tuple[str, str], ...]
    advice: str
    operations: tuple[str, ...]


def index_view(
    content: View,
    statuses: Sequence[WorkerStatus],
    now: datetime,
    verdicts: Verdicts = NO_VERDICTS,
    storage: str = "",
) -> Index:
    """Return the page at `/`.

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
    workers = tuple(worker_view(status, now) for status in statuses)
    upcoming = upcoming_results(content, statuses, now)
    return Index(
        now=now,
        simulated=content.simulated,
        workers=workers,
        counts=_counts(content, list(shown), now),
        tables=tables_view(content, cases, now, verdicts.standing(), ranked),
        failures=content.failures,
        elsewhere=len(content.cases.keys() - shown.keys()),
        verdict=_verdict(content, verdicts, young=bool(upcoming)),
        changes=open_changes(verdicts, shown, now),
        past=past_changes(verdicts),
        outages=tuple(outage_text(outage) for outage in verdicts.outages),
        redefined=tuple(change.text for change in content.definition_changes()[:REDEFINED]),
        ahead=upcoming,
        choices=storage_choices(chosen, verdicts, shown),
        chosen=chosen.replace("/", ", ", 1),
        card=f"/card.png?storage={quote(chosen, safe='')}" if content.cases else "",
        year=year_chart(content, verdicts, [s.contest for s in ranked], cases) if cases else None,
        device=content.devices.get(chosen, ""),
        costs=cost_lines(
            tuple(cost for cost in content.costs if f"{cost.node}/{cost.storage}" == chosen)
        ),
        recommended=tuple(
            (PURPOSES[advised.purpose], first_sentence(advised))
            for advised in recommendations(content, cases, verdicts.regressions)
        ),
        advice="" if content.cases else _advice(workers),
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


def _advice(workers: Sequence[WorkerView]) -> str:
    for worker in workers:
        if worker.working:
            until = f"; the cycle ends at about {worker.ends.text}" if worker.ends else ""
            return f"No results yet. The first case is running now{until}."
        if worker.due:
            return f"No results yet. The first case is due at {worker.due.text}."
    return (
        "No results yet, and nothing is running. Start measuring with “pvebench serve”. "
        "“pvebench check” lists missing parts, “pvebench plan” the due cases."
    )
