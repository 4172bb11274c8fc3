"""Histories with known changes, by seed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.judge import Material
from pvebench.model.run_metrics import JUDGED

DAY = 86400.0
Labels = Mapping[str, str]
Effect = Callable[[Labels, str, int], float]
"""(labels, figure, run) -> what the value is multiplied by."""

BEFORE = {"kernel": "6.8.12-4-pve", "qemu_package": "9.0.2-5", "cpu_model": "A CPU"}
AFTER = {**BEFORE, "qemu_package": "9.2.0-2"}


def fleet_labels() -> list[dict[str, str]]:
    """Return 24 cases: 3 buses, 2 cache modes, 2 formats, reads and writes."""
    keys = ("bus", "cache", "format", "rw")
    values = (
        ("virtio", "scsi", "sata"),
        ("none", "writeback"),
        ("raw", "qcow2"),
        ("randread", "randwrite"),
    )
    return [
        {"storage": "local", **dict(zip(keys, row, strict=True))}
        for row in itertools.product(*values)
    ]


def unchanged(labels: Labels, figure: str, run: int) -> float:
    return 1.0


def histories(
    effect: Effect = unchanged,
    *,
    labels: Sequence[Labels] | None = None,
    runs: int = 45,
    changed_at: int = 40,
    figures: Sequence[str] = ("throughput",),
    noise: float = 0.02,
    seed: int = 1,
) -> list[CaseHistory]:
    """Return histories of one run a day; from run `changed_at` on in environment `new`."""
    rng = random.Random(seed)
    found = []
    for place, own in enumerate(labels if labels is not None else fleet_labels()):
        for name in figures:
            level = 10_000.0 if JUDGED[name].more_is_better else 0.001
            points = GoodRuns(
                GoodRun(
                    time=DAY * (run + 1) + place,
                    environment="old" if run < changed_at else "new",
                    value=level * effect(own, name, run) * math.exp(rng.gauss(0, noise)),
                )
                for run in range(runs)
            )
            key = "/".join(own.values()) or "case"
            found.append(
                CaseHistory(
                    case=f"{key}|read",
                    of=key,
                    name=key,
                    figure=JUDGED[name],
                    labels=own,
                    points=points,
                )
            )
    return found


def material(
    found: Sequence[CaseHistory],
    *,
    before: Labels = BEFORE,
    after: Labels = AFTER,
    accepted_until: Mapping[str, float] | None = None,
) -> Material:
    timeline = sorted({(point.time, point.environment) for one in found for point in one.points})
    return Material(
        node="",
        histories=found,
        timeline=timeline,
        facts={"old": before, "new": after},
        accepted_until=accepted_until or {},
    )


def after_change(ratio: float, changed_at: int = 40, **affected: str) -> Effect:
    """Return an effect on the cases with all these labels, from run `changed_at` on."""
    figure = affected.pop("figure", "throughput")

    def effect(labels: Labels, name: str, run: int) -> float:
        hit = all(labels.get(key) == value for key, value in affected.items())
        return ratio if hit and name == figure and run >= changed_at else 1.0

    return effect
