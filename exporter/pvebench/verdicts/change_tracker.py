"""Change IDs: recognize each change in later updates.

Every update detects all changes: with more runs the time of a change moves a little, cases join
it, another node shows it too. It must keep its id, so that it is reported once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.case_history import CaseHistory
from pvebench.analysis.change import Change
from pvebench.errors import StoreError
from pvebench.log import log
from pvebench.model.storage_use import NodeStorage
from pvebench.model.units import DAY
from pvebench.store.changes import Ending, KnownChange
from pvebench.verdicts.judge_input import KnownChanges
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import severity_of, summary

NEAR_RUNS: Final = 10
"""Maximum runs by which the time of a change may move between updates."""
ID_LETTERS: Final = 8
UNCONFIRMED_SECONDS: Final = DAY
"""How long a change may be unconfirmed before it counts as ended, seconds of judged runs."""
KNOWN_SECONDS: Final = 30 * DAY
"""How long an ended change that is not listed any more keeps its ID, should it return."""


Apart = Callable[[str, float, float], int]
"""(case key, time, other time) -> number of runs between them."""


class ChangeTracker:
    """Give changes their ids, update after update, and record when they end.

    Args:
        kept: where known changes survive a restart; None: they do not.
        known: changes with their IDs, to recognize them.
    """

    def __init__(self, kept: KnownChanges | None = None, known: Iterable[Change] = ()) -> None:
        self._kept = kept
        self._known: dict[str, KnownChange] = {}
        self._known = {change.id: self._as_known(change) for change in known}

    def name(self, verdicts: Verdicts) -> tuple[Change, ...]:
        """Return all changes in their order, with ID, storages and severity."""
        self._load()
        known, apart = list(self._known.values()), _apart(verdicts)
        order = sorted(
            range(len(verdicts.changes)), key=lambda place: verdicts.changes[place].state != "open"
        )
        changes = [verdicts.changes[place] for place in order]
        opened = [change for change in changes if change.state == "open"]
        ids = recognized(opened, known, apart)
        new = [place for place in range(len(opened)) if place not in ids]
        parts = recognized([opened[place] for place in new], known, apart)
        missing = [change for change in known if change.id not in ids.values()]
        absorbed = set(recognized(opened, missing, apart).values())
        past = recognized(changes[len(opened) :], missing, apart)
        ids |= {len(opened) + place: name for place, name in past.items()}
        named = self._named(changes, ids, verdicts)
        now = {change.id: self._as_known(change) for change in named[: len(opened)]}
        for number, reported in parts.items():  # parts of a change that was reported as a whole
            whole, name = self._known[reported], named[new[number]].id
            now[name] = replace(now[name], notified=whole.notified, notified_at=whole.notified_at)
        moment = max((report.judged_until for report in verdicts.reports), default=0.0)
        over = _over(missing, named[len(opened) :], moment)
        self._keep(now | {name: change for name, change in over.items() if name not in absorbed})
        by_place = dict(zip(order, named, strict=True))
        return tuple(by_place[place] for place in range(len(order)))

    def _named(
        self, changes: Sequence[Change], ids: Mapping[int, str], verdicts: Verdicts
    ) -> list[Change]:
        """Return the changes with ID, storages and severity; `ids`: those known, by position."""
        taken = {*ids.values(), *self._known}
        cases = {verdict.history.of for verdict in verdicts.verdicts if verdict.state.judged}
        judged = _by_storage(cases, verdicts)
        named: list[Change] = []
        for place, change in enumerate(changes):
            identifier = ids.get(place) or _new_id(change, taken)
            taken.add(identifier)
            moved = _by_storage(set(change.cases), verdicts)
            severity = severity_of(change, moved, judged)
            storages = tuple(sorted({storage for _, storage in moved if storage}))
            named.append(replace(change, id=identifier, storages=storages, severity=severity))
        return named

    def _as_known(self, change: Change) -> KnownChange:
        before = self._known.get(change.id)
        return KnownChange(
            id=change.id,
            since=change.begin,
            worse=change.worse,
            gradual=change.slow,
            severity=change.severity,
            cases=frozenset(change.cases),
            text=summary(change),
            notified=before.notified if before else "",
            notified_at=before.notified_at if before else 0.0,
        )

    def _load(self) -> None:
        try:
            if self._kept is not None:
                self._known = {change.id: change for change in self._kept.all()}
        except StoreError as error:
            log.warning("loading change IDs failed", reason=str(error))

    def _keep(self, now: Mapping[str, KnownChange]) -> None:
        changed = [change for name, change in now.items() if self._known.get(name) != change]
        gone, self._known = self._known.keys() - now.keys(), dict(now)
        try:
            if self._kept is not None:
                self._kept.keep(changed, gone)
        except StoreError as error:
            # The verdict stays valid; the next update saves again.
            log.warning("saving change IDs failed", reason=str(error))


def _has_ended(change: Change) -> bool:
    return change.state == "accepted" or change.end is not None


def _over(
    missing: Sequence[KnownChange], closed: Iterable[Change], moment: float
) -> dict[str, KnownChange]:
    """Return the records of changes that are not open now, without those that ended long ago."""
    ended = {change.id: change for change in closed if _has_ended(change)}
    records = {change.id: _missing(change, ended.get(change.id), moment) for change in missing}
    return {
        name: record
        for name, record in records.items()
        if name in ended or record.ended is None or moment - record.ended <= KNOWN_SECONDS
    }


def _missing(change: KnownChange, end: Change | None, moment: float) -> KnownChange:
    """Return the record of a change that is not open now."""
    if change.ended is not None:
        return change
    if end is not None:
        ending: Ending = "accepted" if end.state == "accepted" else "resolved"
        return replace(change, ended=moment, ending=ending)
    since = moment if change.missing is None else change.missing
    if moment - since >= UNCONFIRMED_SECONDS:
        return replace(change, missing=since, ended=moment, ending="unconfirmed")
    return replace(change, missing=since)


def recognized(
    changes: Sequence[Change], known: Sequence[KnownChange], apart: Apart
) -> dict[int, str]:
    """Return position of a change -> id of the known change that it is.

    Both share at least half of the fewer cases, the direction, and about the time; the begin of
    a drift is uncertain. The nearest in time is matched first.
    """
    of_case: dict[str, list[KnownChange]] = {}
    for known_change in known:
        for case in known_change.cases:
            of_case.setdefault(case, []).append(known_change)
    pairs: list[tuple[int, int, int, str]] = []
    for place, change in enumerate(changes):
        near = {one.id: one for case in change.cases for one in of_case.get(case, ())}
        for known_change in near.values():
            common = known_change.cases.intersection(change.cases)
            alike = known_change.worse == change.worse
            if not alike or 2 * len(common) < min(len(known_change.cases), len(change.cases)):
                continue
            moved = _moved(change, known_change, sorted(common), apart)
            if moved <= NEAR_RUNS:
                pairs.append((moved, -len(common), place, known_change.id))
    matches: dict[int, str] = {}
    taken: set[str] = set()
    for _, _, place, name in sorted(pairs):
        if place not in matches and name not in taken:
            matches[place] = name
            taken.add(name)
    return matches


def _moved(change: Change, known_change: KnownChange, common: Sequence[str], apart: Apart) -> int:
    if change.slow or known_change.gradual:
        return 0 if change.slow and known_change.gradual else NEAR_RUNS
    return min(apart(case, change.begin, known_change.since) for case in common)


def _apart(verdicts: Verdicts) -> Apart:
    histories: dict[str, CaseHistory] = {
        verdict.history.of: verdict.history for verdict in verdicts.verdicts
    }

    def apart(case: str, time: float, other: float) -> int:
        history = histories.get(case)
        return 0 if history is None else history.runs_between(time, other)

    return apart


def _new_id(change: Change, taken: set[str]) -> str:
    """Return a short id: the same for the same change, unless another one has it."""
    nodes, cases = " ".join(change.nodes), "|".join(sorted(change.cases))
    what = f"{nodes}|{change.kind}|{change.begin:.0f}|{cases}"
    for attempt in range(len(taken) + 1):
        identifier = hashlib.sha256(f"{what}|{attempt}".encode()).hexdigest()[:ID_LETTERS]
        if identifier not in taken:
            return identifier
    raise AssertionError("more ids exist than are taken")


def _by_storage(cases: Iterable[str], verdicts: Verdicts) -> Counter[NodeStorage]:
    labels = (verdicts.labels[case] for case in cases)
    return Counter((label["node"], label["storage"]) for label in labels)
