"""The page at `/` as values: tables, failures, and what to say when there is nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from pvebench.model.definition import Definition, setting_words, workload_words
from pvebench.model.run import Outcome
from pvebench.model.status import WorkerStatus
from pvebench.report.text import iso, outcome_text, show_age, show_moment, without_secrets
from pvebench.store import StoredRun
from pvebench.store.current import View
from pvebench.verdicts import Verdicts
from pvebench.verdicts.headline import calm, standing
from pvebench.verdicts.ranking import of_storage
from pvebench.verdicts.summary import Summary, milestone_text, milestones, schedule_of, summaries
from pvebench.verdicts.text import sentence
from pvebench.web.views.tables import Table, is_stale, shown_cases, tables_view
from pvebench.web.views.timeline import YearChart, year_chart
from pvebench.web.views.workers import WorkerView, case_url, worker_view

# --- Open changes, what comes when, and the storages to choose from, as values for the page. Pure.

CASES_NAMED: Final = 40
"""Cases of a change that are linked; of more the number is told."""
OVER_TOLD: Final = 5
"""Changes that are over and still told; the rest is in `pvebench verdict`."""


@dataclass(frozen=True, slots=True)
class CaseLink:
    """A case in words, and its page."""

    text: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeView:
    """A change that lasts, and that nobody has accepted.

    Attributes:
        worse: whether somebody should look at it.
        text: the verdict's own sentence.
        age: since when, in words; `since` is the moment.
        cases: those that moved; `further` more are not linked.
    """

    anchor: str
    worse: bool
    text: str
    since: str
    age: str
    count: int
    cases: tuple[CaseLink, ...]
    further: int


@dataclass(frozen=True, slots=True)
class StorageOption:
    """A storage that the tables can show."""

    name: str
    url: str
    chosen: bool
    changes: int


@dataclass(frozen=True, slots=True)
class UpcomingResult:
    """What will be known, and whether it is already."""

    text: str
    reached: bool


def open_changes(
    verdicts: Verdicts, cases: Mapping[str, Definition], now: datetime
) -> tuple[ChangeView, ...]:
    """Return the open changes, what wants a look first."""
    ordered = sorted(
        verdicts.changes, key=lambda change: (not change.finding.regression, -change.finding.time)
    )
    found = []
    for change in ordered:
        finding = change.finding
        keys = list(dict.fromkeys(finding.cases))
        links = tuple(_case_link(key, cases) for key in keys[:CASES_NAMED] if key in cases)
        at = datetime.fromtimestamp(finding.time, UTC)
        found.append(
            ChangeView(
                anchor=f"change-{change.id}",
                worse=finding.regression,
                text=sentence(finding),
                since=iso(at),
                age=show_age((now - at).total_seconds()),
                count=len(keys),
                cases=links,
                further=len(keys) - len(links),
            )
        )
    return tuple(found)


def _case_link(key: str, cases: Mapping[str, Definition]) -> CaseLink:
    one = cases[key]
    where = f"{one.node}, {one.storage}"
    return CaseLink(f"{workload_words(one)} on {where}: {setting_words(one)}", case_url(key))


def past_changes(verdicts: Verdicts) -> tuple[str, ...]:
    """Return the sentences of the newest changes that are over or accepted."""
    standing = verdicts.open_findings
    past = [one for one in verdicts.findings if one not in standing]
    return tuple(sentence(one) for one in past[:OVER_TOLD])


def chosen_storage(wish: str, verdicts: Verdicts, cases: Mapping[str, Definition]) -> str:
    """Return the storage to show: the one asked for, else that of a change, else the first.

    Raises:
        KeyError: the one asked for is not there.
    """
    known = list(of_storage(cases))
    if wish:
        if wish not in known:
            raise KeyError(wish)
        return wish
    for finding in verdicts.regressions:
        mine = [cases[key] for key in finding.cases if key in cases]
        if mine:
            return f"{mine[0].node}/{mine[0].storage}"
    return known[0] if known else ""


def storage_choices(
    chosen: str, verdicts: Verdicts, cases: Mapping[str, Definition]
) -> tuple[StorageOption, ...]:
    """Return the storages to choose from; none where there is only one."""
    known = of_storage(cases)
    if len(known) < 2:
        return ()
    moved: dict[str, int] = {}
    for finding in verdicts.regressions:
        places = {f"{cases[k].node}/{cases[k].storage}" for k in finding.cases if k in cases}
        for place in places:
            moved[place] = moved.get(place, 0) + 1
    several = len({one.node for one in cases.values()}) > 1
    return tuple(
        StorageOption(
            name=one.replace("/", ", ", 1) if several else one.partition("/")[2],
            url=f"/?storage={quote(one, safe='')}#results",
            chosen=one == chosen,
            changes=moved.get(one, 0),
        )
        for one in known
    )


def ahead(
    content: View, statuses: Sequence[WorkerStatus], now: datetime
) -> tuple[UpcomingResult, ...]:
    """Return what will be known when; empty when a verdict on every case is possible."""
    ends = [
        status.cycle.expected_end
        for status in statuses
        if status.cycle is not None and status.cycle.done < status.cycle.planned
    ]
    due = [status.next_due for status in statuses if status.next_due is not None]
    first_end = max(ends, default=max(due, default=None))
    return tuple(
        UpcomingResult(milestone_text(one, now), one.reached)
        for one in milestones(content, first_end=first_end, now=now)
    )


UNJUDGED: Final = Verdicts()
REDEFINED: Final = 5
"""Cases with another definition that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that is not ok."""

    number: int
    case: str
    url: str
    outcome: str
    reason: str
    age: str
    finished: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The page at `/`.

    Attributes:
        counts: number and word, such as (12, "measured"); those that are zero are absent.
        elsewhere: how many cases with results belong to no pack any more.
        verdict: whether anything got slower, where no open change says so; may be empty.
        changes: those that are open, what wants a look first.
        past: sentences of changes that are over or accepted.
        redefined: which cases mean something else than before, the newest change first.
        ahead: what will be known when; empty once a verdict is possible on everything.
        choices: the storages to choose from; `chosen` is the one that tables and year are of.
        card: address of the picture of the chosen storage; empty without a result.
        year: None while there are no two runs.
        advice: what to know or do while there is no result; empty otherwise.
    """

    now: str
    now_text: str
    simulated: bool
    workers: tuple[WorkerView, ...]
    counts: tuple[tuple[int, str], ...]
    tables: tuple[Table, ...]
    failures: tuple[Failure, ...]
    elsewhere: int
    verdict: str
    changes: tuple[ChangeView, ...]
    past: tuple[str, ...]
    redefined: tuple[str, ...]
    ahead: tuple[UpcomingResult, ...]
    choices: tuple[StorageOption, ...]
    chosen: str
    card: str
    year: YearChart | None
    advice: str


