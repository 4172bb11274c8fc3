"""Nodes with many cases, some of whose noise is shared by the whole host, by seed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from testing.noise import (
    BUSY,
    CV,
    DAY,
    Random,
    Series,
    Vector,
    autocorrelated,
    clock,
    day_load,
    unchanged,
)

Labels = Mapping[str, str]
BUSES: Final = ("virtio", "scsi", "sata")
ROUND: Final = 40 * 60.0
"""Seconds between the first and the last case of a cycle."""


def labels_144() -> list[dict[str, str]]:
    """Return 144 cases: 3 buses × 4 caches × 2 formats × 6 workloads."""
    values = {
        "bus": BUSES,
        "cache": ("none", "directsync", "writethrough", "writeback"),
        "format": ("raw", "qcow2"),
        "workload": ("randread", "randwrite", "read", "write", "sync", "rw"),
    }
    return [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]


def labels_24() -> list[dict[str, str]]:
    """Return 24 of these cases, eight of each bus."""
    return labels_144()[::6]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Cases with equal times of their cycles.

    Attributes:
        labels: of each case.
        times: of each cycle, Unix seconds; each case runs a little later than the one before it.
        logs: [cases, cycles] logarithms; positive is faster.
        environments: of each cycle; empty: one environment.
    """

    labels: list[dict[str, str]]
    times: Vector
    logs: Vector
    environments: tuple[str, ...] = ()

    def series(self) -> list[Series]:
        """Return the history of each case."""
        later = ROUND / len(self.labels)
        return [
            Series(self.times + later * row, logs, self.environments)
            for row, logs in enumerate(self.logs)
        ]

    def members(self, **matching: str) -> Vector:
        """Return 1 for each case with these labels, otherwise 0."""
        hits = [all(case[key] == text for key, text in matching.items()) for case in self.labels]
        return np.array(hits, dtype=float)

    def changed(self, at: int, ratio: float, members: Vector, until: int | None = None) -> Fleet:
        """Return it with the members multiplied by `ratio` from cycle `at` on."""
        logs = self.logs.copy()
        logs[:, at:until] += np.log(ratio) * members[:, None]
        return replace(self, logs=logs)

    def upgraded(self, *at: int) -> Fleet:
        """Return it with a new environment from each of the cycles `at` on."""
        return replace(self, environments=Series(self.times, self.times).upgraded(*at).environments)


def fleet(rng: Random, labels: list[dict[str, str]], cycles: int, a_day: float = 1.0) -> Fleet:
    """Return quiet cases: each with its own CV and kind, and a share of the host's noise."""
    cvs = np.exp(rng.uniform(np.log(0.01), np.log(0.05), len(labels)))
    kinds = rng.choice(["independent", "AR(1)", "drift", "t3 tails", "spikes"], len(labels))
    own = np.array(
        [
            unchanged(str(kind), rng, cycles, a_day).logs * cv / CV
            for kind, cv in zip(kinds, cvs, strict=True)
        ]
    )
    times = clock(rng, cycles, a_day)
    share = rng.uniform(0.0, 0.6, len(labels)) * cvs
    return Fleet(labels, times, own + share[:, None] * autocorrelated(rng, times, cv=1.0))


def loaded(rng: Random, cycles: int, depth: float, a_day: float = 8.0) -> Fleet:
    """Return 144 cases below a load of the day that differs from day to day (sd 30%).

    Each case has its own sensitivity to the load, 0.8 to 1.2.
    """
    node = fleet(rng, labels_144(), cycles, a_day)
    load = day_load(rng, node.times, depth=depth, cv=0.0)
    share = rng.uniform(0.8, 1.2, len(node.labels))
    return replace(node, logs=node.logs + share[:, None] * load)


def mixed_case(rng: Random, runs: int, a_day: float = 1.0) -> Series:
    """Return a series with one of the usual kinds of noise."""
    return unchanged(str(rng.choice(BUSY)), rng, runs, a_day)


__all__ = ["DAY", "Fleet", "fleet", "labels_24", "labels_144", "loaded", "mixed_case"]
