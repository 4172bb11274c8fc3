"""Collectors of results and verdicts: from a snapshot to samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pvebench.advice.gate import looks
from pvebench.advice.gate_text import EXIT_CODES
from pvebench.analysis.verdict import Verdict, VerdictState, as_ratio
from pvebench.metrics import catalog
from pvebench.metrics.catalog import Metric
from pvebench.metrics.changes import collect_changes
from pvebench.metrics.snapshot import Snapshot, collect_wall, shown
from pvebench.metrics.text_format import Families
from pvebench.model.definition import Definition, further_options, option_description, workload_text
from pvebench.model.durability import Known, durable_of
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.run import LATENCY_BOUNDS, SUM, Outcome, Sample
from pvebench.model.workload import Direction
from pvebench.store import CaseRecord, Sums
from pvebench.verdicts import Verdicts
from pvebench.verdicts.ranking import Ranking, contests, emulated_in

# --- environments and their changes ---

EPISODES_SHOWN: Final = 20
"""Environment periods per node; older ones are only in the store."""


def collect_environments(snapshot: Snapshot, families: Families) -> None:
    """Add the environments of each node, the current one, and the facts that changed.

    A recurring environment is represented by its latest period: one series has only one start.
    """
    by_node: dict[str, list[EnvironmentPeriod]] = {}
    for episode in snapshot.episodes:
        by_node.setdefault(episode.node, []).append(episode)
    for episodes in by_node.values():
        latest = {episode.environment: episode for episode in episodes[-EPISODES_SHOWN:]}
        for episode in latest.values():
            labels = _environment_labels(episode, simulated=snapshot.simulated)
            families.add(catalog.ENVIRONMENT_START, labels, episode.started.timestamp())
            families.add(catalog.ENVIRONMENT_END, labels, episode.finished.timestamp())
        for labels in _changes(episodes):
            families.add(catalog.ENVIRONMENT_CHANGE, labels, 1)
        newest = _environment_labels(episodes[-1], simulated=snapshot.simulated)
        families.add(catalog.ENVIRONMENT_INFO, newest, 1)
        families.add(catalog.NODE_INFO, newest, 1)


def _changes(episodes: Sequence[EnvironmentPeriod]) -> list[dict[str, str]]:
    """Return the facts that changed with each of the last periods, oldest first and only once.

    A fact that is unknown in one period is compared with the period before.
    """
    known: dict[str, str] = {}
    changes_by_episode: list[list[dict[str, str]]] = []
    for episode in episodes:
        about = {"node": episode.node, "environment": episode.slug}
        changes_by_episode.append(
            [
                {**about, "fact": name, "before": known[name], "after": value}
                for name, value in episode.facts.items()
                if known.get(name, value) != value
            ]
        )
        known |= episode.facts
    recent = changes_by_episode[-EPISODES_SHOWN:]
    last = (labels for changes in recent for labels in changes)
    return list({tuple(labels.values()): labels for labels in last}.values())


def _environment_labels(episode: EnvironmentPeriod, *, simulated: bool) -> dict[str, str]:
    facts = episode.facts
    return {
        "node": episode.node,
        "environment": episode.slug,
        "pve_version": facts.get("pve", ""),
        "kernel_version": facts.get("kernel", ""),
        "qemu_version": facts.get("qemu", ""),
        "machine": facts.get("machine", ""),
        "accel": facts.get("accel", ""),
        "guest_kernel": facts.get("guest_kernel", ""),
        "fio_version": facts.get("fio", ""),
        "cpu_model": facts.get("cpu_model", ""),
        "microcode": facts.get("microcode", ""),
        "cpus": facts.get("cpus", ""),
        "governor": facts.get("governor", ""),
        "simulated": str(int(simulated)),
    }


# --- comparison of configurations ---


def collect_settings(snapshot: Snapshot, families: Families) -> None:
    """Add the rank of each configuration and its gap to the fastest one."""
    known = {record.key: record.last.definition for record in shown(snapshot) if record.good}
    emulated = emulated_in(snapshot.episodes)
    for ranking in contests(known, snapshot.trends, emulated, snapshot.durability):
        _add(ranking, snapshot.durability, families)


def _add(ranking: Ranking, known: Known, families: Families) -> None:
    for place in (*ranking.places, *ranking.excluded):
        labels = place.definition.labels
        rank = {
            "rank": str(place.rank),
            "excluded": str(place.exclusion),
            "durable": str(durable_of(place.definition, known)),
        }
        families.add(catalog.SCENARIO_RANK_INFO, {**labels, **rank}, 1)
        if ranking.fastest is not None:
            families.add(catalog.SCENARIO_GAP, labels, place.ratio)
        if not math.isnan(place.low):
            families.add(catalog.SCENARIO_GAP_NOISE, labels, (place.high - place.low) / 2)


PER_DIRECTION: Final[dict[str, Metric]] = {
    "iops": catalog.IOPS,
    "bandwidth": catalog.BANDWIDTH,
    "clat_mean": catalog.LATENCY_MEAN,
    "clat_max": catalog.LATENCY_MAX,
    "iops_variation": catalog.VARIATION,
    "iops_slope": catalog.SLOPE,
    "device_share": catalog.DEVICE_SHARE,
    "guest_to_host": catalog.GUEST_TO_HOST,
    "network_share": catalog.NETWORK_SHARE,
    "pass_to_first": catalog.PASS_TO_FIRST,
}
PER_CASE: Final[dict[str, Metric]] = {
    "steady_time": catalog.STEADY_TIME,
    "steady_slope": catalog.STEADY_SLOPE,
    "flush_share": catalog.FLUSH_SHARE,
    "guest_cpu_wait": catalog.GUEST_CPU_WAIT,
    "latency_depth": catalog.LATENCY_DEPTH,
    "network_round_trip": catalog.NETWORK_ROUND_TRIP,
    "fault_time": catalog.FAULT_TIME,
    "fault_dip": catalog.FAULT_DIP,
    "fault_dip_time": catalog.FAULT_DIP_TIME,
    "fault_recovery": catalog.FAULT_RECOVERY,
    "fault_errors": catalog.FAULT_ERRORS,
    "operation_time": catalog.OPERATION_TIME,
    "operation_gap": catalog.OPERATION_GAP,
    "operation_resolution": catalog.OPERATION_RESOLUTION,
    "operation_lost": catalog.OPERATION_LOST,
    "operation_recovery": catalog.OPERATION_RECOVERY,
    "operation_bytes": catalog.OPERATION_BYTES,
    "vms_fairness": catalog.VMS_FAIRNESS,
    "vms_slowest": catalog.VMS_SLOWEST,
    "vms_boot_time": catalog.VMS_BOOT_TIME,
}
PER_PART: Final[dict[str, tuple[Metric, str]]] = {
    "clat_percentile": (catalog.LATENCY_PERCENTILE, "percentile"),
    "sync_percentile": (catalog.SYNC_LATENCY_PERCENTILE, "percentile"),
    "host_cpu": (catalog.HOST_CPU, "component"),
    "host_bytes": (catalog.HOST_BYTES, "counter"),
    "guest_cpu": (catalog.GUEST_CPU, "mode"),
    "operation_p99": (catalog.OPERATION_LATENCY, "phase"),
}

Collector = Callable[[Snapshot, Families], None]


def collect_results(snapshot: Snapshot, families: Families) -> None:
    """Add the values of every case's last successful run."""
    for record in shown(snapshot):
        run = record.good
        if run is None or _age(snapshot, record) > snapshot.max_age_seconds:
            continue
        labels = run.definition.labels
        for sample in run.samples:
            _add_sample(families, labels, sample)
            # Any run may boot the guest; only boot runs give a series without gaps.
            if sample.metric == "boot_time" and run.definition.tool == "boot":
                families.add(catalog.BOOT_TIME, labels, sample.value)
        _add_switches(families, labels, run.samples)
        _add_pressure(families, labels, run.samples)
        _add_latencies(families, labels, record.sums)
        families.add(catalog.RUN_TIMESTAMP, labels, run.finished.timestamp())


