"""Collectors of results and verdicts: from a snapshot to samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pvebench.advice.gate import looks
from pvebench.advice.gate_text import EXIT_CODES
from pvebench.analysis.change import Change
from pvebench.analysis.verdict import Verdict, VerdictState, as_ratio
from pvebench.metrics import state_metrics
from pvebench.metrics.collector_io import Families, Snapshot, collect_wall, shown
from pvebench.model import figures
from pvebench.model.definition import Definition, further_options, option_description, workload_text
from pvebench.model.durability import KnownDurability, durable_of
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.figure import Exported, Metric
from pvebench.model.run import LATENCY_BOUNDS, SUM, Outcome, Sample
from pvebench.model.workload import Direction
from pvebench.sanitize import one_line
from pvebench.store.records import Sums
from pvebench.verdicts.change_text import cause_text, listed
from pvebench.verdicts.node_verdicts import SEVERITIES, Verdicts
from pvebench.verdicts.overall_state import brief_headline, headline, overall_state, summary
from pvebench.verdicts.ranking import Ranking, contests, emulated_in

# --- environments and their changes ---

EPISODES_SHOWN: Final = 20
"""Environment periods per node; older ones are only in the store."""


def collect_environments(snapshot: Snapshot, families: Families) -> None:
    """Add the environments of each node, the current one, and the facts that changed.

    A recurring environment is represented by its latest period: one series has only one start.
    """
    by_node: dict[str, list[EnvironmentPeriod]] = {}
    for episode in snapshot.view.periods:
        by_node.setdefault(episode.node, []).append(episode)
    for episodes in by_node.values():
        latest = {episode.environment: episode for episode in episodes[-EPISODES_SHOWN:]}
        for episode in latest.values():
            labels = _environment_labels(episode, simulated=snapshot.view.simulated)
            families.add(state_metrics.ENVIRONMENT_START, labels, episode.started.timestamp())
            families.add(state_metrics.ENVIRONMENT_END, labels, episode.finished.timestamp())
        for labels in _changes(episodes):
            families.add(state_metrics.ENVIRONMENT_CHANGE, labels, 1)
        newest = _environment_labels(episodes[-1], simulated=snapshot.view.simulated)
        families.add(state_metrics.ENVIRONMENT_INFO, newest, 1)
        families.add(state_metrics.NODE_INFO, newest, 1)


def _changes(episodes: Sequence[EnvironmentPeriod]) -> list[dict[str, str]]:
    """Return the facts that changed with each of the last periods, oldest first and only once.

    A fact that is unknown in one period is compared with the period before.
    """
    before: dict[str, str] = {}
    changes_by_episode: list[list[dict[str, str]]] = []
    for episode in episodes:
        about = {"node": episode.node, "environment": episode.slug}
        changes_by_episode.append(
            [
                {**about, "fact": name, "before": before[name], "after": value}
                for name, value in episode.facts.items()
                if before.get(name, value) != value
            ]
        )
        before |= episode.facts
    recent = changes_by_episode[-EPISODES_SHOWN:]
    last = (labels for changes in recent for labels in changes)
    return list({tuple(labels.values()): labels for labels in last}.values())


_FACTS: Final = {
    "pve_version": "pve",
    "kernel_version": "kernel",
    "qemu_version": "qemu",
    "fio_version": "fio",
}
"""Label -> fact, where their names differ."""


def _environment_labels(episode: EnvironmentPeriod, *, simulated: bool) -> dict[str, str]:
    names = {*state_metrics.ENVIRONMENT_INFO.labels, *state_metrics.NODE_INFO.labels}
    return {
        **{name: episode.facts.get(_FACTS.get(name, name), "") for name in names},
        "node": episode.node,
        "environment": episode.slug,
        "simulated": str(int(simulated)),
    }


# --- comparison of configurations ---


def collect_settings(snapshot: Snapshot, families: Families) -> None:
    """Add the rank of each configuration and its gap to the fastest one."""
    definitions = {record.key: record.last.definition for record in shown(snapshot) if record.good}
    view, durability = snapshot.view, snapshot.view.durability
    for ranking in contests(definitions, view.trends, emulated_in(view.periods), durability):
        _add(ranking, durability, families)


def _add(ranking: Ranking, durability: KnownDurability, families: Families) -> None:
    for place in (*ranking.places, *ranking.excluded):
        labels = place.definition.labels
        rank = {
            "rank": str(place.rank),
            "excluded": str(place.exclusion),
            "durable": str(durable_of(place.definition, durability)),
        }
        families.add(state_metrics.SCENARIO_RANK_INFO, {**labels, **rank}, 1)
        if ranking.fastest is not None:
            families.add(state_metrics.SCENARIO_GAP, labels, place.ratio)
        if not math.isnan(place.low):
            families.add(state_metrics.SCENARIO_GAP_NOISE, labels, (place.high - place.low) / 2)


Collector = Callable[[Snapshot, Families], None]


def collect_results(snapshot: Snapshot, families: Families) -> None:
    """Add the values of every case's last successful run."""
    for record in shown(snapshot):
        run = record.good
        if run is None or (snapshot.now - run.finished).total_seconds() > snapshot.max_age_seconds:
            continue
        labels = run.definition.labels
        for sample in run.samples:
            _add_sample(families, labels, sample, run.definition.tool)
        _add_switches(families, labels, run.samples)
        _add_latencies(families, labels, record.sums)
        families.add(state_metrics.RUN_TIMESTAMP, labels, run.finished.timestamp())


