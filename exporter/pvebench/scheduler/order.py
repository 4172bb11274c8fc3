"""Order of a cycle's cases, and its estimated cost."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from pvebench.model.disk import HostCache
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.scheduler.case_matrix import ExcludedCase, Matrix
from pvebench.workloads import TOOLS

BOOT_SECONDS: Final = 10.0
SWITCH_SECONDS: Final = 1.0
OVERHEAD_SECONDS: Final = 1.5
"""Per run: start of the tool and reading of its output."""
FILL_BYTES_PER_SECOND: Final = 100 * MIB
"""Typical speed of the fill under TCG; used for estimates only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered cases of one cycle.

    Attributes:
        cases: in the order of their runs.
        excluded: cases that will not run, with reasons.
        restarts, switches, fills: number of VM boots, disk switches, volume fills.
        seconds: estimated wall time.
        bytes_written: estimated bytes written to the storages, fills included.
    """

    cases: tuple[Case, ...]
    excluded: tuple[ExcludedCase, ...]
    restarts: int
    switches: int
    fills: int
    seconds: float
    bytes_written: int


def make_plan(
    matrix: Matrix,
    *,
    seed: int | str,
    conduct: Conduct | None = None,
    overdue: Mapping[str, float] | None = None,
) -> Plan:
    """Return the cases in an order with few restarts and fills.

    Cases that need the same VM stay together, within them those on one volume, within them
    those of one scenario. The order of the groups, and of the workloads in a scenario, is
    shuffled by `seed`: a drift of the machine must not look like an effect of an option. With
    `overdue` (case key -> seconds), groups with the most overdue case come first. Repeats of a
    case are a whole pass over its scenario apart.
    """
    conduct = conduct or Conduct()
    rng = random.Random(str(seed))  # noqa: S311 # a shuffle
    cases = _ordered(matrix.cases, rng, overdue or {}, repeats=conduct.repeats)
    fresh = sum(TOOLS[case.workload.tool].fresh_boot for case in cases)
    restarts = _changes(_boot_key(case.scenario) for case in cases) + fresh
    cooled = [case.scenario for case in cases if case.scenario.cooled]
    restarts += sum(scenario.disk.cold for scenario in cooled)
    switches = _changes(case.scenario for case in cases) + 2 * len(cooled)
    filled = _fills(cases)
    fill_bytes = sum(filled)
    estimates = [
        TOOLS[case.workload.tool].estimate(case.workload, case.scenario.volume_bytes)
        for case in cases
    ]
    overhead = (conduct.settle_seconds + OVERHEAD_SECONDS) * len(cases)
    return Plan(
        cases=tuple(cases),
        excluded=matrix.excluded,
        restarts=restarts,
        switches=switches,
        fills=len(filled),
        seconds=restarts * BOOT_SECONDS
        + switches * SWITCH_SECONDS
        + fill_bytes / FILL_BYTES_PER_SECOND
        + sum(estimate.seconds for estimate in estimates)
        + overhead,
        bytes_written=fill_bytes + sum(estimate.bytes_written for estimate in estimates),
    )


def _changes(items: Iterable[object]) -> int:
    return sum(1 for _ in groupby(items))


def _fills(cases: Iterable[Case]) -> list[int]:
    """Return the bytes of each fill, one whenever a volume needs other content than it has."""
    content: dict[str, str] = {}
    filled = []
    for case in cases:
        scenario = case.scenario
        required = scenario.layout.content
        if scenario.cooled is HostCache.REWRITTEN:
            content.pop(scenario.volume, None)
        if not scenario.disk.backing and content.get(scenario.volume) != required:
            content[scenario.volume] = required
            size = scenario.layout.file_bytes or scenario.volume_bytes
            filled.append(size * scenario.layout.fill_passes)
        if case.workload.spoils:
            content.pop(scenario.volume, None)
    return filled


def _ordered(
    cases: Iterable[Case], rng: random.Random, overdue: Mapping[str, float], *, repeats: int
) -> list[Case]:
    """Sort by boot, volume content and scenario; each level shuffled, overdue groups first."""
    known = sorted(cases, key=lambda case: case.slug)
    passes: list[Case] = []
    for _ in range(repeats):
        rng.shuffle(known)
        passes += known
    levels = (_boot_key, _volume_key, lambda scenario: scenario.slug)
    urgency: dict[tuple[str, ...], float] = {}
    rank: dict[tuple[str, ...], int] = {}
    for case in passes:
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
        # Host cases go first: the others are compared with them. Then containers, so that all
        # cases without a VM are next to each other.
        disk = case.scenario.disk
        return [(0.0, int(not disk.on_host) + int(disk.in_vm)), *keys]

    # The sort is stable: passes over one scenario stay one after the other.
    return sorted(passes, key=sort_key)


def _boot_key(scenario: Scenario) -> str:
    """Return a key of the VM that is needed, with the disk if it cannot be hot-plugged."""
    machine = f"{scenario.machine.memory_bytes}/{scenario.machine.cpus}"
    own_boot = scenario.disk.cold and scenario.disk.in_vm
    return f"{machine}/{scenario.slug}" if own_boot else machine


def _volume_key(scenario: Scenario) -> str:
    return f"{scenario.volume}/{scenario.layout.content}"