def _age(snapshot: Snapshot, record: CaseRecord) -> float:
    run = record.good or record.last
    return (snapshot.now - run.finished).total_seconds()


def _add_sample(families: Families, labels: Mapping[str, str], sample: Sample) -> None:
    if sample.direction is not None and sample.metric in PER_DIRECTION:
        metric = PER_DIRECTION[sample.metric]
        families.add(metric, {**labels, "direction": str(sample.direction)}, sample.value)
    elif sample.metric in PER_CASE:
        families.add(PER_CASE[sample.metric], labels, sample.value)
    elif sample.metric in PER_PART:
        metric, name = PER_PART[sample.metric]
        extra = {name: sample.part, "direction": str(sample.direction or "")}
        families.add(metric, {**labels, **extra}, sample.value)


def _add_pressure(
    families: Families, labels: Mapping[str, str], samples: tuple[Sample, ...]
) -> None:
    for sample in samples:
        if sample.metric == "host_pressure":
            families.add(catalog.HOST_PRESSURE, {**labels, "resource": sample.part}, sample.value)


def _add_latencies(families: Families, labels: Mapping[str, str], sums: Sums) -> None:
    for direction in map(str, Direction):
        held = {part: value for (_, way, part), value in sums.items() if way == direction}
        if held:
            counts = {bound: held.get(bound, 0.0) for bound in LATENCY_BOUNDS}
            extra = {"direction": direction}
            families.add_histogram(catalog.LATENCY, {**labels, **extra}, counts, held.get(SUM, 0.0))


