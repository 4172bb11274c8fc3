"""Limit of the backups and moves on a node in 24 hours, by the node's own task history.

The history outlives restarts of pvebench, and counts attempts that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.errors import DriverError
from pvebench.model.ports import Hold, HoldKind
from pvebench.model.workload import Case

_KINDS: Final = dict.fromkeys(("backup", "backup-fleecing", "restore"), "vzdump") | {
    "move": "qmmove"
}
"""Operation -> task type; a restore needs a backup, snapshots are short and not limited."""
_DAY_SECONDS: Final = 86400
_MAX_TASKS: Final = 500


class OperationGuard:
    """`model.ports.Guard` that skips a case whose operation reached its limit.

    Args:
        user: full ID of pvebench's token.
        per_day: maximum tasks of a kind in 24 hours.
    """

    def __init__(
        self, api: Api, node: str, user: str, *, per_day: int, now: Callable[[], float] = time.time
    ) -> None:
        self._api = api
        self._node = node
        self._user = user
        self._per_day = per_day
        self._now = now

    def enter(self, case: Case) -> Hold | None:
        kind = _KINDS.get(case.workload.during)
        if kind is None:
            return None
        try:
            begun = self._begun(kind)
        except DriverError as error:
            return Hold(kind=HoldKind.AWAY, reason=error.reason, skip=True)
        if len(begun) < self._per_day:
            return None
        hours = (begun[self._per_day - 1] + _DAY_SECONDS - self._now()) / 3600
        reason = (
            f"{len(begun)} {case.workload.during} tasks ({kind}) on {self._node} in 24 hours, "
            f"operations.per_day allows {self._per_day}; the next one in {max(0.0, hours):.1f} h"
        )
        return Hold(kind=HoldKind.BUDGET, reason=reason, skip=True)

    def _begun(self, kind: str) -> list[float]:
        """Return the start times of pvebench's tasks in the last 24 hours, the newest first."""
        since = self._now() - _DAY_SECONDS
        rows = self._api.get(
            f"/nodes/{self._node}/tasks",
            source="all",
            typefilter=kind,
            since=int(since),
            limit=_MAX_TASKS,
        )
        own = [row["starttime"] for row in rows if f":{self._user}:" in row["upid"]]
        return sorted((at for at in own if at >= since), reverse=True)

    def leave(self, case: Case) -> str:
        """Return an empty string: it guards the node's storages, not the run."""
        del case
        return ""
