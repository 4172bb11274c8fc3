"""Simulated year of the demo: upgrades, and regressions like those of real upgrades.

The long history is derived from one simulated run of each case, by factors on its numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pvebench.model import run_metrics
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.environment import Environment
from pvebench.model.run import LATENCY_BOUNDS, SUM, Outcome, Run, Sample, latency_bound
from pvebench.model.workload import Case, Direction
from pvebench_lab.simulated.simulated_tools import BUS_SPEED

Matches = Callable[[Case], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """New versions on some nodes.

    Attributes:
        days: before the end of the year.
        facts: changed facts of the environment.
        nodes: affected nodes; empty: all.
    """

    days: float
    facts: Mapping[str, str]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Time without runs on a node; `begin` and `end` in days before the end of the year."""

    node: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Effect of a version or of other load on some cases, as factors on their values.

    Attributes:
        begin, end: days before the end of the year; `end` 0: still active.
        speed: factor of rates; latencies get the inverse.
        cpu: factor of host CPU per I/O.
        stall: minimum of the longest latency, in seconds.
    """

    begin: float
    end: float
    matches: Matches
    speed: float = 1.0
    cpu: float = 1.0
    stall: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Year with its first environment, upgrades, effects and outages."""

    days: float
    facts: Mapping[str, str]
    upgrades: tuple[Upgrade, ...]
    effects: tuple[Effect, ...]
    outages: tuple[Outage, ...] = ()

    def environment(self, node: str, days: float) -> dict[str, str]:
        """Return the facts of a node, `days` before the end."""
        facts = dict(self.facts)
        for upgrade in self.upgrades:
            if days <= upgrade.days and node in (upgrade.nodes or (node,)):
                facts |= upgrade.facts
        return facts

    def measured(self, node: str, days: float) -> bool:
        """Return whether a node measured, `days` before the end."""
        return not any(
            outage.node == node and outage.end < days <= outage.begin for outage in self.outages
        )


def _syncs_on_zfs(case: Case) -> bool:
    return case.scenario.storage == "local-zfs" and bool(case.workload.parameters.get("fsync"))


def _reads_with_thread(case: Case) -> bool:
    return case.scenario.disk.iothread and case.workload.parameters.get("rw") == "randread"


def _virtio_writes_on_lvm(case: Case) -> bool:
    scenario, way = case.scenario, case.workload.parameters.get("rw")
    return scenario.node == "pve4" and scenario.disk.bus == Bus.VIRTIO and way == "randwrite"


def _fio_on(name: str) -> Matches:
    """Return what matches fio's cases of a node or a storage."""
    return lambda case: (
        case.workload.tool == "fio" and name in (case.scenario.node, case.scenario.storage)
    )


YEAR: Final = Story(
    days=365.0,
    facts={
        "pve": "8.2.2",
        "kernel": "6.8.4-3-pve",
        "qemu": "8.1.5-6",
        "zfs": "2.2.3",
        "accel": "kvm",
        "machine": "pc-i440fx-8.1",
        "fio": "simulated",
        "cpu_model": "Simulated CPU, 8 cores",
        "cpus": "8",
        "governor": "performance",
        "guest_kernel": "6.1.0",
    },
    upgrades=(
        Upgrade(days=300, facts={"pve": "8.3.0", "kernel": "6.8.12-4-pve", "qemu": "9.0.2-4"}),
        Upgrade(days=240, facts={"kernel": "6.11.11-1-pve", "zfs": "2.2.7"}),
        Upgrade(days=212, facts={"kernel": "6.11.11-2-pve", "zfs": "2.2.7-2"}),
        Upgrade(days=180, facts={"pve": "8.3.5", "qemu": "9.2.0-1"}),
        Upgrade(days=130, facts={"qemu": "9.2.0-5"}),
        Upgrade(days=90, facts={"pve": "8.4.1", "kernel": "6.14.5-1-pve"}, nodes=("pve2",)),
        Upgrade(days=75, facts={"kernel": "6.14.5-1-pve"}, nodes=("pve4",)),
        Upgrade(days=66, facts={"kernel": "6.11.11-2-pve"}, nodes=("pve4",)),  # back to the former
        Upgrade(days=62, facts={"kernel": "6.14.8-2-pve"}, nodes=("pve2",)),
        Upgrade(days=20, facts={"pve": "9.0.3", "kernel": "6.14.11-1-pve", "qemu": "10.0.2-4"}),
    ),
    effects=(
        Effect(begin=240, end=212, matches=_syncs_on_zfs, speed=6.0),
        Effect(begin=180, end=130, matches=lambda case: case.workload.tool == "idle", cpu=3.5),
        Effect(begin=90, end=62, matches=_fio_on("pve2"), stall=4.0),
        Effect(begin=75, end=66, matches=_virtio_writes_on_lvm, speed=0.75, cpu=1.3),
        # A week in which backups run while it measures.
        Effect(begin=57, end=50, matches=_fio_on("ceph"), speed=0.7),
        Effect(begin=20, end=0, matches=_reads_with_thread, speed=0.6, cpu=1.4),
    ),
    outages=(Outage(node="pve3", begin=40, end=33),),
)


