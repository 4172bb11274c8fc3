"""Measured durability of qcow2 without preallocation and cache=none, as of QEMU 7.2.22."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from typing import Final

from pvebench.model.durability import Barrier, Durability, Survival, Touch

DURABLE: Final = Durability(
    node="lab",
    storage="local",
    configuration="qcow2.preallocation-off.none",
    qemu="7.2.22",
    finished=datetime(2026, 11, 25, 13, 41, tzinfo=UTC),
    killed=tuple(
        Survival(
            sync=sync,
            touch=touch,
            written=16,
            found=0 if (sync, touch) == (Barrier.NONE, Touch.FIRST) else 16,
        )
        for sync, touch in product(Barrier, Touch)
    ),
    power=(
        Survival(sync=Barrier.FLUSH, touch=Touch.FIRST, written=16, found=16),
        Survival(sync=Barrier.FLUSH, touch=Touch.REWRITE, written=16, found=16),
        Survival(sync=Barrier.NONE, touch=Touch.FIRST, written=16, found=0),
    ),
    torn=0,
    damaged=0,
    requested=2,
    flushed=7,
    states=3,
    broken=0,
)