def _add_switches(
    families: Families, labels: Mapping[str, str], samples: tuple[Sample, ...]
) -> None:
    values = {sample.metric: sample.value for sample in samples}
    if "host_context_switches" in values and values.get("window"):
        rate = values["host_context_switches"] / values["window"]
        families.add(catalog.HOST_SWITCHES, labels, rate)
    done = sum(sample.value for sample in samples if sample.metric == "qemu_operations")
    if "vm_exits" in values and done:
        families.add(catalog.VM_EXITS, labels, values["vm_exits"] / done)


def collect_runs(snapshot: Snapshot, families: Families) -> None:
    """Add the times, outcomes, durations and intervals of runs."""
    for record in shown(snapshot):
        last = record.last
        labels = dict(last.definition.labels)
        good = record.failures_in_row == 0
        families.add(catalog.RUN_ATTEMPT_TIMESTAMP, labels, last.finished.timestamp())
        duration = (last.finished - last.started).total_seconds()
        families.add(catalog.RUN_DURATION, labels, duration)
        families.add(catalog.RUN_SUCCESS, labels, float(good))
        for outcome in Outcome:
            count = record.outcomes.get(outcome, 0)
            families.add(catalog.RUNS, {**labels, "outcome": str(outcome)}, count)
        for sample in last.samples:
            if sample.metric == "implausibility":
                families.add(catalog.RUN_IMPLAUSIBLE, {**labels, "reason": sample.part}, 1)
        interval = snapshot.intervals.get(last.case_key)
        if interval is not None:
            families.add(catalog.SCHEDULE_INTERVAL, labels, interval)


def collect_info(snapshot: Snapshot, families: Families) -> None:
    """Add the definitions of the scenarios and workloads in the labels."""
    scenarios: dict[tuple[str, str], dict[str, str]] = {}
    workloads: dict[tuple[str, str], dict[str, str]] = {}
    for record in shown(snapshot):
        definition = record.last.definition
        unknown = dict.fromkeys(catalog.SCENARIO_INFO.labels, "")
        described = {
            "configuration": _configuration(definition),
            "disk": _configuration(definition, cache=False),
        }
        labels = {**unknown, **definition.options, **definition.labels, **described}
        scenarios[definition.node, definition.scenario] = {name: labels[name] for name in unknown}
        for direction in map(str, definition.directions or ("",)):
            workloads[definition.workload, direction] = _workload_labels(definition, direction)
    for labels in scenarios.values():
        families.add(catalog.SCENARIO_INFO, labels, 1)
    for labels in workloads.values():
        families.add(catalog.WORKLOAD_INFO, labels, 1)


def _configuration(definition: Definition, *, cache: bool = True) -> str:
    """Describe a configuration. Non-default options come first: panels cut long names at the end.

    Args:
        cache: whether to include the cache mode.
    """
    further = map(option_description, further_options(definition))
    last = (definition.cache,) if cache else ()
    return ", ".join([*further, definition.bus, definition.format, *last])


def _workload_labels(definition: Definition, direction: str) -> dict[str, str]:
    parameters = definition.parameters
    return {
        "workload": definition.workload,
        "direction": direction,
        "tool": definition.tool,
        "title": definition.title,
        "rw": str(parameters.get("rw", "")),
        "block_size_bytes": str(parameters.get("bs", "")),
        "io_depth": str(parameters.get("iodepth", "")),
        "jobs": str(parameters.get("numjobs", "")),
        "caveats": ", ".join(definition.caveats),
        "description": workload_text(definition),
    }


def collect_totals(snapshot: Snapshot, families: Families) -> None:
    """Add the counters of the whole history."""
    families.add(catalog.RESULTS, {}, snapshot.totals.runs)
    for (node, storage, direction), count in snapshot.totals.bytes.items():
        labels = {"node": node, "storage": storage, "direction": direction}
        families.add(catalog.MOVED_BYTES, labels, count)
    for (node, tier), cycles in snapshot.totals.cycles.items():
        families.add(catalog.CYCLES, {"node": node, "tier": tier}, cycles)


