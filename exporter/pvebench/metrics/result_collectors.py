"""Collectors of results: from a snapshot to samples. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pvebench.config.settings import WallSettings
from pvebench.metrics import state_metrics
from pvebench.model import run_metrics
from pvebench.model.definition import Definition, further_options, option_description, workload_text
from pvebench.model.durability import KnownDurability, durable_of
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.figure import Exported
from pvebench.model.run import LATENCY_BOUNDS, SUM, Outcome, Sample
from pvebench.model.units import DAY
from pvebench.model.workload import Direction
from pvebench.store.live_results import View, main_metric
from pvebench.store.records import CaseRecord, Sums
from pvebench.verdicts.ranking import Ranking, rankings

if TYPE_CHECKING:
    from pvebench.metrics.exposition import Families

# --- Results at one moment.


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Results at one moment.

    Attributes:
        records: state of each case that may be shown.
        view: everything else; its periods are those of the shown nodes.
        max_age_seconds: results older than this at `now` are not shown.
        wall: slots of the wall dashboard; empty: selected from the results.
    """

    now: datetime
    records: Sequence[CaseRecord]
    view: View = field(default_factory=View)
    max_age_seconds: float = 14 * DAY
    wall: Sequence[WallSettings] = ()


def snapshot_of(
    view: View, *, now: datetime, max_age_seconds: float, wall: Sequence[WallSettings] = ()
) -> Snapshot:
    """Return the results of a view for the cases of the current packs and their nodes."""
    nodes = {planned.definition.node for planned in view.planned.values()}
    return Snapshot(
        now=now,
        records=[view.cases[key] for key in view.planned if key in view.cases],
        view=replace(view, periods=[period for period in view.periods if period.node in nodes]),
        max_age_seconds=max_age_seconds,
        wall=wall,
    )


def shown(snapshot: Snapshot) -> list[CaseRecord]:
    """Return the records whose last run is recent enough to be exposed."""
    return [
        record
        for record in snapshot.records
        if (snapshot.now - record.last.finished).total_seconds() <= snapshot.max_age_seconds
    ]


# --- wall slots: cases from the settings, or the first four kinds of access ---

SLOTS: Final = 4
KINDS: Final = ("randread", "randwrite", "read", "write")
"""Order of the slots if the settings define none."""


_DEFAULT: Final = {"bus": "scsi", "format": "raw", "cache": "none"}


def collect_wall(snapshot: Snapshot, families: Families) -> None:
    """Add the cases of the wall dashboard's slots."""
    for slot, (title, case, direction) in sorted(_selected(snapshot).items()):
        labels = {
            **case.labels,
            "slot": str(slot),
            "direction": direction,
            "title": title or workload_text(case),
            "figure": main_metric(case),
        }
        families.add(state_metrics.WALL_SLOT, labels, 1)


def _selected(snapshot: Snapshot) -> dict[int, tuple[str, Definition, str]]:
    """Return slot -> title, case and direction.

    Configured cases, then one of each kind, then any: a wall shows what was measured.
    """
    measured = [record.definition for record in shown(snapshot) if record.good is not None]
    left: dict[tuple[str, str, str], Definition] = {}
    for case in sorted(measured, key=_preference):
        for direction in map(str, case.directions):
            left.setdefault((case.scenario, case.workload, direction), case)
    chosen: dict[int, tuple[str, Definition, str]] = {}
    for slot, configured in enumerate(snapshot.wall[:SLOTS], start=1):
        key = (configured.scenario, configured.workload, configured.direction)
        if key in left:
            chosen[slot] = configured.title, left.pop(key), configured.direction
    for exact in (True, False):
        for slot, kind in enumerate(KINDS, start=1):
            fitting = (
                key for key, case in left.items() if case.parameters.get("rw") == kind or not exact
            )
            if slot not in chosen and (first := next(fitting, None)):
                chosen[slot] = "", left.pop(first), first[2]
    return chosen


def _preference(case: Definition) -> tuple[Any, ...]:
    """Return the sort key: the default configuration first, then alphabetical order."""
    differing = [case.labels[key] != value for key, value in _DEFAULT.items()]
    return (*differing, case.node, case.scenario, case.workload)


