"""Known verdicts on the cases of a store: one in each of five states, and one open change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.verdict import Verdict, VerdictState
from pvebench.model.run_metrics import JUDGED
from pvebench.store.records import StoredRun
from pvebench.store.store import Store
from pvebench.verdicts.change_tracker import ChangeTracker
from pvebench.verdicts.node_verdicts import Verdicts, changes_of
from testing.changes import FINDING

EFFECTS = {
    VerdictState.SLOWER: -0.25,
    VerdictState.POSSIBLY_SLOWER: -0.08,
    VerdictState.UNCHANGED: 0.01,
    VerdictState.POSSIBLY_FASTER: 0.06,
    VerdictState.FASTER: 0.2,
}
NOISE = 0.03
BASELINE_RUNS = 12


def known_verdicts(store: Store) -> Verdicts:
    """Return verdicts whose states go round through the cases; the first case has a change."""
    newest = [record.good for record in store.cases().values() if record.good is not None]
    states = [list(EFFECTS)[index % len(EFFECTS)] for index in range(len(newest))]
    judged = [
        one for run, state in zip(newest, states, strict=True) for one in _verdicts(run, state)
    ]
    first = min(newest, key=lambda run: run.definition.place)  # of what dashboards show first
    change = replace(
        FINDING,
        begin=first.started.timestamp() - 3600,
        nodes=(first.definition.node,),
        cases=(first.case_key,),
        names=(first.definition.name,),
    )
    report = NodeReport(
        node=first.definition.node,
        verdicts=tuple(judged),
        findings=(change,),
        events=(),
        levels=(),
        judged_until=first.finished.timestamp(),
    )
    labels = {run.case_key: run.definition.labels for run in newest}
    verdicts = Verdicts(version=1, reports=(report,), labels=labels, changes=changes_of((report,)))
    return replace(verdicts, changes=ChangeTracker().name(verdicts))


def _verdicts(run: StoredRun, state: VerdictState) -> Iterator[Verdict]:
    for direction in map(str, run.definition.directions or [""]):
        for metric in ("throughput", "latency_p99", "cpu_cost") if direction else ("idle_cost",):
            yield _verdict(run, state, direction, metric)


def _verdict(run: StoredRun, state: VerdictState, direction: str, metric: str) -> Verdict:
    effect = math.log1p(EFFECTS[state])
    half = math.log1p(NOISE)
    values = [
        sample.value
        for sample in run.samples
        if sample.metric == "iops" and str(sample.direction) == direction
    ]
    return Verdict(
        history=CaseHistory(
            case=f"{run.case_key}|{direction}",
            of=run.case_key,
            name=run.definition.name,
            figure=JUDGED[metric],
            labels={},
            points=GoodRuns([GoodRun(run.finished.timestamp(), "", 1.0)]),
            direction=direction,
        ),
        state=state,
        effect=effect,
        low=effect - half,
        high=effect + half,
        runs=1,
        baseline=values[0] if metric == "throughput" and values else 1.0,
        baseline_runs=BASELINE_RUNS,
        baseline_start=run.started.timestamp() - 86400,
    )
