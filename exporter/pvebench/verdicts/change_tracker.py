"""Gives changes their ids, and knows them again when they are judged anew.

A finding is made afresh by every judging: with more runs its time moves a little, cases join it,
another node shows it too. Whoever was told of it must not be told twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from pvebench.analysis.case_history import CaseHistory
from pvebench.analysis.change import Change
from pvebench.errors import StoreError
from pvebench.store import Changes, Ending, KnownChange
from pvebench.verdicts.verdicts import SEVERITIES, OpenChange, Severity, Verdicts

log = structlog.get_logger()

NEAR_RUNS: Final = 10
"""Runs by which the time of a change may have moved since it was told."""
ID_LETTERS: Final = 8
UNSAID_SECONDS: Final = 86400.0
"""How long a change may be doubted again before it is taken for none."""
KNOWN_SECONDS: Final = 30 * 86400.0
"""How long one that is over is known again, should it return."""
WIDESPREAD: Final = 0.2
"""Share of a storage's cases from which a change is critical."""
LEAST_CASES: Final = 10
"""Cases of a storage from which one can speak of widespread."""


Apart = Callable[[str, float, float], int]
"""(case's key, one time, another) -> how many runs lie between them."""


class ChangeTracker:
    """Names the changes of one judging after the other, and notes which are open no more.

    Args:
        kept: where what is known of them outlasts the process; None: it is forgotten with it.
    """

    def __init__(self, kept: Changes | None = None) -> None:
        self._kept = kept
        self._known: dict[str, KnownChange] = {}

    def name(self, verdicts: Verdicts) -> tuple[OpenChange, ...]:
        """Return the open changes, the weightiest first."""
        self._load()
        findings = verdicts.open_findings
        apart = _apart(verdicts)
        known = list(self._known.values())
        ids = recognised(findings, known, apart)
        rest = [place for place in range(len(findings)) if place not in ids]
        parts = recognised([findings[place] for place in rest], known, apart)
        found = self._changes(findings, ids, verdicts)
        now = {one.id: self._known_again(one) for one in found}
        for number, place in enumerate(rest):
            if number in parts:  # of one that was told as a whole
                told = self._known[parts[number]].told
                now[found[place].id] = replace(now[found[place].id], told=told)
        missing = [one for one in known if one.id not in now]
        self._take(now, missing, findings, verdicts, apart)
        return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))

    def _changes(
        self, findings: Sequence[Change], ids: Mapping[int, str], verdicts: Verdicts
    ) -> list[OpenChange]:
        taken, judged = {*ids.values(), *self._known}, _judged_cases(verdicts)
        found: list[OpenChange] = []
        for place, finding in enumerate(findings):
            name = ids.get(place) or _new_id(finding, taken)
            taken.add(name)
            storages, severity = _storages(finding, verdicts), _severity(finding, verdicts, judged)
            found.append(OpenChange(id=name, finding=finding, storages=storages, severity=severity))
        return found

    def _known_again(self, change: OpenChange) -> KnownChange:
        finding, before = change.finding, self._known.get(change.id)
        return KnownChange(
            id=change.id,
            since=finding.time,
            worse=finding.moves[0].effect < 0,
            slow=finding.slow,
            severity=change.severity,
            cases=frozenset(finding.cases),
            text=change.summary,
            told=before.told if before else "",
        )

    def _take(
        self,
        now: Mapping[str, KnownChange],
        missing: Sequence[KnownChange],
        findings: Sequence[Change],
        verdicts: Verdicts,
        apart: Apart,
    ) -> None:
        """Take over what is open now; what is not is over, told with another, or missing."""
        moment = max((report.judged_until for report in verdicts.reports), default=0.0)
        absorbed = set(recognised(findings, missing, apart).values())
        closed = [one for one in verdicts.findings if one.accepted or one.over]
        ends = {name: closed[place] for place, name in recognised(closed, missing, apart).items()}
        later = {one.id: _missing(one, ends.get(one.id), moment) for one in missing}
        gone = {
            one.id
            for one in later.values()
            if one.id in absorbed or (one.ended is not None and moment - one.ended > KNOWN_SECONDS)
        }
        after = {**now, **{name: one for name, one in later.items() if name not in gone}}
        self._keep([one for name, one in after.items() if self._known.get(name) != one], gone)
        self._known = after

    def _load(self) -> None:
        try:
            if self._kept is not None:
                self._known = {one.id: one for one in self._kept.all()}
        except StoreError as error:
            log.warning("changes are known by this process's memory only", reason=str(error))

    def _keep(self, changed: Sequence[KnownChange], gone: Iterable[str]) -> None:
        try:
            if self._kept is not None:
                self._kept.keep(changed, gone)
        except StoreError as error:
            # The verdict holds all the same; with the next one it is tried again.
            log.warning("what is known of changes is not kept", reason=str(error))


