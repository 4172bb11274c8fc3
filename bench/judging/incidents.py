"""Known upgrade regressions as synthetic fleets, to test whether each is recognized.

The affected metrics are those of the source. Without a size in the source, the effect has the
typical size of its class, see DEFAULTS: then only class and name are tested, not the size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from judging.sampling import Row, Setup
from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.change import Change
from pvebench.analysis.judge import Judge, Material
from pvebench.config.known_issues import load_known_issues
from pvebench.model.environment import KnownIssue, Version
from pvebench.model.run_metrics import JUDGED
from pvebench_lab.cli.judge import judged
from testing.noise import stream

DEFAULTS: Final[Mapping[str, float]] = {
    "slower": 0.8,
    "implausible": 8.0,
    "stall": 20.0,
    "cost": 1.3,
    "operation": 1.5,
}
SIDE: Final[Mapping[str, float]] = {"latency_p99": 1.5, "cpu_cost": 1.3, "idle_cost": 1.3}
"""Factor for metrics other than the first of an issue."""
NOISE: Final = {"longest_stall": 0.3, "latency_p99": 0.06}
BEFORE: Final = 45
AFTER: Final = 5
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "bus": ("virtio", "scsi", "sata"),
    "cache": ("none", "writeback"),
    "iothread": ("0", "1"),
    "rw": ("randread", "randwrite", "write"),
}


def cases(issue: KnownIssue) -> list[dict[str, str]]:
    """Return 36 cases or more, including those that the issue requires."""
    choices = {
        key: tuple(sorted({*values, *issue.options.get(key, ())}))
        for key, values in _CHOICES.items()
    }
    more = {key: (values[0],) for key, values in issue.options.items() if key not in choices}
    axes = {**choices, **more}
    return [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]


def environments(issue: KnownIssue) -> tuple[dict[str, str], dict[str, str]]:
    """Return the facts before and after an upgrade to the first affected version."""
    place = issue.affected[0]
    lower = "0~" if Version(place.since) <= Version("0") else "0.0.1"
    return {place.fact: lower}, {place.fact: place.since}


def effect(issue: KnownIssue, figure: str, labels: Mapping[str, str]) -> float:
    """Return the factor for a metric of a case."""
    hit = all(labels.get(key) in values for key, values in issue.options.items())
    if figure not in issue.moves or not hit:
        return 1.0
    if figure != issue.moves[0]:
        return 1 / SIDE[figure] if issue.kind == "implausible" else SIDE[figure]
    return issue.ratio or DEFAULTS[issue.kind]


def class_of(change: Change) -> str:
    """Return the class of a change, in the words of known issues."""
    first = change.moves[0]
    if change.implausible or first.figure.kind != "speed":
        return "implausible" if change.implausible else first.figure.kind
    return "slower" if first.effect < 0 else "faster"


def material(issue: KnownIssue, rng: np.random.Generator) -> Material:
    """Return a fleet that got the issue with its last upgrade."""
    figures = sorted({"throughput", *issue.moves})
    histories = []
    for place, labels in enumerate(cases(issue)):
        for name in figures:
            noise = rng.normal(0, NOISE.get(name, 0.03), BEFORE + AFTER)
            values = 100.0 * np.exp(noise)
            values[BEFORE:] *= effect(issue, name, labels)
            points = GoodRuns(
                GoodRun(86400.0 * run + place, "old" if run < BEFORE else "new", float(value))
                for run, value in enumerate(values)
            )
            key = "/".join(labels.values())
            histories.append(
                CaseHistory(
                    case=key, of=key, name=key, figure=JUDGED[name], labels=labels, points=points
                )
            )
    before, after = environments(issue)
    timeline = sorted(
        {(point.time, point.environment) for history in histories for point in history.points}
    )
    return Material(
        node="pve", histories=histories, timeline=timeline, facts={"old": before, "new": after}
    )


def recognized(rng: np.random.Generator) -> list[tuple[KnownIssue, bool, bool, str]]:
    """Return for every issue: whether its class and its name are correct, and the class."""
    issues = [issue for issue in load_known_issues() if issue.id.startswith("R") and issue.moves]
    results: list[tuple[KnownIssue, bool, bool, str]] = []
    for issue in issues:
        changes = judged(material(issue, rng), Judge(issues)).changes
        change = max(changes, key=lambda change: len(change.cases), default=None)
        named = change is not None and issue.id in [match.issue.id for match in change.issues]
        results.append(
            (issue, _right(issue, change), named, class_of(change) if change else "nothing")
        )
    return results


def _right(issue: KnownIssue, change: Change | None) -> bool:
    if change is None:
        return False
    first = change.moves[0]
    worse = first.effect < 0 or issue.kind == "implausible"
    return class_of(change) == issue.kind and worse and math.isfinite(first.effect)


def incident_rows(setup: Setup) -> Iterator[Row]:
    """Yield whether the known regressions are recognized."""
    for seed in setup.seeds:
        results = recognized(stream(seed, "incidents"))
        wrong = [f"{issue.id} reported as {kind}" for issue, right, _, kind in results if not right]
        unnamed = [issue.id for issue, _, named, _ in results if not named]
        count = len(results)
        for name, missed in (("correct class", wrong), ("named", unnamed)):
            text = ", not ".join([f"{count - len(missed)} of {count}", *missed])
            yield Row(f"known regressions, {name}, seed {seed}", text, f"{count}", not missed)