def _add_sample(families: Families, labels: Mapping[str, str], sample: Sample, tool: str) -> None:
    figure = figures.FIGURES.get(sample.metric)
    if not isinstance(figure, Exported) or figure.tool not in ("", tool):
        return
    where = {**labels, "direction": str(sample.direction or "")}
    part = {figure.part: sample.part} if figure.part else {}
    families.add(figure.metric, {**where, **part}, sample.value)


def _add_latencies(families: Families, labels: Mapping[str, str], sums: Sums) -> None:
    for direction in map(str, Direction):
        held = {part: value for (_, way, part), value in sums.items() if way == direction}
        if held:
            counts = {bound: held.get(bound, 0.0) for bound in LATENCY_BOUNDS}
            extra = {"direction": direction}
            families.add_histogram(
                state_metrics.LATENCY, {**labels, **extra}, counts, held.get(SUM, 0.0)
            )


def _add_switches(
    families: Families, labels: Mapping[str, str], samples: tuple[Sample, ...]
) -> None:
    values = {sample.metric: sample.value for sample in samples}
    switches, seconds = (
        values.get(figures.HOST_CONTEXT_SWITCHES.name),
        values.get(figures.WINDOW.name),
    )
    if switches is not None and seconds:
        families.add(state_metrics.HOST_SWITCHES, labels, switches / seconds)
    done = sum(sample.value for sample in figures.QEMU_OPERATIONS.of(samples))
    if figures.VM_EXITS.name in values and done:
        families.add(state_metrics.VM_EXITS, labels, values[figures.VM_EXITS.name] / done)


def collect_runs(snapshot: Snapshot, families: Families) -> None:
    """Add the times, outcomes, durations and intervals of runs."""
    for record in shown(snapshot):
        last = record.last
        labels = dict(last.definition.labels)
        good = record.failures_in_row == 0
        families.add(state_metrics.RUN_ATTEMPT_TIMESTAMP, labels, last.finished.timestamp())
        duration = (last.finished - last.started).total_seconds()
        families.add(state_metrics.RUN_DURATION, labels, duration)
        families.add(state_metrics.RUN_SUCCESS, labels, float(good))
        for outcome in Outcome:
            count = record.outcomes.get(outcome, 0)
            families.add(state_metrics.RUNS, {**labels, "outcome": str(outcome)}, count)
        for sample in figures.IMPLAUSIBILITY.of(last.samples):
            families.add(state_metrics.RUN_IMPLAUSIBLE, {**labels, "reason": sample.part}, 1)
        planned = snapshot.view.planned.get(last.case_key)
        if planned is not None:
            families.add(state_metrics.SCHEDULE_INTERVAL, labels, planned.every_seconds)


