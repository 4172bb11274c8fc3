"""Open changes, what comes when, and the storages to choose from, as values for the page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from pvebench.analysis.words import sentence
from pvebench.judging import Verdicts
from pvebench.judging.fastest import of_storage
from pvebench.judging.found import milestone_text, milestones
from pvebench.model.definition import Definition
from pvebench.model.plain_words import setting_words, workload_words
from pvebench.model.status import WorkerStatus
from pvebench.results import View
from pvebench.web.present import case_url
from pvebench.web.texts import iso, show_age

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
class StorageChoice:
    """A storage that the tables can show."""

    name: str
    url: str
    chosen: bool
    changes: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """What will be known, and whether it is already."""

    text: str
    reached: bool


def open_changes(
    verdicts: Verdicts, cases: Mapping[str, Definition], now: datetime
) -> tuple[ChangeView, ...]:
    """Return the open changes, what wants a look first."""
    named = {id(one.finding): one.id for one in verdicts.changes}
    ordered = sorted(verdicts.open_findings, key=lambda one: (not one.regression, -one.time))
    found = []
    for number, finding in enumerate(ordered, start=1):
        keys = list(dict.fromkeys(finding.cases))
        links = tuple(_case_link(key, cases) for key in keys[:CASES_NAMED] if key in cases)
        at = datetime.fromtimestamp(finding.time, UTC)
        found.append(
            ChangeView(
                anchor=f"change-{named.get(id(finding), number)}",
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
) -> tuple[StorageChoice, ...]:
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
        StorageChoice(
            name=one.replace("/", ", ", 1) if several else one.partition("/")[2],
            url=f"/?storage={quote(one, safe='')}#results",
            chosen=one == chosen,
            changes=moved.get(one, 0),
        )
        for one in known
    )


def ahead(content: View, statuses: Sequence[WorkerStatus], now: datetime) -> tuple[Ahead, ...]:
    """Return what will be known when; empty when a verdict on every case is possible."""
    ends = [
        status.cycle.expected_end
        for status in statuses
        if status.cycle is not None and status.cycle.done < status.cycle.planned
    ]
    due = [status.next_due for status in statuses if status.next_due is not None]
    first_end = max(ends, default=max(due, default=None))
    return tuple(
        Ahead(milestone_text(one, now), one.reached)
        for one in milestones(content, first_end=first_end, now=now)
    )