CASE_COLLECTORS: Final[dict[str, Collector]] = {"results": collect_results, "runs": collect_runs}
"""Collectors of single cases: their families must not depend on other cases."""
SUMMARY_COLLECTORS: Final[dict[str, Collector]] = {
    "info": collect_info,
    "environments": collect_environments,
    "totals": collect_totals,
    "wall": collect_wall,
}
"""Collectors of all cases together."""
DEFINITION_COLLECTORS: Final = frozenset({"info", "wall"})
"""Collectors whose output changes only with the cases, a first result or a definition."""


# --- Verdicts on cases and storages.


def collect_gates(verdicts: Verdicts, snapshot: Snapshot, families: Families) -> None:
    """Add a look at each upgraded node, as `pvebench gate` prints it."""
    cases = {record.key: record.last.definition for record in snapshot.records}
    for result in looks(verdicts, cases, snapshot.episodes, snapshot.now):
        labels = {"node": result.canary}
        families.add(catalog.GATE_EXIT_CODE, labels, EXIT_CODES[result.decision])
        for group in result.groups:
            known, where = group.bound, {**labels, "group": group.name}
            if not math.isnan(known.loss):
                families.add(catalog.GATE_LOSS, where, known.loss)
                families.add(catalog.GATE_LOSS_LOW, where, known.low)
                families.add(catalog.GATE_LOSS_HIGH, where, known.high)


BASELINES: Final[Mapping[str, tuple[Metric, Mapping[str, str]]]] = {
    "throughput": (catalog.BASELINE_IOPS, {}),
    "latency_p99": (catalog.BASELINE_LATENCY, {"percentile": "99"}),
    "cpu_cost": (catalog.BASELINE_CPU, {}),
}


def collect_verdicts(verdicts: Verdicts, families: Families) -> None:
    """Add the verdicts on every case and storage, and their time."""
    collect_changes(verdicts, families)
    counts: dict[tuple[str, str, VerdictState], int] = {}
    shown: set[str] = set()
    for verdict in verdicts.verdicts:
        labels = verdicts.labels[verdict.history.of]
        place = (labels["node"], labels["storage"], verdict.state)
        counts[place] = counts.get(place, 0) + 1
        if verdict.state.judged:
            _add_figures(verdict, labels, families)
        if verdict.baseline is not None:
            _add_baseline(verdict, labels, families, first=verdict.history.of not in shown)
            shown.add(verdict.history.of)
    for (node, storage, state), count in counts.items():
        labels = {"node": node, "storage": storage, "state": str(state)}
        families.add(catalog.VERDICT_CASES, labels, count)
    _add_levels(verdicts, families)
    if verdicts.reports:
        newest = max(report.judged_until for report in verdicts.reports)
        families.add(catalog.VERDICT_TIMESTAMP, {}, newest)


def _add_figures(verdict: Verdict, labels: Mapping[str, str], families: Families) -> None:
    history = verdict.history
    where = {**labels, "direction": history.direction, "metric": history.figure.name}
    worse = verdict.state in {VerdictState.SLOWER, VerdictState.GRADUALLY_SLOWER}
    families.add(catalog.CHANGE, where, verdict.ratio)
    families.add(catalog.CHANGE_THRESHOLD, where, verdict.threshold)
    families.add(catalog.CHANGE_STATE, where, verdict.state.code)
    if verdict.creep is not None:
        families.add(catalog.CHANGE_GRADUAL, where, as_ratio(verdict.creep.effect, history.figure))
    families.add(catalog.REGRESSION, where, worse)
    families.add(catalog.IMPLAUSIBLE_GAIN, where, verdict.state is VerdictState.IMPLAUSIBLE)


def _add_baseline(
    verdict: Verdict, labels: Mapping[str, str], families: Families, *, first: bool
) -> None:
    """Add the baseline; `first`: also what all metrics of a case share."""
    history = verdict.history
    if first:
        families.add(catalog.BASELINE_RUNS, labels, verdict.baseline_runs)
        families.add(catalog.BASELINE_START, labels, verdict.baseline_start)
    metric, more = BASELINES.get(history.figure.name, (None, {}))
    if metric is not None and verdict.baseline is not None:
        where = {**labels, **more, "direction": history.direction}
        families.add(metric, where, verdict.baseline)


def _add_levels(verdicts: Verdicts, families: Families) -> None:
    for report in verdicts.reports:
        for level in report.levels:
            labels = {
                "node": report.node,
                "storage": level.storage,
                "environment": verdicts.environments.get(level.environment, level.environment),
            }
            families.add(catalog.PERFORMANCE_INDEX, labels, level.index)