RATES: Final = (run_metrics.IOPS.name, run_metrics.BANDWIDTH.name, run_metrics.BYTES.name)
LATENCIES: Final = (
    run_metrics.CLAT_MEAN.name,
    run_metrics.CLAT_PERCENTILE.name,
    run_metrics.SYNC_PERCENTILE.name,
)
LONGEST: Final = (run_metrics.CLAT_MAX.name,)
KEPT: Final = frozenset(
    {
        *RATES,
        *LATENCIES,
        *LONGEST,
        run_metrics.GUEST_CPU.name,
        run_metrics.IOPS_VARIATION.name,
        run_metrics.IOPS_SLOPE.name,
        run_metrics.BOOT_TIME.name,
        run_metrics.WINDOW.name,
    }
)
"""Samples of the simulated run in the history; the others are not displayed anywhere."""
DENSE_DAYS: Final = 90.0
"""Days before the end with daily runs; earlier there is a run every third day."""
NOISE: Final = 0.015
STORAGE_SPEED: Final = {"local-zfs": 0.85, "ceph": 0.45, "local-nvme": 1.6, "local-lvm": 1.1}
FAILED_SHARE: Final = 0.004


@dataclass(frozen=True, slots=True)
class _Factors:
    speed: float
    tail: float
    cpu: float
    stall: float


def history(templates: Sequence[Run], story: Story, *, end: datetime, seed: int) -> Iterator[Run]:
    """Yield the runs of the story's days until `end`, oldest first; deterministic by seed.

    Args:
        templates: one successful simulated run of each case.
    """
    moments = sorted(
        (days, number)
        for number, _ in enumerate(templates)
        for days in _days(story.days, random.Random(f"{seed} {number}"))  # noqa: S311 # a simulation, not a secret
        if story.measured(templates[number].case.scenario.node, days)
    )
    effects = [
        [effect for effect in story.effects if effect.matches(template.case)]
        for template in templates
    ]
    rng = random.Random(seed)  # noqa: S311 # likewise
    environments: dict[tuple[object, ...], Environment] = {}
    for count, (days, number) in enumerate(reversed(moments)):
        template = templates[number]
        node = template.case.scenario.node
        facts = story.environment(node, days)
        environment = environments.setdefault(
            (node, *facts.values()), Environment(node=node, facts=facts, simulated=True)
        )
        run = _run(template, effects[number], days, environment, rng)
        finished = end - timedelta(days=days)
        duration = template.duration_seconds
        yield replace(
            run,
            uid=f"{seed}-{count}",
            started=finished - timedelta(seconds=duration),
            finished=finished,
        )


def _days(days: float, rng: random.Random) -> Iterator[float]:
    at = rng.random()
    while at < days:
        yield at
        at += (1.0 if at < DENSE_DAYS else 3.0) + rng.uniform(-0.02, 0.02)


def _run(
    template: Run,
    effects: Sequence[Effect],
    days: float,
    environment: Environment,
    rng: random.Random,
) -> Run:
    scenario = template.case.scenario
    if rng.random() < FAILED_SHARE:
        return replace(
            template,
            environment=environment,
            outcome=Outcome.FAILED,
            samples=(),
            evidence={},
            reason="no response of the guest agent (simulated)",
        )
    active = [effect for effect in effects if effect.end < days <= effect.begin]
    factors = _factors(active, STORAGE_SPEED.get(scenario.storage, 1.0), rng)
    samples = [_moved(sample, factors) for sample in template.samples if sample.metric in KEPT]
    samples += _histogram(template.samples, factors)
    samples += _host(scenario.disk, samples, factors)
    samples += _operation(template.case.workload.during, samples, factors)
    return replace(template, environment=environment, samples=tuple(samples), evidence={})


def _factors(effects: Sequence[Effect], speed: float, rng: random.Random) -> _Factors:
    speed *= math.prod(effect.speed for effect in effects) * math.exp(rng.gauss(0.0, NOISE))
    return _Factors(
        speed=speed,
        tail=math.exp(rng.gauss(0.0, 3 * NOISE)),
        cpu=math.prod(effect.cpu for effect in effects) * math.exp(rng.gauss(0.0, NOISE)),
        stall=max((effect.stall for effect in effects), default=0.0) * rng.uniform(0.6, 1.6),
    )


def _moved(sample: Sample, factors: _Factors) -> Sample:
    name, value = sample.metric, sample.value
    if name in RATES:
        value *= factors.speed
    elif name in LATENCIES:
        # The far tail varies more from run to run than the median.
        value *= (factors.tail if sample.part in ("99.9", "99.99") else 1.0) / factors.speed
    elif name in LONGEST:
        value = max(value / factors.speed * factors.tail, factors.stall)
    elif name == run_metrics.GUEST_CPU.name:
        value *= factors.cpu
    return replace(sample, value=value)


