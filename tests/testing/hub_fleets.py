"""Simulated fleets with known truth: sites that upgrade at their own times, with their own noise.

Nuisances: each site has the noise of `fleets`, now and then another load, and in one week all sites
share a disturbance, whether they upgraded or not.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pvebench.analysis.case_history import CaseHistory, GoodRuns
from pvebench.analysis.events import Event
from pvebench.model.run_metrics import JUDGED
from pvebench_fleet.across_sites import FleetEffect, fleet_effects
from pvebench_fleet.node_effects import NodeEffect, node_effects
from testing.fleets import DAY, Fleet, fleet, labels_24
from testing.noise import EPOCH, Random

SITES: Final = 12
OTHERS: Final = 4
DAYS: Final = 150
KERNEL: Final = ("6.14.5-1-pve", "6.14.8-2-pve")
QEMU: Final = ("9.2.0-1", "9.2.0-5")
LOAD_CHANCE: Final = 0.3
"""Share of sites whose load changes once."""


def effects_of_fleet(
    seed: int, *, slow_sites: int, ratio: float, members: dict[str, str]
) -> list[FleetEffect]:
    """Return what is found in a fleet; `slow_sites` of its sites get slower with the kernel.

    Args:
        ratio: factor of the throughput of these sites.
        members: labels of the cases that get slower; empty: all.
    """
    rng = np.random.default_rng(seed)
    disturbed = int(rng.integers(95, 130))
    effects: dict[str, list[list[NodeEffect]]] = {}
    for number in range(SITES + OTHERS):
        upgraded = int(rng.integers(100, 125)) if number < SITES else None
        effects[f"site{number:02}"] = [
            _node(rng, disturbed, upgraded, ratio if number < slow_sites else 1.0, members)
        ]
    return fleet_effects(effects)


def _node(
    rng: Random, disturbed: int, upgraded: int | None, ratio: float, members: dict[str, str]
) -> list[NodeEffect]:
    node = fleet(rng, labels_24(), DAYS)
    begin = EPOCH + rng.uniform(0.0, DAY)  # in common, so that sites have the same weeks
    node = replace(node, times=node.times - node.times[0] + begin)
    every = np.ones(len(node.labels))
    node = node.changed(disturbed, 0.97, every, until=disturbed + 7)
    if rng.random() < LOAD_CHANCE:
        node = node.changed(int(rng.integers(10, DAYS - 10)), float(rng.uniform(0.93, 1.07)), every)
    events: list[Event] = []
    qemu = int(rng.integers(20, 30))
    events.append(_event(node, qemu, "qemu", QEMU))
    if upgraded is not None:
        node = node.changed(upgraded, ratio, node.members(**members))
        events.append(_event(node, upgraded, "kernel", KERNEL))
    return node_effects(histories(node), events)


def _event(node: Fleet, at: int, fact: str, versions: Sequence[str]) -> Event:
    return Event(time=float(node.times[at]), before={fact: versions[0]}, after={fact: versions[1]})


def histories(node: Fleet) -> list[CaseHistory]:
    """Return the throughput of the cases of a node."""
    found = []
    for place, (series, labels) in enumerate(zip(node.series(), node.labels, strict=True)):
        runs = GoodRuns.of_columns(
            array("d", series.times),
            [""] * len(series.times),
            array("d", 1000 * np.exp(series.logs)),
        )
        shown = {("rw" if key == "workload" else key): value for key, value in labels.items()}
        found.append(
            CaseHistory(
                case=str(place), of=str(place), name=str(place),
                figure=JUDGED["throughput"], labels=shown, points=runs,
            )
        )  # fmt: skip
    return found
