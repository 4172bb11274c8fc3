"""The page at `/` as values: tables, failures, and what to say when there is nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from pvebench.judging import Verdicts
from pvebench.judging.fastest import of_storage
from pvebench.judging.found import Found, schedule_of, what_was_found
from pvebench.judging.headline import calm, standing
from pvebench.model.definition import Definition
from pvebench.model.run import Outcome
from pvebench.model.status import WorkerStatus
from pvebench.results import View
from pvebench.store import StoredRun
from pvebench.web.facts import without_secrets
from pvebench.web.present import WorkerView, case_url, worker_view
from pvebench.web.tables import Table, is_stale, shown_cases, tables_view
from pvebench.web.texts import iso, outcome_text, show_age, show_moment
from pvebench.web.told import (
    Ahead,
    ChangeView,
    StorageChoice,
    ahead,
    chosen_storage,
    open_changes,
    past_changes,
    storage_choices,
)
from pvebench.web.year import YearChart, year_chart

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
    ahead: tuple[Ahead, ...]
    choices: tuple[StorageChoice, ...]
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
    found = what_was_found(content, schedule_of(content, now), mine)
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
        or said == "worse"
        or (young and said == "cannot_tell" and not verdicts.failed)
    ):
        return ""
    return calm(verdicts)


def _year(
    content: View, verdicts: Verdicts, found: Sequence[Found], mine: Mapping[str, Definition]
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