def _histogram(samples: Iterable[Sample], factors: _Factors) -> list[Sample]:
    """Return the histogram after the change of speed."""
    moved: dict[tuple[Direction | None, str], float] = {}
    for sample in samples:
        if sample.metric == run_metrics.CLAT_HISTOGRAM.name:
            part, value = sample.part, float(round(sample.value * factors.speed))
            if part == SUM:
                value = sample.value  # more operations, which are shorter by the same factor
            elif part != LATENCY_BOUNDS[-1]:
                part = latency_bound(round(0.75e9 * float(part) / factors.speed))
            moved[sample.direction, part] = moved.get((sample.direction, part), 0.0) + value
    for direction in {direction for direction, _ in moved} if factors.stall else ():
        stalled = latency_bound(round(1e9 * factors.stall))
        moved[direction, SUM] += STALLED * factors.stall
        moved[direction, stalled] = moved.get((direction, stalled), 0.0) + STALLED
    return [
        run_metrics.CLAT_HISTOGRAM.sample(value, direction, part)
        for (direction, part), value in moved.items()
    ]


# --- Host CPU of a simulated VM, by what it does.

STALLED: Final = 3.0
"""Operations of a run that a stall holds up."""
IDLE_CORES: Final = {"qemu": 0.018, "vcpu": 0.011, "iothread": 0.0, "other": 0.012}
CPU_SECONDS_PER_BYTE: Final = 6e-11
CPU_CACHE: Final = 1.12
CPU_QCOW2: Final = 1.15
"""Factors of a copy in the host's page cache, and of the tables of an image."""


def _host(disk: Disk, samples: Iterable[Sample], factors: _Factors) -> list[Sample]:
    """Return host CPU by component, and context switches, for the rates of a run."""
    rates = {
        run_metrics.IOPS.name: 0.0,
        run_metrics.BANDWIDTH.name: 0.0,
        run_metrics.WINDOW.name: 0.0,
    }
    for sample in samples:
        if sample.metric in rates:
            rates[sample.metric] += sample.value
    busy = rates[run_metrics.IOPS.name] * BUS_SPEED[disk.bus][1]
    busy += rates[run_metrics.BANDWIDTH.name] * CPU_SECONDS_PER_BYTE
    busy *= CPU_CACHE if disk.cache in (Cache.WRITEBACK, Cache.WRITETHROUGH) else 1.0
    busy *= CPU_QCOW2 if disk.format is Format.QCOW2 else 1.0
    shares = {"qemu": 1.0, "vcpu": 0.45, "iothread": 0.4 * disk.iothread, "other": 0.2}
    cores = {
        name: factors.cpu * (IDLE_CORES[name] + share * busy) for name, share in shares.items()
    }
    cores["total"] = cores["qemu"] + cores["other"]
    switches = factors.cpu * rates[run_metrics.WINDOW.name] * (250.0 + rates[run_metrics.IOPS.name])
    return [
        *(run_metrics.HOST_CPU.sample(value, part=name) for name, value in cores.items()),
        run_metrics.HOST_CONTEXT_SWITCHES.sample(switches),
    ]


# --- What a simulated guest notices of a backup.

RESOLUTION: Final = 0.1
BACKUPS: Final = {"backup": (2.2, 0.3, 14.0, 6.0), "backup-fleecing": (0.3, 0.01, 1.3, 1.6)}
"""Operation -> longest gap, p99 during it, time worth of lost I/O, recovery; in seconds."""
QUIET_P99: Final = 0.002
BACKUP_SECONDS: Final = 14.0
BACKUP_BYTES: Final = float(1 << 30)


def _operation(name: str, samples: Iterable[Sample], factors: _Factors) -> list[Sample]:
    """Return the figures of an operation during a run, none without one."""
    if name not in BACKUPS:
        return []
    gap, p99, lost, recovery = (factors.tail / factors.speed * value for value in BACKUPS[name])
    rate = sum(sample.value for sample in samples if sample.metric == run_metrics.IOPS.name)
    gap = RESOLUTION * round(max(gap, factors.stall) / RESOLUTION)
    return [
        run_metrics.OPERATION_GAP.sample(gap),
        run_metrics.OPERATION_RESOLUTION.sample(RESOLUTION),
        run_metrics.OPERATION_LOST.sample(round(lost * rate)),
        run_metrics.OPERATION_RECOVERY.sample(recovery),
        run_metrics.OPERATION_TIME.sample(BACKUP_SECONDS * factors.tail),
        run_metrics.OPERATION_BYTES.sample(BACKUP_BYTES),
        *(
            run_metrics.OPERATION_P99.sample(value, part=phase)
            for phase, value in (("before", QUIET_P99), ("during", p99), ("after", QUIET_P99))
        ),
    ]
