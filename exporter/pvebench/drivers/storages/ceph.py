"""What a Ceph cluster does beside our runs: recovery, slow OSDs, copies that are missing.

Read from the answer of `ceph status`, which Proxmox's API gives as it is (a node's ceph/status),
so that one reading serves the lab and a cluster. Names of states and checks are Ceph's own
(doc/rados/operations: pg-states, health-checks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.responses import Shape, fields, rows, table, text, whole
from pvebench.errors import DriverError
from pvebench.model.ports import Hold, HoldKind
from pvebench.model.workload import Case

STATUS: Final[Shape] = fields(
    health_=fields(status_=text, checks_=table(fields(summary_=fields(message_=text)))),
    pgmap_=fields(pgs_by_state_=rows(fields(state_name=text, count=whole))),
)
"""What is read of the answer."""
MOVING: Final = frozenset(
    {
        "activating",
        "backfilling",
        "backfill_wait",
        "creating",
        "forced_backfill",
        "forced_recovery",
        "peering",
        "recovering",
        "recovery_wait",
        "repair",
        "snaptrim",
        "snaptrim_wait",
    }
)
"""States of a placement group that pass by themselves, and cost clients speed meanwhile."""
WAITING: Final = frozenset(
    {
        "backfill_toofull",
        "backfill_unfound",
        "degraded",
        "down",
        "incomplete",
        "inconsistent",
        "recovery_toofull",
        "recovery_unfound",
        "snaptrim_error",
        "stale",
        "undersized",
        "unknown",
    }
)
"""States that last until somebody does something: fewer copies are written, or none."""
DOWN: Final = "OSD_DOWN"
"""Health check of an OSD that does not run; told before any placement group shows it."""
SLOW: Final = frozenset(
    {"BLUESTORE_SLOW_OP_ALERT", "OSD_SLOW_PING_TIME_BACK", "OSD_SLOW_PING_TIME_FRONT", "SLOW_OPS"}
)
"""Health checks that tell of OSDs that answer late."""
AGAIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What would be measured beside the storage.

    Attributes:
        text: in words; what Ceph calls it.
        passes: whether it ends by itself.
    """

    text: str
    passes: bool

    def hold(self) -> Hold:
        """Return what a guard says of it: to be waited for, or skipped until it is mended."""
        again = AGAIN_SECONDS
        return Hold(kind=HoldKind.BUSY, reason=self.text, seconds=again, skip=not self.passes)


def trouble(status: Mapping[str, Any]) -> Trouble | None:
    """Return why nothing should be measured on this cluster now; None: nothing that is known.

    A scrub is no reason: on a large cluster there is always one.

    Args:
        status: the answer of `ceph status`. What is missing in it holds nothing.
    """
    states = dict(_states(status))
    groups = sum(states.values())
    moving, waiting = _named(states, MOVING), _named(states, WAITING)
    if moving:
        return Trouble(f"Ceph moves data: {_share(moving, states, groups)}", passes=True)
    if late := sorted(SLOW & set(_checks(status))):
        told = "; ".join(_summary(status, name) for name in late)
        return Trouble(f"Ceph has slow OSDs: {told}", passes=True)
    if waiting:
        return Trouble(f"Ceph is not whole: {_share(waiting, states, groups)}", passes=False)
    if DOWN in _checks(status):
        return Trouble(f"Ceph is not whole: {_summary(status, DOWN)}", passes=False)
    return None


def _states(status: Mapping[str, Any]) -> Iterator[tuple[frozenset[str], int]]:
    """Yield the states that placement groups are in together, and how many of them are."""
    for entry in _map(status, "pgmap").get("pgs_by_state") or ():
        yield frozenset(str(entry["state_name"]).split("+")), int(entry["count"])


def _named(states: Mapping[frozenset[str], int], wanted: frozenset[str]) -> list[str]:
    return sorted({name for together in states for name in together & wanted})


def _share(names: list[str], states: Mapping[frozenset[str], int], groups: int) -> str:
    count = sum(number for together, number in states.items() if together & set(names))
    return f"{count} of {groups} placement groups are {', '.join(names)}"


def _checks(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return _map(_map(status, "health"), "checks")


def _summary(status: Mapping[str, Any], check: str) -> str:
    return str(_map(_map(_checks(status), check), "summary").get("message", check))


def _map(told: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = told.get(key)
    return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, slots=True)
class CephGuard:
    """`model.guard.Guard` of storages that are Ceph pools: asked before and after each run.

    Attributes:
        statuses: storage -> returns the answer of `ceph status` of its cluster.
    """

    statuses: Mapping[str, Callable[[], Mapping[str, Any]]]

    def enter(self, case: Case) -> Hold | None:
        found = self._look(case)
        return found.hold() if found else None

    def leave(self, case: Case) -> str:
        found = self._look(case)
        return found.text if found else ""

    def _look(self, case: Case) -> Trouble | None:
        status = self.statuses.get(case.scenario.storage)
        if status is None:
            return None
        try:
            return trouble(status())
        except DriverError:
            return None  # the run itself says what is wrong with the cluster
