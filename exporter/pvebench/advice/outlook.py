"""Outlook of an upgrade: known issues between two sets of versions, and the baseline. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pvebench.advice.gate_statistic import CHANCE, TOLERANCE, enough_runs
from pvebench.advice.packages import NAMES
from pvebench.analysis.arrays import np
from pvebench.analysis.difference import Difference, difference
from pvebench.model.definition import Definition
from pvebench.model.environment import Affected, KnownIssue, storage_fact, version_in
from pvebench.model.units import count_text, show_seconds
from pvebench.store.live_results import Trend, View
from pvebench.verdicts.ranking import shown_definitions, totals

LEAST_RUNS: Final = 4
"""Minimum runs to estimate the noise of a case."""
_ORIGIN: Final = "0"
"""`since` of an issue whose first version is unknown."""


class Effect(StrEnum):
    """What an upgrade does with a known issue."""

    GET = "get"
    KEEP = "keep"
    """Both the running and the target version have it."""
    UNKNOWN = "unknown"
    """The target has it; the running version is unknown."""
    LOSE = "lose"
    FIXED = "fixed"
    """The target is a version with the fix; which versions have the issue is not known."""


class Applies(StrEnum):
    """Whether the configurations in use have what an issue needs."""

    YES = "yes"
    POSSIBLE = "possible"
    """An option is unknown, or the issue needs none."""
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A known issue in the outlook.

    Attributes:
        cases: names of the configurations in use that have all that it needs.
    """

    issue: KnownIssue
    effect: Effect
    affected: Affected
    applies: Applies
    cases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseNeed:
    """The baseline of one case.

    Attributes:
        runs: in the current environment.
        needed: to decide on it in the gate; None: no practical number, or noise unknown.
        size: smallest change that `runs` runs on each side show; None: noise unknown.
        seconds: time until the needed runs at the current interval; 0: available.
    """

    name: str
    runs: int
    needed: int | None
    size: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Outlook of an upgrade of one node.

    Attributes:
        running, changes: fact -> version.
    """

    node: str
    running: Mapping[str, str]
    changes: Mapping[str, str]
    expected: tuple[Expected, ...]
    baseline: tuple[CaseNeed, ...]

    @property
    def target(self) -> dict[str, str]:
        """Fact -> version after the upgrade."""
        return {**self.running, **self.changes}

    @property
    def unknown(self) -> list[str]:
        """The packages of the upgrade whose running version is unknown."""
        facts = (fact for fact in self.changes if not version_in(self.running, fact))
        return [NAMES.get(fact, fact) for fact in facts]


def outlook(
    node: str,
    running: Mapping[str, str],
    changes: Mapping[str, str],
    issues: Iterable[KnownIssue],
    view: View,
    counts: Mapping[str, int],
) -> Outlook:
    """Return the outlook of a node.

    Args:
        running: facts of its environment, possibly incomplete.
        changes: facts that the upgrade changes.
        counts: case key -> good runs in the current environment.
    """
    cases = {key: case for key, case in shown_definitions(view).items() if case.node == node}
    expected = expected_issues(issues, running, changes, list(cases.values()))
    return Outlook(
        node=node,
        running=running,
        changes=changes,
        expected=expected,
        baseline=tuple(
            _need(key, case, view, counts.get(key, 0)) for key, case in sorted(cases.items())
        ),
    )


def expected_issues(
    issues: Iterable[KnownIssue],
    running: Mapping[str, str],
    changes: Mapping[str, str],
    cases: Sequence[Definition],
) -> tuple[Expected, ...]:
    """Return the issues that an upgrade concerns; those of the cases in use first."""
    expectations = (_expected(issue, running, changes, cases) for issue in issues)
    effects, uses = list(Effect), list(Applies)
    return tuple(
        sorted(
            (expected for expected in expectations if expected is not None),
            key=lambda it: (effects.index(it.effect), uses.index(it.applies)),
        )
    )


def _expected(
    issue: KnownIssue,
    running: Mapping[str, str],
    changes: Mapping[str, str],
    cases: Sequence[Definition],
) -> Expected | None:
    """Return what the upgrade does with an issue; None: nothing, or a fact is unknown."""
    old, new = issue.holds(running), issue.holds({**running, **changes})
    affected = new or old
    if affected is None or not any(
        fact in changes for span in issue.affected for fact in span.facts
    ):
        return None
    if new is None:
        effect = Effect.FIXED if affected.since == _ORIGIN else Effect.LOSE
    elif old is None and not all(version_in(running, fact) for fact in new.facts):
        effect = Effect.UNKNOWN
    else:
        effect = Effect.KEEP if old else Effect.GET
    applies, names = _applies(issue, cases, running)
    return Expected(issue=issue, effect=effect, affected=affected, applies=applies, cases=names)


def _applies(
    issue: KnownIssue, cases: Sequence[Definition], facts: Mapping[str, str]
) -> tuple[Applies, tuple[str, ...]]:
    uses = [(applies_to(issue, _labels(case, facts)), case.scenario) for case in cases]
    hit = dict.fromkeys(name for use, name in uses if use is Applies.YES)
    if hit:
        return Applies.YES, tuple(hit)
    possible = not cases or any(use is Applies.POSSIBLE for use, _ in uses)
    return (Applies.POSSIBLE if possible else Applies.NO), ()


def applies_to(issue: KnownIssue, labels: Mapping[str, str]) -> Applies:
    """Return whether a disk with these options has what an issue needs."""
    known = [(labels.get(option, ""), values) for option, values in issue.options.items()]
    if any(value and value not in values for value, values in known):
        return Applies.NO
    return Applies.YES if known and all(value for value, _ in known) else Applies.POSSIBLE


def _labels(case: Definition, facts: Mapping[str, str]) -> dict[str, str]:
    load, plugin = case.parameters.get("rw", ""), facts.get(storage_fact(case.storage, "type"), "")
    return {**case.options, **case.labels, "rw": str(load), "plugin": plugin}


def _need(key: str, case: Definition, view: View, runs: int) -> CaseNeed:
    trend = view.trends.get(key, Trend())
    values = totals(trend) if trend.points else ()
    enough = len(values) >= LEAST_RUNS and min(values) > 0
    needed = runs_needed(values) if enough else None
    return CaseNeed(
        name=case.name,
        runs=runs,
        needed=needed,
        size=detectable(values, max(LEAST_RUNS, runs)) if enough else None,
        seconds=max(0, (needed or 0) - runs) * _interval(trend),
    )


def _interval(trend: Trend) -> float:
    """Return the seconds between the newest runs."""
    times = sorted({point.finished.timestamp() for point in trend.points})
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0


def runs_needed(values: Sequence[float]) -> int | None:
    """Return the runs on each side of an upgrade with which the gate decides on a case alone.

    Args:
        values: positive results of one environment, oldest first; at least four.

    Returns:
        None: too many.
    """
    # From its tolerance, no loss and one of twice the tolerance are at least this far.
    return enough_runs(_halves(values), -math.log1p(-TOLERANCE), CHANCE / 4)


def detectable(values: Sequence[float], runs: int) -> float:
    """Return the smallest relative change that so many runs on each side make significant."""
    return math.expm1(_halves(values).reach(runs, runs))


def _halves(values: Sequence[float]) -> Difference:
    logs = np.log(np.asarray(values, dtype=np.float64))
    return difference(logs[: len(logs) // 2], logs[len(logs) // 2 :])


# --- Text

HEADINGS: Final = {
    Effect.GET: "Issues that you would get",
    Effect.KEEP: "Issues that you would keep",
    Effect.UNKNOWN: "Issues of the target; the running version is unknown",
    Effect.LOSE: "Issues that the update removes",
    Effect.FIXED: "Issues that the update fixes; which versions have them is unknown",
}
_APPLIES: Final = {
    Applies.YES: "hits a configuration in use",
    Applies.POSSIBLE: "may apply",
    Applies.NO: "hits no configuration in use",
}
_LISTED: Final = 3
"""Maximum configurations named per issue."""


def outlook_lines(outlook: Outlook) -> Iterator[str]:
    """Yield the lines of an outlook."""
    yield f"{outlook.node}: {'; '.join(_version_texts(outlook))}"
    for name in outlook.unknown:
        yield f"The running version of {name} is unknown: pass --from {name}=VERSION"
    for effect, heading in HEADINGS.items():
        expectations = [expected for expected in outlook.expected if expected.effect is effect]
        hits = [expected for expected in expectations if expected.applies is not Applies.NO]
        if expectations:
            yield f"{heading}:"
            yield from (f"- {issue_text(hit)}" for hit in hits)
        if others := [it.issue.id for it in expectations if it.applies is Applies.NO]:
            yield f"- no configuration in use has what these need: {', '.join(others)}"
    if not outlook.expected:
        yield "No known issue starts or ends between these versions."
    yield from baseline_lines(outlook)


def _version_texts(outlook: Outlook) -> Iterator[str]:
    for fact, version in outlook.target.items():
        before = version_in(outlook.running, fact)
        if fact in NAMES and before != version:
            yield f"{NAMES[fact]} {before or 'unknown'} -> {version}"


def issue_text(expected: Expected) -> str:
    """Return an issue with its fix, relevance, workaround and source."""
    issue, applies = expected.issue, _APPLIES[expected.applies]
    names = ", ".join(expected.cases[:_LISTED])
    more = f" and {len(expected.cases) - _LISTED} more" if len(expected.cases) > _LISTED else ""
    parts = [
        f"{issue.id} ({issue.kind.replace('_', ' ')}): {issue.title}",
        f"{applies}: {names}{more}" if names else applies,
        _fix_text(expected),
        f"workaround: {issue.workaround}" if issue.workaround else "",
        f"source: {issue.source}",
    ]
    return "; ".join(part for part in parts if part)


def _fix_text(expected: Expected) -> str:
    fix = expected.affected.fix
    if fix.fixed_in or fix.before:
        return f"fixed in {fix.fixed_in or f'{NAMES.get(fix.fact, fix.fact)} {fix.before}'}"
    return "no fix known"


def baseline_lines(outlook: Outlook) -> Iterator[str]:
    """Yield how far the baseline suffices for the gate without peers, and what is missing."""
    cases = outlook.baseline
    if not cases:
        yield "Baseline: none. Measure first: without results, no change can be detected."
        return
    needs = [(case, case.needed) for case in cases if case.needed is not None]
    short = [case for case, needed in needs if case.runs < needed]
    total = count_text(len(cases), "case")
    enough, gate = len(needs) - len(short), f"the gate (tolerance {TOLERANCE:.0%})"
    yield f"Baseline: {enough} of {total} can be decided by {gate}, with as many runs after."
    if short:
        longest = max(short, key=lambda case: case.seconds)
        yield (
            f"Measure {show_seconds(longest.seconds) if longest.seconds else 'some cycles'} more "
            f"to decide {count_text(len(short), 'more case')}; the last is {longest.name} "
            f"({longest.runs} of {longest.needed} runs)."
        )
    yield from _unready_lines([case for case in cases if case.needed is None])


def _unready_lines(cases: Sequence[CaseNeed]) -> Iterator[str]:
    if noisy := [case for case in cases if case.size is not None]:
        worst = max(noisy, key=lambda case: case.size or 0.0)
        count = count_text(len(noisy), "case")
        yield f"Too noisy for the gate: {count}, such as {worst.name}; raise `runtime`."
    if unknown := len(cases) - len(noisy):
        yield f"Noise unknown, too few runs: {count_text(unknown, 'case')}."


def outlook_data(outlook: Outlook) -> dict[str, Any]:
    """Return an outlook as plain data."""
    return {
        "node": outlook.node,
        "running": {NAMES[fact]: text for fact, text in outlook.running.items() if fact in NAMES},
        "target": {NAMES[fact]: text for fact, text in outlook.target.items() if fact in NAMES},
        "unknown": outlook.unknown,
        "issues": [
            {
                "id": expected.issue.id,
                "effect": str(expected.effect),
                "applies": str(expected.applies),
                "kind": expected.issue.kind,
                "title": expected.issue.title,
                "configurations": list(expected.cases),
                "fixed_in": expected.affected.fix.fixed_in or expected.affected.fix.before,
                "workaround": expected.issue.workaround,
                "source": expected.issue.source,
            }
            for expected in outlook.expected
        ],
        "baseline": [
            {
                "case": need.name,
                "runs": need.runs,
                "needed": need.needed,
                "detectable_ratio": need.size,
                "seconds": need.seconds,
            }
            for need in outlook.baseline
        ],
    }