def collect_info(snapshot: Snapshot, families: Families) -> None:
    """Add the definitions of the scenarios and workloads in the labels."""
    definitions = [record.last.definition for record in shown(snapshot)]
    for definition in {(one.node, one.scenario): one for one in definitions}.values():
        unknown = dict.fromkeys(state_metrics.SCENARIO_INFO.labels, "")
        described = {
            "configuration": _configuration(definition),
            "disk": _configuration(definition, cache=False),
        }
        labels = {**unknown, **definition.options, **definition.labels, **described}
        families.add(state_metrics.SCENARIO_INFO, labels, 1)
    ways = {
        (one.workload, way): one for one in definitions for way in map(str, one.directions or ("",))
    }
    for (_, way), definition in ways.items():
        families.add(state_metrics.WORKLOAD_INFO, _workload_labels(definition, way), 1)


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
    families.add(state_metrics.RESULTS, {}, snapshot.view.totals.runs)
    for (node, storage, direction), count in snapshot.view.totals.bytes.items():
        labels = {"node": node, "storage": storage, "direction": direction}
        families.add(state_metrics.MOVED_BYTES, labels, count)
    for (node, tier), cycles in snapshot.view.totals.cycles.items():
        families.add(state_metrics.CYCLES, {"node": node, "tier": tier}, cycles)


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


_GATE_LOSS: Final = (
    state_metrics.GATE_LOSS,
    state_metrics.GATE_LOSS_LOW,
    state_metrics.GATE_LOSS_HIGH,
)


def collect_gates(verdicts: Verdicts, snapshot: Snapshot, families: Families) -> None:
    """Add a look at each upgraded node, as `pvebench gate` prints it."""
    cases = {record.key: record.last.definition for record in snapshot.records}
    for result in looks(verdicts, cases, snapshot.view.periods, snapshot.now):
        labels = {"node": result.canary}
        families.add(state_metrics.GATE_EXIT_CODE, labels, EXIT_CODES[result.decision])
        for group in result.groups:
            where = {**labels, "group": group.series.name}
            for metric, ratio in zip(_GATE_LOSS, group.loss or (), strict=False):
                families.add(metric, where, ratio)


