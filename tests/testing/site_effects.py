"""Effects of upgrades at the sites of a fleet, with known truth."""

from __future__ import annotations

import numpy as np

from pvebench.analysis.case_history import Group
from pvebench.analysis.change import FactDifference
from pvebench_fleet.node_effects import EVERY_SECONDS, NodeEffect

KERNEL = FactDifference("kernel", "6.14.5", "6.14.8")
QEMU = FactDifference("qemu", "9.2.0-1", "9.2.0-5")
WEEK = 100 * EVERY_SECONDS
SCSI: Group = (("bus", "scsi"),)
ERROR = 0.008


def node_with(
    seed: int,
    *differences: FactDifference,
    effect: float = 0.0,
    shared: float = 0.0,
    at: float = WEEK,
    group: Group = (),
    own: float | None = None,
) -> list[NodeEffect]:
    """Return a node's effects: twenty weeks of noise, a shared shift in one of them, an upgrade.

    The week of the upgrade has no effect without it: its runs are of two environments.
    """
    rng = np.random.default_rng(seed)
    found = []
    for week in range(-20, 2):
        if differences and WEEK + week * EVERY_SECONDS == at:
            rng.normal()
            continue
        shift = rng.normal(0.0, ERROR) + (shared if week == 0 else 0.0)
        time = WEEK + week * EVERY_SECONDS
        found.append(NodeEffect(time, (), "throughput", group, shift, ERROR, shift, 8))
    if differences:
        shift = effect + shared + rng.normal(0.0, ERROR)
        shown = shift if own is None else own
        found.append(NodeEffect(at, differences, "throughput", group, shift, ERROR, shown, 8))
    return found


def sites_with(
    slow: int, count: int = 12, others: int = 4, *, effect: float = -0.05, shared: float = 0.0
) -> dict[str, list[list[NodeEffect]]]:
    """Return site -> effects: `count` with an upgrade, `slow` of them slower, and `others`."""
    found = {
        f"site{number:02}": [
            node_with(number, KERNEL, effect=effect if number < slow else 0.0, shared=shared)
        ]
        for number in range(count)
    }
    return found | {
        f"other{number}": [node_with(50 + number, shared=shared)] for number in range(others)
    }