def index_view(
    content: View,
    statuses: Sequence[WorkerStatus],
    now: datetime,
    verdicts: Verdicts = UNJUDGED,
    storage: str = "",
) -> Index:
    """Return the page at `/`.

    Args:
        storage: `node/storage` that the tables and the year are of; empty: that of an open
            change, or the first.

    Raises:
        KeyError: there is no such storage.
    """
    shown = shown_cases(content)
    chosen = chosen_storage(storage, verdicts, shown)
    mine = of_storage(shown).get(chosen, {})
    found = summaries(content, schedule_of(content, now), mine)
    workers = tuple(worker_view(status, now) for status in statuses)
    soon = ahead(content, statuses, now)
    return Index(
        now=iso(now),
        now_text=show_moment(now),
        simulated=content.simulated,
        workers=workers,
        counts=_counts(content, list(shown), now),
        tables=tables_view(content, mine, now, verdicts.standing(), found),
        failures=tuple(failure_view(run, now) for run in content.failures),
        elsewhere=len(content.cases.keys() - shown.keys()),
        verdict=_verdict(content, verdicts, young=bool(soon)),
        changes=open_changes(verdicts, shown, now),
        past=past_changes(verdicts),
        redefined=tuple(one.text for one in content.definition_changes()[:REDEFINED]),
        ahead=soon,
        choices=storage_choices(chosen, verdicts, shown),
        chosen=chosen.replace("/", ", ", 1),
        card=f"/card.png?storage={quote(chosen, safe='')}" if content.cases else "",
        year=_year(content, verdicts, found, mine),
        advice="" if content.cases else _advice(workers),
    )


def _verdict(content: View, verdicts: Verdicts, *, young: bool) -> str:
    """Return what is said where nothing got slower; what is ahead says it of a young store."""
    said = standing(verdicts)
    if (
        not content.cases
        or said == "regression"
        or (young and said == "inconclusive" and not verdicts.failed)
    ):
        return ""
    return calm(verdicts)


def _year(
    content: View, verdicts: Verdicts, found: Sequence[Summary], mine: Mapping[str, Definition]
) -> YearChart | None:
    return year_chart(content, verdicts, [one.contest for one in found], mine) if mine else None


def failure_view(run: StoredRun, now: datetime) -> Failure:
    """Return a run that is not ok, as one line."""
    return Failure(
        number=run.number,
        case=f"{run.scenario}/{run.workload}",
        url=case_url(run.case_key),
        outcome=outcome_text(run.outcome),
        reason=without_secrets(run.reason) or "no reason was recorded",
        age=show_age((now - run.finished).total_seconds()),
        finished=iso(run.finished),
    )


def _counts(content: View, keys: Sequence[str], now: datetime) -> tuple[tuple[int, str], ...]:
    tried = [(content.planned.get(key), content.cases[key]) for key in keys if key in content.cases]
    counts = (
        (len(keys), "case" if len(keys) == 1 else "cases"),
        (sum(state.good is not None for _, state in tried), "with a result"),
        (sum(state.last.outcome is not Outcome.OK for _, state in tried), "not ok at the last try"),
        (sum(is_stale(planned, state, now) for planned, state in tried), "stale"),
        (len(keys) - len(tried), "not measured yet"),
    )
    return tuple((count, word) for count, word in counts if count)


def _advice(workers: Sequence[WorkerView]) -> str:
    for worker in workers:
        if worker.working:
            ends = worker.cycle.ends if worker.cycle else None
            until = f"; the whole cycle ends at about {ends.text}" if ends else ""
            return f"There is no result yet. The first one is being measured now{until}."
        if worker.due:
            return f"There is no result yet. The first case is due at {worker.due.text}."
    return (
        "Nothing has been measured, and nothing is running. Start measuring with “pvebench serve”; "
        "“pvebench check” says what is missing, “pvebench plan” what would run."
    )
