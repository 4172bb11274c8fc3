"""A long history from one simulated run of each case: the same numbers, moved by a story."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pvebench.drivers.simulated.story import Effect, Story
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit

RATES: Final = ("iops", "bandwidth", "bytes", "operations")
LATENCIES: Final = ("clat_mean", "clat_percentile", "sync_percentile", "sync_mean", "lat_mean")
LONGEST: Final = ("clat_max", "lat_max", "sync_max")
COSTS: Final = ("host_cpu", "guest_cpu")
KEPT: Final = frozenset(
    {*RATES, *LATENCIES, *LONGEST, *COSTS, "iops_variation", "iops_slope", "boot_time", "window"}
)
"""Samples of the simulated run that the history keeps; the others are shown nowhere."""
DENSE_DAYS: Final = 90.0
"""So long before the end every case is measured daily, earlier every third day."""
NOISE: Final = 0.015
STORAGE_SPEED: Final = {"local-zfs": 0.85, "ceph": 0.45, "local-nvme": 1.6}
FAILED_SHARE: Final = 0.004


@dataclass(frozen=True, slots=True)
class _Factors:
    speed: float
    tail: float
    cpu: float
    stall: float


def history(templates: Sequence[Run], story: Story, *, end: datetime, seed: int) -> Iterator[Run]:
    """Yield the runs of the story's days until `end`, oldest first; the same for the same seed.

    Args:
        templates: one good simulated run of each case.
    """
    moments = sorted(
        (days, number)
        for number, _ in enumerate(templates)
        for days in _days(story.days, random.Random(f"{seed} {number}"))  # noqa: S311 # a simulation, not a secret
    )
    effects = [story.effects_on(template.case) for template in templates]
    rng = random.Random(seed)  # noqa: S311 # likewise
    for count, (days, number) in enumerate(reversed(moments)):
        run = _run(templates[number], effects[number], days, story, rng)
        finished = end - timedelta(days=days)
        took = templates[number].duration_seconds
        yield replace(
            run, uid=f"{seed}-{count}", started=finished - timedelta(seconds=took),
            finished=finished,
        )  # fmt: skip


def _days(days: float, rng: random.Random) -> Iterator[float]:
    at = rng.random()
    while at < days:
        yield at
        at += (1.0 if at < DENSE_DAYS else 3.0) + rng.uniform(-0.02, 0.02)


def _run(
    template: Run, effects: Sequence[Effect], days: float, story: Story, rng: random.Random
) -> Run:
    scenario = template.case.scenario
    facts = story.environment(scenario.node, days)
    environment = Environment(node=scenario.node, facts=facts, simulated=True)
    if rng.random() < FAILED_SHARE:
        return replace(
            template, environment=environment, outcome=Outcome.FAILED, samples=(), evidence={},
            reason="the guest agent did not answer in time (simulated)",
        )  # fmt: skip
    present = [effect for effect in effects if effect.end < days <= effect.begin]
    factors = _factors(present, STORAGE_SPEED.get(scenario.storage, 1.0), rng)
    samples = tuple(
        _moved(sample, factors) for sample in template.samples if sample.metric in KEPT
    ) + _switches(factors)
    return replace(template, environment=environment, samples=samples, evidence={})


def _factors(effects: Sequence[Effect], speed: float, rng: random.Random) -> _Factors:
    speed *= math.prod(effect.speed for effect in effects) * math.exp(rng.gauss(0.0, NOISE))
    return _Factors(
        speed=speed,
        tail=math.exp(rng.gauss(0.0, 3 * NOISE)),
        cpu=math.prod(effect.cpu for effect in effects) * math.exp(rng.gauss(0.0, NOISE)),
        stall=max((effect.stall for effect in effects), default=0.0) * rng.uniform(0.6, 1.6),
    )


def _moved(sample: Sample, factors: _Factors) -> Sample:
    if sample.metric in RATES:
        return replace(sample, value=sample.value * factors.speed)
    if sample.metric in LATENCIES:
        # Far tails swing more than the middle, from run to run.
        tail = factors.tail if sample.part in ("99.9", "99.99") else 1.0
        return replace(sample, value=sample.value / factors.speed * tail)
    if sample.metric in LONGEST:
        return replace(sample, value=max(sample.value / factors.speed, factors.stall))
    if sample.metric in COSTS:
        return replace(sample, value=sample.value * factors.cpu)
    return sample


def _switches(factors: _Factors) -> tuple[Sample, ...]:
    return (Sample("host_context_switches", None, 8e5 * factors.cpu, Unit.OPERATIONS),)
