"""What else changed with an open change, as its runs have kept it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pvebench.analysis.judge import NodeReport
from pvebench.analysis.meanwhile import METRICS, OF_VERSION, meanwhile
from pvebench.analysis.together.findings import Finding
from pvebench.store import Store

RUNS: Final = 20
"""Newest runs of a case on each side that are looked at."""
CASES: Final = 3
"""Cases of a change that are looked at: what the node or a storage did is the same in all."""
EARLY: Final = 0.25
"""Share of a slow change's time whose runs count as those before it."""


def with_what_else(report: NodeReport, store: Store) -> NodeReport:
    """Return the report whose open changes for the worse name what else changed with them.

    Raises:
        StoreError: the runs cannot be read.
    """
    findings = tuple(
        _named(one, report.judged_until, store)
        if one.regression and not (one.over or one.back)
        else one
        for one in report.findings
    )
    return replace(report, findings=findings)


def _named(finding: Finding, until: float, store: Store) -> Finding:
    at = finding.time + (EARLY * (until - finding.time) if finding.slow else 0.0)
    new = {one.fact for one in finding.differences}
    metrics = [name for name in METRICS if not new & OF_VERSION.get(name, frozenset())]
    sides = [
        store.beside(key, metrics, at=at, until=until, most=RUNS) for key in finding.cases[:CASES]
    ]
    before, after = ([run for side in sides for run in side[place]] for place in (0, 1))
    return replace(finding, meanwhile=meanwhile(before, after))
