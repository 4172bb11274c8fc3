"""Fleets: many cases with their labels, some of whose noise is shared by the whole host."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from judging.series import KINDS, Vector

BUSES: Final = ("virtio", "scsi", "sata")
CACHES: Final = ("none", "directsync", "writethrough", "writeback", "unsafe")
FORMATS: Final = ("raw", "qcow2")
WORKLOADS: Final = ("randread", "randwrite", "read", "write", "sync")

Labels = Mapping[str, str]


def labels_144() -> list[dict[str, str]]:
    """Return 144 cases: 3 buses × 4 caches × 2 formats × 6 workloads."""
    return [
        {"bus": bus, "cache": cache, "format": form, "workload": workload}
        for bus, cache, form, workload in itertools.product(
            BUSES, CACHES[:4], FORMATS, (*WORKLOADS, "rw")
        )
    ]


def labels_1350() -> list[dict[str, str]]:
    """Return 1,350 cases: 5 buses × 5 caches × 3 formats × 9 workloads × 2 directions."""
    axes = ("bus", "cache", "format", "workload", "direction")
    values = (
        (*BUSES, "ide", "nvme"),
        CACHES,
        (*FORMATS, "vmdk"),
        [f"job{n}" for n in range(9)],
        ("read", "write"),
    )
    return [dict(zip(axes, row, strict=True)) for row in itertools.product(*values)]


def fleet(rng: np.random.Generator, cases: int, runs: int, *, most_cv: float = 0.05) -> Vector:
    """Return [cases, runs]: each case with its own CV and kind, and a share of the host's noise."""
    cvs = np.exp(rng.uniform(np.log(0.01), np.log(most_cv), cases))
    mild = [KINDS[name] for name in ("independent", "AR(1)", "drift", "t3 tails", "spikes")]
    kinds = rng.choice(len(mild), size=cases, p=[0.6, 0.12, 0.1, 0.1, 0.08])
    own = np.array([mild[kind](rng, runs, cv) for kind, cv in zip(kinds, cvs, strict=True)])
    host = KINDS["AR(1)"](rng, runs, 1.0)
    share = rng.uniform(0.0, 0.6, cases) * cvs
    return np.asarray(own + share[:, None] * host, dtype=float)


def moved(values: Vector, members: Sequence[bool], runs: int, ratio: float) -> Vector:
    """Return the fleet with the last `runs` runs of its members multiplied by `ratio`."""
    changed = values.copy()
    rows = np.flatnonzero(np.asarray(members))
    changed[rows, -runs:] += np.log(ratio)
    return changed