# --- environments and their changes ---

PERIODS_SHOWN: Final = 20
"""Environment periods per node; older ones are only in the store."""


def collect_environments(snapshot: Snapshot, families: Families) -> None:
    """Add the environments of each node, the current one, and the facts that changed.

    A recurring environment is represented by its latest period: one series has only one start.
    """
    by_node: dict[str, list[EnvironmentPeriod]] = {}
    for period in snapshot.view.periods:
        by_node.setdefault(period.node, []).append(period)
    for periods in by_node.values():
        latest = {period.environment: period for period in periods[-PERIODS_SHOWN:]}
        for period in latest.values():
            labels = _environment_labels(period, simulated=snapshot.view.simulated)
            families.add(state_metrics.ENVIRONMENT_START, labels, period.started.timestamp())
            families.add(state_metrics.ENVIRONMENT_END, labels, period.finished.timestamp())
        for labels in _changes(periods):
            families.add(state_metrics.ENVIRONMENT_CHANGE, labels, 1)
        newest = _environment_labels(periods[-1], simulated=snapshot.view.simulated)
        families.add(state_metrics.ENVIRONMENT_INFO, newest, 1)
        families.add(state_metrics.NODE_INFO, newest, 1)


def _changes(periods: Sequence[EnvironmentPeriod]) -> list[dict[str, str]]:
    """Return the facts that changed with each of the last periods, oldest first and only once.

    A fact that is unknown in one period is compared with the period before.
    """
    before: dict[str, str] = {}
    changes_by_period: list[list[dict[str, str]]] = []
    for period in periods:
        about = {"node": period.node, "environment": period.slug}
        changes_by_period.append(
            [
                {**about, "fact": name, "before": before[name], "after": value}
                for name, value in period.facts.items()
                if before.get(name, value) != value
            ]
        )
        before |= period.facts
    recent = changes_by_period[-PERIODS_SHOWN:]
    last = (labels for changes in recent for labels in changes)
    return list({tuple(labels.values()): labels for labels in last}.values())


_FACTS: Final = {
    "pve_version": "pve",
    "kernel_version": "kernel",
    "qemu_version": "qemu",
    "fio_version": "fio",
}
"""Label -> fact, where their names differ."""


def _environment_labels(period: EnvironmentPeriod, *, simulated: bool) -> dict[str, str]:
    names = {*state_metrics.ENVIRONMENT_INFO.labels, *state_metrics.NODE_INFO.labels}
    return {
        **{name: period.facts.get(_FACTS.get(name, name), "") for name in names},
        "node": period.node,
        "environment": period.slug,
        "simulated": str(int(simulated)),
    }


# --- comparison of configurations ---


def collect_settings(snapshot: Snapshot, families: Families) -> None:
    """Add the rank of each configuration and its gap to the fastest one."""
    definitions = {record.key: record.last.definition for record in shown(snapshot) if record.good}
    for ranking in rankings(snapshot.view, definitions):
        _add(ranking, snapshot.view.durability, families)


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
            families.add(state_metrics.SCENARIO_GAP, labels, place.gap.ratio)
        if (gap := place.gap).known:
            families.add(state_metrics.SCENARIO_GAP_NOISE, labels, (gap.high - gap.low) / 2)


Collector: TypeAlias = "Callable[[Snapshot, Families], None]"


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
    figure = run_metrics.FIGURES.get(sample.metric)
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
        values.get(run_metrics.HOST_CONTEXT_SWITCHES.name),
        values.get(run_metrics.WINDOW.name),
    )
    if switches is not None and seconds:
        families.add(state_metrics.HOST_SWITCHES, labels, switches / seconds)
    done = sum(sample.value for sample in run_metrics.QEMU_OPERATIONS.of(samples))
    if run_metrics.VM_EXITS.name in values and done:
        families.add(state_metrics.VM_EXITS, labels, values[run_metrics.VM_EXITS.name] / done)


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
        for sample in run_metrics.IMPLAUSIBILITY.of(last.samples):
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
