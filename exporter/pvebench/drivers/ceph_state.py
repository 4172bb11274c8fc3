"""State of a Ceph cluster, from the output of `ceph status`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.responses import Shape, fields, rows, table, text, whole
from pvebench.model.ports import Hold, HoldKind

STATUS: Final[Shape] = fields(
    health_=fields(status_=text, checks_=table(fields(summary_=fields(message_=text)))),
    pgmap_=fields(pgs_by_state_=rows(fields(state_name=text, count=whole))),
)
"""Shape of the used part of `ceph status`."""
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
"""Temporary states of a placement group, which slow down clients."""
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
"""States that last until an administrator acts: fewer copies are written, or none."""
DOWN: Final = "OSD_DOWN"
"""Health check of an OSD that is down; it precedes the states of placement groups."""
SLOW: Final = frozenset(
    {"BLUESTORE_SLOW_OP_ALERT", "OSD_SLOW_PING_TIME_BACK", "OSD_SLOW_PING_TIME_FRONT", "SLOW_OPS"}
)
"""Health checks of slow OSDs."""
AGAIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """State of the cluster that would affect results.

    Attributes:
        text: description, with Ceph's terms.
        passes: whether it is temporary.
    """

    text: str
    passes: bool

    def hold(self) -> Hold:
        """Return the hold: wait for a temporary state, else skip the case."""
        again = AGAIN_SECONDS
        return Hold(kind=HoldKind.BUSY, reason=self.text, seconds=again, skip=not self.passes)


def trouble(status: Mapping[str, Any]) -> Trouble | None:
    """Return why no case should run on this cluster now; None: no known reason.

    A scrub is no reason: on a large cluster one is always active.

    Args:
        status: the output of `ceph status`. Missing members hold no case.
    """
    entries = _map(status, "pgmap").get("pgs_by_state") or ()
    states = {frozenset(str(e["state_name"]).split("+")): int(e["count"]) for e in entries}
    groups = sum(states.values())
    moving, waiting = _named(states, MOVING), _named(states, WAITING)
    if moving:
        return Trouble(f"Ceph is moving data: {_share(moving, states, groups)}", passes=True)
    if late := sorted(SLOW & set(_checks(status))):
        summaries = "; ".join(_summary(status, name) for name in late)
        return Trouble(f"Ceph has slow OSDs: {summaries}", passes=True)
    if waiting:
        return Trouble(f"Ceph is degraded: {_share(waiting, states, groups)}", passes=False)
    if DOWN in _checks(status):
        return Trouble(f"Ceph is degraded: {_summary(status, DOWN)}", passes=False)
    return None


def _named(states: Mapping[frozenset[str], int], selected: frozenset[str]) -> list[str]:
    return sorted({name for combination in states for name in combination & selected})


def _share(names: list[str], states: Mapping[frozenset[str], int], groups: int) -> str:
    count = sum(number for combination, number in states.items() if combination & set(names))
    return f"{count} of {groups} placement groups are {', '.join(names)}"


def _checks(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return _map(_map(status, "health"), "checks")


def _summary(status: Mapping[str, Any], check: str) -> str:
    return str(_map(_map(_checks(status), check), "summary").get("message", check))


def _map(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}
