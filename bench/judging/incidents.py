"""The known upgrade regressions as synthetic fleets: is each recognised for what it was?

What moved is what the source says. Where it gives no number, an effect of that class's usual
size is put in, see DEFAULTS: the question is then the class and the name, not the size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from pvebench.analysis.case_history import FIGURES, CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.change import Change
from pvebench.analysis.judge import Judge, Material
from pvebench.config.known_issues import load_known_issues
from pvebench.model.environment import KnownIssue, Version

DEFAULTS: Final[Mapping[str, float]] = {
    "slower": 0.8,
    "implausible": 8.0,
    "stall": 20.0,
    "cost": 1.3,
    "operation": 1.5,
    "accounting": 8.0,
}
SIDE: Final[Mapping[str, float]] = {"latency_p99": 1.5, "cpu_cost": 1.3, "idle_cost": 1.3}
"""What a figure that is not the first of its issue is multiplied by."""
NOISE: Final = {"longest_stall": 0.3, "latency_p99": 0.06, "io_pressure": 0.3}
BEFORE: Final = 45
AFTER: Final = 5
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "bus": ("virtio", "scsi", "sata"),
    "cache": ("none", "writeback"),
    "iothread": ("0", "1"),
    "rw": ("randread", "randwrite", "write"),
}


def cases(issue: KnownIssue) -> list[dict[str, str]]:
    """Return 36 cases or more, with those among them that the issue needs."""
    choices = {
        key: tuple(sorted({*values, *issue.options.get(key, ())}))
        for key, values in _CHOICES.items()
    }
    more = {key: (values[0],) for key, values in issue.options.items() if key not in choices}
    axes = {**choices, **more}
    return [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]


def environments(issue: KnownIssue) -> tuple[dict[str, str], dict[str, str]]:
    """Return the facts before and after an upgrade into the range of versions that have it."""
    place = issue.affected[0]
    lower = "0~" if Version(place.since) <= Version("0") else "0.0.1"
    return {place.fact: lower}, {place.fact: place.since}


def effect(issue: KnownIssue, figure: str, labels: Mapping[str, str]) -> float:
    """Return what a figure of a case is multiplied by."""
    hit = all(labels.get(key) in values for key, values in issue.options.items())
    if figure not in issue.moves or not hit:
        return 1.0
    if figure != issue.moves[0]:
        return 1 / SIDE[figure] if issue.kind == "implausible" else SIDE[figure]
    ratio = issue.ratio or DEFAULTS[issue.kind]
    return 1 / ratio if figure == "trimmed_bytes" else ratio


def material(issue: KnownIssue, rng: np.random.Generator) -> Material:
    """Return a fleet that met the issue at its last upgrade."""
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
                    case=key, of=key, name=key, figure=FIGURES[name], labels=labels, points=points
                )
            )
    before, after = environments(issue)
    timeline = sorted(
        {(point.time, point.environment) for one in histories for point in one.points}
    )
    return Material(
        node="pve", histories=histories, timeline=timeline, facts={"old": before, "new": after}
    )


def recognised(rng: np.random.Generator) -> list[tuple[KnownIssue, bool, bool, str]]:
    """Return for every issue: its class was told rightly, it was named, what was told."""
    issues = load_known_issues()
    found = []
    for issue in issues:
        report = Judge(issues).judge(material(issue, rng))
        told = max(report.findings, key=lambda one: len(one.cases), default=None)
        named = told is not None and issue.id in [match.issue.id for match in told.issues]
        found.append((issue, _right(issue, told), named, told.kind if told else "nothing"))
    return found


def _right(issue: KnownIssue, told: Change | None) -> bool:
    if told is None:
        return False
    first = told.moves[0]
    worse = first.effect < 0 or issue.kind == "implausible"
    return told.kind == issue.kind and worse and math.isfinite(first.effect)
