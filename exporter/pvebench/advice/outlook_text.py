"""Outlook of an upgrade as text and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pvebench.advice.outlook import SIZE, Applies, CaseNeed, Effect, Expected, Outlook
from pvebench.advice.packages import NAMES
from pvebench.analysis.verdict import count_text
from pvebench.model.environment import version_in
from pvebench.model.units import show_seconds

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
    for fact in outlook.unknown:
        name = NAMES.get(fact, fact)
        yield f"The running version of {name} is unknown: pass --from {name}=VERSION"
    for effect, heading in HEADINGS.items():
        found = [one for one in outlook.expected if one.effect is effect]
        hits = [one for one in found if one.applies is not Applies.NO]
        if found:
            yield f"{heading}:"
            yield from (f"- {issue_text(one)}" for one in hits)
        if len(hits) < len(found):
            others = ", ".join(one.issue.id for one in found if one.applies is Applies.NO)
            yield f"- no configuration in use has what these need: {others}"
    if not outlook.expected:
        yield "No known issue starts or ends between these versions."
    yield from baseline_lines(outlook)


def _version_texts(outlook: Outlook) -> Iterator[str]:
    for fact, version in outlook.target.items():
        before = version_in(outlook.running, fact)
        if fact in NAMES and before != version:
            yield f"{NAMES[fact]} {before or 'unknown'} -> {version}"


def issue_text(one: Expected) -> str:
    """Return an issue with its fix, relevance, workaround and source."""
    issue, applies = one.issue, _APPLIES[one.applies]
    names = ", ".join(one.cases[:_LISTED])
    more = f" and {len(one.cases) - _LISTED} more" if len(one.cases) > _LISTED else ""
    parts = [
        f"{issue.id} ({issue.kind.replace('_', ' ')}): {issue.title}",
        f"{applies}: {names}{more}" if names else applies,
        _fix_text(one),
        f"workaround: {issue.workaround}" if issue.workaround else "",
        f"source: {issue.source}",
    ]
    return "; ".join(part for part in parts if part)


def _fix_text(one: Expected) -> str:
    if one.affected.fixed_in or one.affected.before:
        name = NAMES.get(one.affected.fact, one.affected.fact)
        return f"fixed in {one.affected.fixed_in or f'{name} {one.affected.before}'}"
    return "no fix known"


def baseline_lines(outlook: Outlook) -> Iterator[str]:
    """Yield what the baseline can show after the upgrade, and what is missing."""
    cases = outlook.baseline
    if not cases:
        yield "Baseline: none. Measure first: without results, no change can be detected."
        return
    ready = [one for one in cases if one.needed is not None and one.runs >= one.needed]
    unknown = [one for one in cases if one.size is None]
    noisy = [one for one in cases if one.size is not None and one.needed is None]
    short = [one for one in cases if one.needed is not None and one.runs < one.needed]
    total = count_text(len(cases), "case")
    yield f"Baseline: {len(ready)} of {total} can show a change of {SIZE:.0%} or more."
    if short:
        longest = max(short, key=lambda one: one.seconds)
        yield (
            f"Measure {_duration(longest)} more to see {SIZE:.0%} in "
            f"{count_text(len(short), 'more case')}; the last is {longest.name} "
            f"({longest.runs} of {longest.needed} runs)."
        )
    if noisy:
        worst = max(noisy, key=lambda one: one.size or 0.0)
        yield f"Too noisy for {SIZE:.0%}: {count_text(len(noisy), 'case')}, such as {worst.name}."
    if unknown:
        yield f"Noise unknown, too few runs: {count_text(len(unknown), 'case')}."


def _duration(need: CaseNeed) -> str:
    return show_seconds(need.seconds) if need.seconds else "some cycles"


def outlook_data(outlook: Outlook) -> dict[str, Any]:
    """Return an outlook as plain data."""
    return {
        "node": outlook.node,
        "running": {NAMES[fact]: text for fact, text in outlook.running.items() if fact in NAMES},
        "target": {NAMES[fact]: text for fact, text in outlook.target.items() if fact in NAMES},
        "unknown": [NAMES.get(fact, fact) for fact in outlook.unknown],
        "issues": [
            {
                "id": one.issue.id,
                "effect": str(one.effect),
                "applies": str(one.applies),
                "kind": one.issue.kind,
                "title": one.issue.title,
                "configurations": list(one.cases),
                "fixed_in": one.affected.fixed_in or one.affected.before,
                "workaround": one.issue.workaround,
                "source": one.issue.source,
            }
            for one in outlook.expected
        ],
        "baseline": [
            {
                "case": one.name,
                "runs": one.runs,
                "needed": one.needed,
                "detectable_ratio": one.size,
                "seconds": one.seconds,
            }
            for one in outlook.baseline
        ],
    }