def _missing(one: KnownChange, end: Change | None, moment: float) -> KnownChange:
    """Return what is known of a change that is not open now."""
    if one.ended is not None:
        return one
    if end is not None:
        ending: Ending = "accepted" if end.accepted else "over"
        return replace(one, ended=moment, ending=ending)
    since = moment if one.missing is None else one.missing
    if moment - since >= UNSAID_SECONDS:
        return replace(one, missing=since, ended=moment, ending="unsaid")
    return replace(one, missing=since)


def recognised(
    findings: Sequence[Change], known: Sequence[KnownChange], apart: Apart
) -> dict[int, str]:
    """Return place of a finding -> id of the change that it is, of those that are known.

    They have at least half of the fewer cases in common, go the same way, and are about as old;
    how old a slow one is says little. The nearest in time is taken first.
    """
    of_case: dict[str, list[KnownChange]] = {}
    for one in known:
        for case in one.cases:
            of_case.setdefault(case, []).append(one)
    pairs: list[tuple[int, int, int, str]] = []
    for place, finding in enumerate(findings):
        near = {one.id: one for case in finding.cases for one in of_case.get(case, ())}
        for one in near.values():
            common = one.cases.intersection(finding.cases)
            alike = one.worse == (finding.moves[0].effect < 0)
            if not alike or 2 * len(common) < min(len(one.cases), len(finding.cases)):
                continue
            moved = _moved(finding, one, sorted(common), apart)
            if moved <= NEAR_RUNS:
                pairs.append((moved, -len(common), place, one.id))
    found: dict[int, str] = {}
    taken: set[str] = set()
    for _, _, place, name in sorted(pairs):
        if place not in found and name not in taken:
            found[place] = name
            taken.add(name)
    return found


def _moved(finding: Change, one: KnownChange, common: Sequence[str], apart: Apart) -> int:
    if finding.slow or one.slow:
        return 0 if finding.slow and one.slow else NEAR_RUNS
    return min(apart(case, finding.time, one.since) for case in common)


def _apart(verdicts: Verdicts) -> Apart:
    histories: dict[str, CaseHistory] = {one.history.of: one.history for one in verdicts.verdicts}

    def apart(case: str, one: float, other: float) -> int:
        history = histories.get(case)
        return 0 if history is None else history.runs_between(one, other)

    return apart


def _new_id(finding: Change, taken: set[str]) -> str:
    """Return a short id: the same for the same finding, as long as no other one has it."""
    what = f"{finding.node}|{finding.kind}|{finding.time:.0f}|{'|'.join(sorted(finding.cases))}"
    for again in range(len(taken) + 1):
        found = hashlib.sha256(f"{what}|{again}".encode()).hexdigest()[:ID_LETTERS]
        if found not in taken:
            return found
    raise AssertionError("there are more ids than those that are taken")


def _storages(finding: Change, verdicts: Verdicts) -> tuple[str, ...]:
    return tuple(sorted({verdicts.labels[case]["storage"] for case in finding.cases}))


Place = tuple[str, str]
"""Node and storage."""


def _judged_cases(verdicts: Verdicts) -> dict[Place, int]:
    cases = {one.history.of for one in verdicts.verdicts if one.state.judged}
    return _by_place(cases, verdicts.labels)


def _by_place(cases: Iterable[str], labels: Mapping[str, Mapping[str, str]]) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for case in cases:
        place = (labels[case]["node"], labels[case]["storage"])
        found[place] = found.get(place, 0) + 1
    return found


def _severity(finding: Change, verdicts: Verdicts, judged: Mapping[Place, int]) -> Severity:
    if not finding.regression:
        return "info"
    if finding.kind not in {"slower", "stall"}:
        return "warning"
    moved = _by_place(set(finding.cases), verdicts.labels)
    widespread = any(
        judged.get(place, 0) >= LEAST_CASES and count > WIDESPREAD * judged[place]
        for place, count in moved.items()
    )
    return "critical" if widespread else "warning"
