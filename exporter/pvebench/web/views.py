"""The page at `/` as values: tables, failures, and what to say when there is nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pvebench.analysis.words import sentence
from pvebench.judging import Verdicts
from pvebench.judging.headline import headline
from pvebench.model.run import Outcome
from pvebench.model.status import WorkerStatus
from pvebench.results import View
from pvebench.store import StoredRun
from pvebench.web.facts import without_secrets
from pvebench.web.present import WorkerView, case_url, worker_view
from pvebench.web.tables import Table, is_stale, shown_cases, tables_view
from pvebench.web.texts import iso, outcome_text, show_age, show_moment

UNJUDGED: Final = Verdicts()
CHANGES: Final = 5
"""Changes that the page tells; the rest is in `pvebench verdict`."""


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
        verdict: whether anything got slower, in one sentence.
        alarm: whether that wants a look.
        changes: further sentences, the newest first.
        redefined: which cases mean something else than before, the newest change first.
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
    alarm: bool
    changes: tuple[str, ...]
    redefined: tuple[str, ...]
    advice: str


def index_view(
    content: View, statuses: Sequence[WorkerStatus], now: datetime, verdicts: Verdicts = UNJUDGED
) -> Index:
    """Return the page at `/`."""
    shown = shown_cases(content)
    workers = tuple(worker_view(status, now) for status in statuses)
    return Index(
        now=iso(now),
        now_text=show_moment(now),
        simulated=content.simulated,
        workers=workers,
        counts=_counts(content, list(shown), now),
        tables=tables_view(content, shown, now, verdicts.standing()),
        failures=tuple(failure_view(run, now) for run in content.failures),
        elsewhere=len(content.cases.keys() - shown.keys()),
        verdict=headline(verdicts) if content.cases else "",
        alarm=bool(verdicts.regressions),
        changes=tuple(sentence(one) for one in verdicts.findings[:CHANGES]),
        redefined=tuple(one.text for one in content.definition_changes()[:CHANGES]),
        advice="" if content.cases else _advice(workers),
    )


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
