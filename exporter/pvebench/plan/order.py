"""The order of a cycle, and what it will cost."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Case
from pvebench.plan.expand import LeftOut, Matrix
from pvebench.workloads import ROOMS

BOOT_SECONDS: Final = 10.0
SWITCH_SECONDS: Final = 1.0
OVERHEAD_SECONDS: Final = 1.5
"""Per run: start of the tool, reading its output back."""
FILL_BYTES_PER_SECOND: Final = 100 * MIB
"""Typical speed of the fill under TCG; only the estimate rests on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered cases of one cycle.

    Attributes:
        cases: in the order they will run.
        left_out: what will not run, and why.
        restarts, switches, fills: how often the VM boots, the disk is swapped, a volume is filled.
        seconds: estimated wall time.
        bytes_written: estimated bytes written to the storages, fills included.
    """

    cases: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    restarts: int
    switches: int
    fills: int
    seconds: float
    bytes_written: int


def make_plan(
    matrix: Matrix, *, seed: int | str, settle_seconds: float = 0.0,
    overdue: Mapping[str, float] | None = None,
) -> Plan:  # fmt: skip
    """Return the cases in an order with few restarts and fills.

    Cases that need the same VM stay together, within them those on one volume, within them
    those of one scenario. The order of the groups, and of the workloads in a scenario, is
    shuffled by `seed`: a drift of the machine must not look like an effect of an option. With
    `overdue` (case key -> seconds), groups with the most overdue case come first.
    """
    cases = _ordered(matrix.cases, random.Random(str(seed)), overdue or {})  # noqa: S311 # a shuffle
    restarts = _changes(case.scenario.machine for case in cases)
    switches = _changes(case.scenario for case in cases)
    volumes = {case.scenario.volume: case.scenario for case in cases}
    fill_bytes = sum(scenario.volume_bytes for scenario in volumes.values())
    estimates = [
        ROOMS[case.workload.tool].estimate(case.workload, case.scenario.volume_bytes)
        for case in cases
    ]
    overhead = (settle_seconds + OVERHEAD_SECONDS) * len(cases)
    return Plan(
        cases=tuple(cases),
        left_out=matrix.left_out,
        restarts=restarts,
        switches=switches,
        fills=len(volumes),
        seconds=restarts * BOOT_SECONDS
        + switches * SWITCH_SECONDS
        + fill_bytes / FILL_BYTES_PER_SECOND
        + sum(estimate.seconds for estimate in estimates)
        + overhead,
        bytes_written=fill_bytes + sum(estimate.bytes_written for estimate in estimates),
    )


def _changes(items: Iterable[object]) -> int:
    return sum(1 for _ in groupby(items))


def _ordered(cases: Iterable[Case], rng: random.Random, overdue: Mapping[str, float]) -> list[Case]:
    """Sort by machine, volume, scenario; each level shuffled, then stably by overdue."""
    shuffled = sorted(cases, key=lambda case: case.slug)
    rng.shuffle(shuffled)
    levels = (_machine_key, lambda scenario: scenario.volume, lambda scenario: scenario.slug)
    urgency: dict[tuple[str, ...], float] = {}
    rank: dict[tuple[str, ...], int] = {}
    for case in shuffled:
        late = overdue.get(case.key, 0.0)
        path: tuple[str, ...] = ()
        for level in levels:
            path = (*path, level(case.scenario))
            urgency[path] = max(urgency.get(path, 0.0), late)
            rank.setdefault(path, len(rank))

    def sort_key(case: Case) -> list[tuple[float, int]]:
        path: tuple[str, ...] = ()
        keys = []
        for level in levels:
            path = (*path, level(case.scenario))
            keys.append((-urgency[path], rank[path]))
        return keys

    return sorted(shuffled, key=sort_key)


def _machine_key(scenario: Scenario) -> str:
    return f"{scenario.machine.memory_bytes}/{scenario.machine.cpus}"
