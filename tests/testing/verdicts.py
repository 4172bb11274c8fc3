"""A known page of verdicts for the cases of a store, where no analysis has judged them yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pvebench.metrics import catalog
from pvebench.metrics.text_format import Families
from pvebench.store import Store, StoredRun

STATES = (-2, -1, 0, 1, 2)
RATIOS = {-2: -0.25, -1: -0.08, 0: 0.01, 1: 0.06, 2: 0.2}
NOISE = 0.03
SENTENCE = "Random read with iothread=1 got 25 % slower with QEMU 10.0.2-4 (26 of 32 cases)"


def known_verdicts(store: Store) -> Callable[[Families], None]:
    """Return a collector; the state of each case goes round through all five."""
    newest = [record.good for record in store.cases().values()]

    def collect(families: Families) -> None:
        _tell(families, newest)
        for index, run in enumerate(newest):
            assert run is not None
            _judge(families, run, STATES[index % 5])

    return collect


def _tell(families: Families, newest: Sequence[StoredRun | None]) -> None:
    """Add one change that lasts, on the first case's storage, and what is said of everything."""
    (first, *_) = [run for run in newest if run is not None]
    labels = {"change": "0a1b2c3d"}
    about = {
        **first.definition.labels,
        "kind": "level",
        "severity": "warning",
        "since": f"{first.started:%Y-%m-%d}",
        "summary": SENTENCE,
    }
    families.add(catalog.VERDICT_INFO, {"state": "regression", "summary": SENTENCE}, 1)
    for severity in ("critical", "warning", "info"):
        families.add(catalog.CHANGES, {"severity": severity}, severity == "warning")
    families.add(catalog.CHANGE_INFO, labels | about, 1)
    families.add(catalog.CHANGE_CASES, labels, 26)
    where = {name: first.definition.labels[name] for name in ("node", "scenario", "workload")}
    families.add(catalog.CHANGE_CASE, labels | where, 1)
    families.add(catalog.CHANGE_EFFECT, labels, -0.25)
    families.add(catalog.CHANGE_EFFECT_LOW, labels, -0.28)
    families.add(catalog.CHANGE_EFFECT_HIGH, labels, -0.22)
    families.add(catalog.CHANGE_CONFIDENCE, labels, 0.999)
    families.add(catalog.CHANGE_SINCE, labels, first.started.timestamp() - 3600)


def _judge(families: Families, run: StoredRun, state: int) -> None:
    labels = dict(run.definition.labels)
    for direction in map(str, run.definition.directions or [""]):
        result = {**labels, "direction": direction}
        metrics = ("throughput", "latency_p99", "cpu_cost") if direction else ("idle_cost",)
        for metric in metrics:
            _figure(families, {**result, "metric": metric}, state)
        if direction:
            _baseline(families, result, run)
    families.add(catalog.BASELINE_RUNS, labels, 12)
    families.add(catalog.BASELINE_START, labels, run.started.timestamp() - 86400)


def _figure(families: Families, labels: dict[str, Any], state: int) -> None:
    families.add(catalog.CHANGE, labels, RATIOS[state])
    families.add(catalog.CHANGE_THRESHOLD, labels, NOISE)
    families.add(catalog.CHANGE_STATE, labels, state)
    families.add(catalog.REGRESSION, labels, state == -2)
    families.add(catalog.IMPLAUSIBLE_GAIN, labels, 0)


def _baseline(families: Families, result: dict[str, Any], run: StoredRun) -> None:
    for sample in run.samples:
        if sample.metric == "iops":
            families.add(catalog.BASELINE_IOPS, result, sample.value)
