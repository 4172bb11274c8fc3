"""A history of a small pack, with or without an upgrade that made a part of it slower."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pvebench.analysis.change import Change, Move
from pvebench.model.environment import Environment
from pvebench.model.run import Run, Sample, Unit
from pvebench.model.run_metrics import JUDGED
from pvebench.model.workload import Case
from pvebench.store.changes import KnownChange
from pvebench.store.store import Store
from pvebench.verdicts.overall_state import summary
from testing.packs import quick
from testing.stored_runs import ended

DAY = 86400.0
MOVE = Move(
    figure=JUDGED["throughput"], effect=-0.2, low=-0.22, high=-0.18, cases=4, runs=5, p_value=1e-6
)
FINDING = Change(
    begin=100 * DAY,
    nodes=("pve1",),
    known=False,
    group=None,
    all_but=False,
    cases=("a", "b", "c", "d"),
    names=("a", "b", "c", "d"),
    of=0,
    moves=(MOVE,),
)
START = datetime(2026, 5, 1, tzinfo=UTC)
CASES = quick()[1].cases
OLD = Environment(node="lab", facts={"kernel": "6.8.12-4-pve", "qemu_package": "9.0.2-5"})
NEW = Environment(node="lab", facts={"kernel": "6.8.12-4-pve", "qemu_package": "9.2.0-2"})


def named(name: str, **other: Any) -> Change:
    """Return FINDING with an ID, as an update of the verdicts has it."""
    return replace(
        FINDING, **{"id": name, "storages": ("local-zfs",), "severity": "warning", **other}
    )


def known(change: Change, **other: Any) -> KnownChange:
    """Return a change as it is stored."""
    fields = {"id": change.id, "since": change.begin, "worse": True, "gradual": False}
    return KnownChange(
        **{**fields, "cases": frozenset(change.cases), "text": summary(change), **other}
    )


def measured(case: Case, day: int, *, slower: float = 1.0, upgraded: bool = False) -> Run:
    """One run of a case; the level wobbles by a few per mille, differently for every case."""
    wobble = 1 + 0.004 * ((7 * day + 3 * hash_of(case)) % 11 - 5)
    at = START + timedelta(days=day, minutes=hash_of(case) % 600, seconds=-12)
    samples = [
        Sample("iops", way, 10_000 * wobble / slower, Unit.IOPS) for way in case.workload.directions
    ]
    samples.append(Sample("host_cpu", None, 0.5, Unit.CORES, "qemu"))
    return ended(case, at, *samples, uid=f"{case.key}/{day}", environment=NEW if upgraded else OLD)


def hash_of(case: Case) -> int:
    return sum(map(ord, case.key))


def upgrade(store: Store, *, slower: float, days: int = 30, after: int = 4) -> None:
    """Fill a store with a history whose last days are slower on virtio, in a new environment."""
    store.add_history(
        measured(
            case,
            day,
            slower=slower if day >= days and case.scenario.disk.bus == "virtio" else 1.0,
            upgraded=day >= days,
        )
        for day in range(days + after)
        for case in CASES
    )
