"""Gives changes their ids, and knows them again when they are judged anew.

A finding is made afresh by every judging: with more runs its time moves a little, cases join it,
another node shows it too. Whoever was told of it must not be told twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.analysis.case_history import CaseHistory
from pvebench.analysis.together.findings import Finding
from pvebench.judging.change import SEVERITIES, Change, Severity
from pvebench.judging.verdicts import Verdicts

NEAR_RUNS: Final = 10
"""Runs by which the time of a change may have moved since it was told."""
ID_LETTERS: Final = 8
WIDESPREAD: Final = 0.2
"""Share of a storage's cases from which a change is critical."""
LEAST_CASES: Final = 10
"""Cases of a storage from which one can speak of widespread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownChange:
    """What a change is known by.

    Attributes:
        since: seconds since the epoch, as told last.
        worse: whether its first figure moved for the worse.
        slow: whether it came little by little.
        cases: keys.
    """

    id: str
    since: float
    worse: bool
    slow: bool
    cases: frozenset[str]


Apart = Callable[[str, float, float], int]
"""(case's key, one time, another) -> how many runs lie between them."""


class Namer:
    """Names the changes of one judging after the other.

    Args:
        known: changes that were open before.
    """

    def __init__(self, known: Iterable[KnownChange] = ()) -> None:
        self._known = {one.id: one for one in known}

    def name(self, verdicts: Verdicts) -> tuple[Change, ...]:
        """Return the open changes, the weightiest first."""
        findings = verdicts.open_findings
        ids = recognised(findings, list(self._known.values()), _apart(verdicts))
        taken = {*ids.values(), *self._known}
        found: list[Change] = []
        judged = _judged_cases(verdicts)
        for place, finding in enumerate(findings):
            name = ids.get(place) or _new_id(finding, taken)
            taken.add(name)
            found.append(
                Change(
                    id=name,
                    finding=finding,
                    storages=_storages(finding, verdicts),
                    severity=_severity(finding, verdicts, judged),
                )
            )
        self._known = {one.id: _known(one) for one in found}
        return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def recognised(
    findings: Sequence[Finding], known: Sequence[KnownChange], apart: Apart
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


def _moved(finding: Finding, one: KnownChange, common: Sequence[str], apart: Apart) -> int:
    if finding.slow or one.slow:
        return 0 if finding.slow and one.slow else NEAR_RUNS
    return min(apart(case, finding.time, one.since) for case in common)


def _apart(verdicts: Verdicts) -> Apart:
    histories: dict[str, CaseHistory] = {one.history.of: one.history for one in verdicts.verdicts}

    def apart(case: str, one: float, other: float) -> int:
        history = histories.get(case)
        return 0 if history is None else history.runs_between(one, other)

    return apart


def _known(change: Change) -> KnownChange:
    finding = change.finding
    return KnownChange(
        id=change.id,
        since=finding.time,
        worse=finding.moves[0].effect < 0,
        slow=finding.slow,
        cases=frozenset(finding.cases),
    )


def _new_id(finding: Finding, taken: set[str]) -> str:
    """Return a short id: the same for the same finding, as long as no other one has it."""
    what = f"{finding.node}|{finding.kind}|{finding.time:.0f}|{'|'.join(sorted(finding.cases))}"
    for again in range(len(taken) + 1):
        found = hashlib.sha256(f"{what}|{again}".encode()).hexdigest()[:ID_LETTERS]
        if found not in taken:
            return found
    raise AssertionError("there are more ids than those that are taken")


def _storages(finding: Finding, verdicts: Verdicts) -> tuple[str, ...]:
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


def _severity(finding: Finding, verdicts: Verdicts, judged: Mapping[Place, int]) -> Severity:
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
