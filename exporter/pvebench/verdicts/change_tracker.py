"""Change IDs: recognize each change in later updates.

Every update detects all changes: with more runs the time of a change moves a little, cases join
it, another node shows it too. It must keep its id, so that it is reported once.
"""

from __future__ import annotations

import hashlib
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
        opened = [change for change in verdicts.changes if change.state == "open"]
        apart = _apart(verdicts)
        changes = list(self._known.values())
        ids = recognized(opened, changes, apart)
        rest = [place for place in range(len(opened)) if place not in ids]
        parts = recognized([opened[place] for place in rest], changes, apart)
        named = self._named(opened, ids, verdicts)
        now = {change.id: self._as_known(change) for change in named}
        for number, reported in parts.items():  # parts of a change that was reported as a whole
            whole, name = self._known[reported], named[rest[number]].id
            now[name] = replace(now[name], notified=whole.notified, notified_at=whole.notified_at)
        missing = [known_change for known_change in changes if known_change.id not in now]
        over = [change for change in verdicts.changes if change.state != "open"]
        past = recognized(over, missing, apart)
        closed = iter(self._named(over, past, verdicts, taken=now))
        self._update(now, missing, opened, verdicts, apart)
        in_order = iter(named)
        return tuple(
            next(in_order if change.state == "open" else closed) for change in verdicts.changes
        )

    def _named(
        self,
        changes: Sequence[Change],
        ids: Mapping[int, str],
        verdicts: Verdicts,
        taken: Iterable[str] = (),
    ) -> list[Change]:
        """Return the changes with ID, storages and severity; `ids`: those known, by position."""
        taken, judged = {*ids.values(), *self._known, *taken}, _judged_cases(verdicts)
        named: list[Change] = []
        for place, change in enumerate(changes):
            identifier = ids.get(place) or _new_id(change, taken)
            taken.add(identifier)
            moved = _by_place(set(change.cases), verdicts.labels)
            named.append(
                replace(
                    change,
                    id=identifier,
                    storages=tuple(sorted({storage for _, storage in moved if storage})),
                    severity=severity_of(change, moved, judged),
                )
            )
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

    def _update(
        self,
        now: Mapping[str, KnownChange],
        missing: Sequence[KnownChange],
        opened: Sequence[Change],
        verdicts: Verdicts,
        apart: Apart,
    ) -> None:
        """Keep the open changes; the others have ended, joined another one, or are missing."""
        moment = max((report.judged_until for report in verdicts.reports), default=0.0)
        absorbed = set(recognized(opened, missing, apart).values())
        closed = [change for change in verdicts.changes if _has_ended(change)]
        ends = {name: closed[place] for place, name in recognized(closed, missing, apart).items()}
        later = {change.id: _missing(change, ends.get(change.id), moment) for change in missing}
        gone = {
            change.id
            for change in later.values()
            if change.id in absorbed or (change.id not in ends and _long_over(change, moment))
        }
        after = {**now, **{name: change for name, change in later.items() if name not in gone}}
        self._keep(
            [change for name, change in after.items() if self._known.get(name) != change], gone
        )
        self._known = after

    def _load(self) -> None:
        try:
            if self._kept is not None:
                self._known = {change.id: change for change in self._kept.all()}
        except StoreError as error:
            log.warning("loading change IDs failed", reason=str(error))

    def _keep(self, changed: Sequence[KnownChange], gone: Iterable[str]) -> None:
        try:
            if self._kept is not None:
                self._kept.keep(changed, gone)
        except StoreError as error:
            # The verdict stays valid; the next update saves again.
            log.warning("saving change IDs failed", reason=str(error))


def _has_ended(change: Change) -> bool:
    return change.state == "accepted" or change.end is not None


def _long_over(change: KnownChange, moment: float) -> bool:
    return change.ended is not None and moment - change.ended > KNOWN_SECONDS


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


def _judged_cases(verdicts: Verdicts) -> dict[NodeStorage, int]:
    cases = {verdict.history.of for verdict in verdicts.verdicts if verdict.state.judged}
    return _by_place(cases, verdicts.labels)


def _by_place(
    cases: Iterable[str], labels: Mapping[str, Mapping[str, str]]
) -> dict[NodeStorage, int]:
    counts: dict[NodeStorage, int] = {}
    for case in cases:
        place = (labels[case]["node"], labels[case]["storage"])
        counts[place] = counts.get(place, 0) + 1
    return counts