BASELINES: Final[Mapping[str, tuple[Metric, Mapping[str, str]]]] = {
    "throughput": (state_metrics.BASELINE_IOPS, {}),
    "latency_p99": (state_metrics.BASELINE_LATENCY, {"percentile": "99"}),
    "cpu_cost": (state_metrics.BASELINE_CPU, {}),
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
        families.add(state_metrics.VERDICT_CASES, labels, count)
    _add_levels(verdicts, families)
    if verdicts.reports:
        newest = max(report.judged_until for report in verdicts.reports)
        families.add(state_metrics.VERDICT_TIMESTAMP, {}, newest)


def _add_figures(verdict: Verdict, labels: Mapping[str, str], families: Families) -> None:
    history = verdict.history
    where = {**labels, "direction": history.direction, "metric": history.figure.name}
    worse = verdict.state in {VerdictState.SLOWER, VerdictState.GRADUALLY_SLOWER}
    families.add(state_metrics.CHANGE, where, verdict.ratio)
    families.add(state_metrics.CHANGE_THRESHOLD, where, verdict.threshold)
    families.add(state_metrics.CHANGE_STATE, where, verdict.state.code)
    if verdict.creep is not None:
        families.add(
            state_metrics.CHANGE_GRADUAL, where, as_ratio(verdict.creep.effect, history.figure)
        )
    families.add(state_metrics.REGRESSION, where, worse)
    families.add(
        state_metrics.IMPLAUSIBLE_GAIN, where, verdict.state is VerdictState.IMPLAUSIBLE_GAIN
    )


def _add_baseline(
    verdict: Verdict, labels: Mapping[str, str], families: Families, *, first: bool
) -> None:
    """Add the baseline; `first`: also what all metrics of a case share."""
    history = verdict.history
    if first:
        families.add(state_metrics.BASELINE_RUNS, labels, verdict.baseline_runs)
        families.add(state_metrics.BASELINE_START, labels, verdict.baseline_start)
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
            families.add(state_metrics.PERFORMANCE_INDEX, labels, level.index)


# --- Changes, open and closed, and the overall verdict.

MAX_SHOWN: Final = 50
"""Maximum open changes with own series, seven and their cases each; more are only counted."""
MAX_CLOSED: Final = 100
"""Maximum closed changes with own series, up to five each."""


def collect_changes(verdicts: Verdicts, families: Families) -> None:
    """Add the headline, the most severe open changes, their number, and the newest closed ones."""
    overall = {
        "state": overall_state(verdicts),
        "headline": one_line(brief_headline(verdicts)),
        "summary": one_line(headline(verdicts, evidence=False)),
    }
    families.add(state_metrics.VERDICT_INFO, overall, 1)
    changes = verdicts.open_changes
    for severity in SEVERITIES:
        count = sum(change.severity == severity for change in changes)
        families.add(state_metrics.CHANGES, {"severity": severity}, count)
    for change in changes[:MAX_SHOWN]:
        _add_open(change, families)
        _add_cases(change, verdicts.labels, families)
    for change in verdicts.closed_changes[:MAX_CLOSED]:
        _add_closed(change, families)


def _about(change: Change) -> dict[str, str]:
    return {
        "change": change.id,
        "node": one_line(listed(change.nodes)),
        "storage": one_line(listed(change.storages)),
        "kind": change_kind(change),
        "since": _date(change.begin),
        "summary": summary(change),
    }


def change_kind(change: Change) -> str:
    """Return the label `kind` of a change, which alerts use; gains may be implausible."""
    return "implausible" if change.implausible else change.kind


def _date(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def _add_open(change: Change, families: Families) -> None:
    first, labels = change.moves[0], {"change": change.id}
    lowest = min(move.p_value for move in change.moves)
    families.add(state_metrics.CHANGE_INFO, _about(change) | {"severity": change.severity}, 1)
    families.add(state_metrics.CHANGE_CASES, labels, len(set(change.cases)))
    families.add(state_metrics.CHANGE_EFFECT, labels, as_ratio(first.effect, first.figure))
    families.add(state_metrics.CHANGE_EFFECT_LOW, labels, as_ratio(first.low, first.figure))
    families.add(state_metrics.CHANGE_EFFECT_HIGH, labels, as_ratio(first.high, first.figure))
    families.add(state_metrics.CHANGE_CONFIDENCE, labels, 1 - lowest)
    families.add(state_metrics.CHANGE_SINCE, labels, change.begin)


def _add_closed(change: Change, families: Families) -> None:
    first, labels = change.moves[0], {"change": change.id}
    more = {
        "state": change.state,
        "until": "" if change.end is None else _date(change.end),
        "cause": one_line(cause_text(change)),
        "metric": first.figure.name,
    }
    families.add(state_metrics.CLOSED_CHANGE_INFO, _about(change) | more, 1)
    families.add(state_metrics.CLOSED_CHANGE_CASES, labels, len(set(change.cases)))
    families.add(state_metrics.CLOSED_CHANGE_EFFECT, labels, as_ratio(first.effect, first.figure))
    families.add(state_metrics.CLOSED_CHANGE_BEGIN, labels, change.begin)
    if change.end is not None:
        families.add(state_metrics.CLOSED_CHANGE_END, labels, change.end)


def _add_cases(change: Change, labels: Mapping[str, Mapping[str, str]], families: Families) -> None:
    """Add the cases of a change."""
    for case in dict.fromkeys(change.cases):
        if case in labels:
            where = {name: labels[case][name] for name in ("node", "scenario", "workload")}
            families.add(state_metrics.CHANGE_CASE, {"change": change.id} | where, 1)
