"""Recommendations as sentences and as data."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from pvebench.advice.recommendation import Choice, Doubt, Purpose, Recommendation, Standing
from pvebench.model import run_metrics
from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.durability import Barrier, Durability, Survival, durable_by
from pvebench.model.figure import Values
from pvebench.model.units import show_latency
from pvebench.store.live_results import main_metric
from pvebench.store.records import StoredRun
from pvebench.store.store import Store
from pvebench.verdicts.change_text import interval_text, percent_text
from pvebench.verdicts.fastest_text import EMULATED_TEXT, excluded_text, level_text
from pvebench.verdicts.overall_state import summary
from pvebench.verdicts.ranking import LEAST_RUNS, NEWEST, Gap, Rank

PURPOSES: Final = {
    Purpose.DATABASE: "databases and mail",
    Purpose.GENERAL: "desktops and general use",
    Purpose.READS: "mostly reads",
    Purpose.FILES: "files and backups",
}
_DOUBTS: Final = {
    Doubt.SIMULATED: "The results are simulated.",
    Doubt.EMULATED: EMULATED_TEXT,
    Doubt.FEW_RUNS: f"Fewer than {LEAST_RUNS} runs of a configuration can't exclude noise.",
    Doubt.ONLY_ONE: "Only one configuration has comparable results.",
    Doubt.NO_DEFAULT: "The default configuration of Proxmox VE has no comparable result.",
    Doubt.NOISE: "Noise doesn't exclude that the default is as fast.",
    Doubt.EXCLUDED_FASTER: "",
}
_FLUSHED_ONLY: Final = {"writeback": "qcow2 without preallocation, and Ceph without krbd"}
"""Cache mode -> volumes whose completed writes QEMU may have in its memory only; librbd has a cache
unless the mode is direct (`qemu_rbd_connect` in QEMU's block/rbd.c)."""
_POWER: Final = {
    "none": "flushed data survives if the disk honors flushes",
    "writeback": "flushed data survives if the disk honors flushes; other writes of the last "
    "seconds are lost, in any order",
    "directsync": "all completed writes survive if the disk honors flushes",
    "writethrough": "all completed writes survive if the disk honors flushes",
}
_NEEDS: Final = {
    "writeback": "Writeback needs a guest that flushes (a journaling file system, a database), "
    "free host memory, and no second cache such as the ZFS ARC.",
    "directsync": "Each write waits for a flush of the device.",
    "writethrough": "Each write waits for a flush of the device.",
}
_SNAPSHOTS: Final = {
    "raw": "Snapshots of raw volumes need a storage that has them, such as ZFS, LVM-thin or Ceph.",
    "qcow2": "After a snapshot of a qcow2 volume, unflushed first writes are lost if QEMU is "
    "killed, except with directsync and writethrough.",
}
UNASSESSED: Final = (
    "Not visible to pvebench: write caches of drives, RAID batteries, options of storages "
    "that it cannot read, async NFS exports. Not measured: migration."
)
NOTHING: Final = (
    "No advice yet: no configuration has a result to rank; start with `pvebench run`, or see in "
    "`pvebench report` why results are not ranked."
)
_LISTED: Final = 10
"""Maximum run IDs and ranges of a sentence; JSON has all."""

RunsOf = Callable[[str], Sequence[StoredRun]]
"""Case key -> its newest runs with samples."""


def newest_runs(store: Store) -> RunsOf:
    """Return the newest runs of a store by case."""
    return lambda key: store.runs(case_key=key, limit=2 * NEWEST)


Cost = tuple[float | None, float | None]
"""Host CPU time per I/O and p99.9 latency in seconds, medians of the runs; None: not measured."""


def cost_of(choice: Choice, runs_of: RunsOf) -> Cost:
    """Return the cost of the first workload of a choice."""
    runs = [run for run in runs_of(choice.places[0].key) if run.number in choice.runs]
    cpu, tail = ([value for run in runs if (value := of(run)) is not None] for of in (_cpu, _tail))
    return statistics.median(cpu) if cpu else None, statistics.median(tail) if tail else None


def _cpu(run: StoredRun) -> float | None:
    cores = Values(run.samples).parts(run_metrics.HOST_CPU)
    rate = sum(sample.value for sample in run_metrics.IOPS.of(run.samples) if sample.direction)
    used = cores.get("qemu", cores.get("total"))
    return used / rate if used is not None and rate > 0 else None


def _tail(run: StoredRun) -> float | None:
    percentiles = run_metrics.CLAT_PERCENTILE.of(run.samples)
    return max(
        (sample.value for sample in percentiles if sample.part in ("99.9", "99.90")), default=None
    )


def heading(advised: Recommendation) -> str:
    """Return `local-zfs on pve1, databases and mail`."""
    return f"{advised.storage} on {advised.node}, {PURPOSES[advised.purpose]}"


def advice_lines(
    advised: Recommendation,
    runs_of: RunsOf,
    present: str | None = None,
    gain_over_present: Gap | None = None,
) -> Iterator[str]:
    """Yield the sentences of a recommendation, the advice first.

    Args:
        present: scenario in use.
    """
    yield first_sentence(advised)
    if gain_over_present is not None and present and (used := advised.choice(present)):
        gain = gain_text(gain_over_present)
        yield f"Against the present choice: {gain}. Its run IDs: {ids_text(used.runs)}."
    yield f"Measured: {'; '.join(_levels(advised.chosen))}."
    yield from _others(advised)
    yield from _doubts(advised)
    yield from (excluded_text(it, main_metric(it.definition)) for it in advised.excluded)
    yield from _costs(advised, runs_of)
    yield from risk_lines(advised.chosen.definition, advised.durability)
    default = advised.other_default
    of_default = f"; of the default: {ids_text(default.runs)}" if default else ""
    yield f"Run IDs: {ids_text(advised.chosen.runs)}{of_default}"


def first_sentence(advised: Recommendation) -> str:
    """Return the advice alone: `Keep the default, …: nothing measured here is faster`.

    It names an open regression of the configuration.
    """
    return " ".join((_choice_sentence(advised), *regression_text(advised)))


def regression_text(advised: Recommendation) -> Iterator[str]:
    """Yield the open regression of the recommended configuration, in the words of the verdict."""
    if advised.regression is not None:
        yield f"It has an open regression: {summary(advised.regression)}."


def _choice_sentence(advised: Recommendation) -> str:
    chosen = configuration_text(advised.chosen.definition)
    if advised.standing is Standing.MEASURE:
        gap = f" ({gain_text(advised.gain)} than the default)" if advised.gain else ""
        return f"Measure first. The highest durable result so far is {chosen}{gap}."
    if advised.standing is Standing.DEFAULT:
        if advised.chosen is advised.choices[0]:
            return f"Keep the default, {chosen}: nothing measured here is faster."
        return f"Keep the default, {chosen}: it is within noise of the fastest."
    gain = f": {gain_text(advised.gain)} than the default" if advised.gain else ""
    return f"Use {chosen}{gain}."


def gain_text(gain: Gap) -> str:
    """Return `58% faster (95% CI 55-60%)`; numbers only if noise can't explain the difference."""
    if gain.low <= 0 <= gain.high:
        return "not yet known to be faster or slower"
    interval = interval_text(gain.ratio, gain.low, gain.high)
    word = "slower" if gain.ratio < 0 else "faster"
    return f"{percent_text(gain.ratio)} {word} (95% CI {interval})"


def _levels(choice: Choice) -> Iterator[str]:
    """Yield the value of each workload: the median that the ranking used."""
    for place in choice.places:
        level = level_text(main_metric(place.definition), place.level)
        yield f"{level} ({workload_text(place.definition)})"


def _doubts(advised: Recommendation) -> Iterator[str]:
    """Yield the doubts that no other sentence states."""
    in_gain = advised.gain is not None and advised.gain.low <= 0
    for doubt in advised.doubts:
        if (text := _DOUBTS[doubt]) and not (doubt is Doubt.NOISE and in_gain):
            yield text


def _others(advised: Recommendation) -> Iterator[str]:
    equal = advised.ranked(Rank.FASTEST, Rank.EQUAL)
    if alike := [choice for choice in equal if choice is not advised.chosen]:
        yield f"Within noise of it: {_names(alike)}."
    if undecided := advised.ranked(Rank.UNKNOWN):
        yield f"Not decided, more runs needed: {_names(undecided)}."


def _names(choices: Iterable[Choice]) -> str:
    return "; ".join(configuration_text(choice.definition) for choice in choices)


def _costs(advised: Recommendation, runs_of: RunsOf) -> Iterator[str]:
    default, names = advised.other_default, ("Host CPU per I/O", "Tail latency (p99.9)")
    usual = cost_of(default, runs_of) if default else (None, None)
    load = workload_text(advised.chosen.places[0].definition)
    cost = cost_of(advised.chosen, runs_of)
    for name, seconds, of_default in zip(names, cost, usual, strict=True):
        if seconds is not None:
            beside = "" if of_default is None else f", default {show_latency(of_default)}"
            yield f"{name}: {show_latency(seconds)}{beside} ({load})."


def risk_lines(definition: Definition, durability: Durability | None = None) -> Iterator[str]:
    """Yield what a configuration risks, and what it needs."""
    cache, form = definition.cache, definition.format
    yield _survival_text(cache, durability)
    if cache in _NEEDS:
        yield _NEEDS[cache]
    if form in _SNAPSHOTS:
        yield _SNAPSHOTS[form]


def _survival_text(cache: str, durability: Durability | None) -> str:
    """Return how many records survived a killed QEMU, and would survive a loss of power."""
    power = f"If the host loses power: {_POWER.get(cache, 'unknown')}. This is by design"
    if durability is None:
        killed = _FLUSHED_ONLY.get(cache, "qcow2 without preallocation")
        return (
            f"If QEMU is killed: completed writes survive ({killed}: flushed data). {power}; "
            "`pvebench durability` measures it."
        )
    when = f"{durability.finished:%Y-%m-%d} with QEMU {durability.qemu}"
    killed = f"Measured {when}: if QEMU is killed, {_shares(durability.killed)} survive"
    if not durability.power:
        return f"{killed}. {power}."
    lost = f"if the host loses power, {_shares(durability.power)}, if the disk honors flushes"
    return f"{killed}; {lost}."


def _shares(rows: Sequence[Survival]) -> str:
    return f"{_share(rows, synced=True)} and {_share(rows, synced=False)}"


def _share(rows: Sequence[Survival], *, synced: bool) -> str:
    survivals = [row for row in rows if (row.sync is not Barrier.NONE) is synced]
    found, written = (sum(getattr(it, name) for it in survivals) for name in ("found", "written"))
    return f"{found} of {written} {'flushed' if synced else 'other completed'} writes"


def ids_text(runs: Sequence[int]) -> str:
    """Return run IDs with ranges: `3-5, 9`."""
    parts: list[list[int]] = []
    for run in runs:
        if parts and run == parts[-1][-1] + 1:
            parts[-1].append(run)
        else:
            parts.append([run])
    texts = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


def advice_data(advised: Recommendation, runs_of: RunsOf) -> dict[str, Any]:
    """Return a recommendation as plain data."""
    cpu, tail = cost_of(advised.chosen, runs_of)
    return {
        "node": advised.node,
        "storage": advised.storage,
        "purpose": str(advised.purpose),
        "standing": str(advised.standing),
        "open_regression": advised.regression.id if advised.regression else None,
        "doubts": [str(doubt) for doubt in advised.doubts],
        "text": " ".join(advice_lines(advised, runs_of)),
        "chosen": _choice_data(advised.chosen),
        "default": _choice_data(advised.default) if advised.default else None,
        "gain": gain_data(advised.gain),
        "within_noise": _scenarios(advised, Rank.FASTEST, Rank.EQUAL),
        "slower": _scenarios(advised, Rank.SLOWER),
        "undecided": _scenarios(advised, Rank.UNKNOWN),
        "durable": str(durable_by(advised.chosen.definition, advised.durability)),
        "host_cpu_seconds_per_io": cpu,
        "latency_p999_seconds": tail,
    }


def _scenarios(advised: Recommendation, *ranks: Rank) -> list[str]:
    return [choice.scenario for choice in advised.ranked(*ranks)]


def gain_data(gain: Gap | None) -> dict[str, float] | None:
    """Return a gain as ratios; None: unknown."""
    return None if gain is None else {"ratio": gain.ratio, "low": gain.low, "high": gain.high}


def _choice_data(choice: Choice) -> dict[str, Any]:
    return {
        "scenario": choice.scenario,
        "configuration": configuration_text(choice.definition),
        "levels": {place.definition.workload: place.level for place in choice.places},
        "runs": list(choice.runs),
    }
