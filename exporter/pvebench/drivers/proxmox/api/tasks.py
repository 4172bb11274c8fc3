"""Proxmox tasks: start, wait for the end, recovery after a lost response."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pvebench.drivers.clocks import attempts
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import ConfigLocked, Rejected, readable, specific
from pvebench.errors import DriverError, OutcomeUnknown, ServerGone
from pvebench.model.ports import Clock
from pvebench.model.units import DAY

T = TypeVar("T")
_WARNINGS: Final = re.compile(r"WARNINGS: \d+\Z")
_STOPPING: Final = frozenset(
    {"qmstop", "qmshutdown", "qmreboot", "qmsuspend", "qmigrate", "hastop", "hashutdown"}
)
"""Types of tasks after which a VM is off, or no longer on its node."""
_KILLED: Final = (
    *("unexpected status", "unable to read tail", "unable to open file - "),
    *("unable to extract last line", "unable to get last line"),
)
"""Starts of the exit status of a task whose log has no last line (`upid_read_status` of
PVE/Tools.pm): it was killed, or its node crashed."""
SEARCH_SECONDS: Final = 10.0
"""Time within which a task with a lost UPID must appear in the list, seconds."""
_MAX_UNIDENTIFIED: Final = 20
"""Maximum unidentified tasks, of the 50 that a listing returns."""
_LOCK_SECONDS: Final = 60.0
"""Maximum wait for another request's configuration lock, seconds; the cleanup of a stopped VM
takes 30 s."""


class TaskKilled(Rejected):
    """Task that ended without undoing anything."""


def was_killed(exit_status: str) -> bool:
    """Return whether the exit status of a task says that it was killed, or its node crashed."""
    return exit_status.startswith(_KILLED)


@dataclass(frozen=True, slots=True)
class Ended:
    """Successful task. `warnings` is its log if it warned, else empty."""

    upid: str
    warnings: str = ""


KEPT_TASKS: Final = 1200
"""Approximate number of tasks that a node keeps: two indexes of 50,000 bytes, 85 bytes per line."""


def share_of_log(api: Api, node: str, user: str, now: float) -> str:
    """Return the user's share of a node's task history in the last 24 hours."""
    own = len(starts_in_a_day(api, node, user, now))
    return (
        f"{own} by pvebench in 24 hours, {own / KEPT_TASKS:.0%} of the about {KEPT_TASKS} "
        "tasks that a node keeps"
    )


def starts_in_a_day(api: Api, node: str, user: str, now: float, kind: str = "") -> list[float]:
    """Return the start times of the user's tasks in the last 24 hours, the newest first."""
    since = now - int(DAY)
    rows = tasks_of(api, node, kind, since=int(since), limit=KEPT_TASKS)
    starts = [row["starttime"] for row in reversed(rows) if f":{user}:" in row["upid"]]
    return [at for at in starts if at >= since]


class Tasks:
    """Tasks of a VM (vmid 0: of no VM) on a node. Owned by one thread."""

    def __init__(self, api: Api, node: str, clock: Clock, *, vmid: int = 0) -> None:
        self._api = api
        self._node = node
        self._clock = clock
        self._vmid = vmid
        self._learned = False
        self._known: set[str] = set()
        self._unidentified: Counter[str] = Counter()
        """Type -> maximum number of own tasks since `learn` whose UPID is unknown."""

    def learn(self) -> None:
        """Record existing tasks, so that later searches ignore them."""
        self._known |= {str(entry["upid"]) for entry in self._listed("")}
        self._unidentified.clear()
        self._learned = True

    def at_once(self, call: Callable[[], T]) -> T:
        """Make a synchronous `call`; repeat it while another request holds the lock."""
        give_up = self._clock.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return call()
            except ConfigLocked:
                # The server reports that it did nothing, so the call can be repeated safely.
                if self._clock.monotonic() > give_up:
                    raise
                self._clock.sleep(2.0)

    def run(self, call: Callable[[], Any], *, kind: str, what: str, seconds: float) -> Ended:
        """Make `call`, which returns a UPID, and wait for the end of its task.

        Args:
            kind: task type, such as `qmconfig`, to find the task if the response is lost.
            what: for messages.
            seconds: deadline of the task, not of the call, seconds.

        Raises:
            OutcomeUnknown: no response and no such task, or the task does not end in time.
            Rejected, Busy: the task failed; its log is the evidence.
        """
        return self.wait(self.begin(call, kind=kind), what=what, seconds=seconds)

    def begin(self, call: Callable[[], Any], *, kind: str) -> str:
        """Make `call` and return its UPID. Raises as `run`, but not for the task's outcome."""
        return self.at_once(lambda: self._upid(call, kind))

    def stop(self, upid: str) -> None:
        """Request the end of an own task; it may have ended already. Raises DriverError."""
        with contextlib.suppress(Rejected):
            self._api.delete(_path(upid))

    def look(self, upid: str, *, what: str) -> Ended | None:
        """Return the end of a task; None: it runs, or its state is unknown. Raises as `run`."""
        path = _path(upid)
        status = self._status(path)
        if status is None or status["status"] != "stopped":
            return None
        text = readable(str(status.get("exitstatus") or ""))
        if text == "OK":
            return Ended(upid)
        log = self._log(path)
        if _WARNINGS.match(text):
            return Ended(upid, warnings=log)
        if was_killed(text):
            text = f"{text}; it was killed before its end"
            raise TaskKilled(what, text, evidence=f"{upid}\n{log}")
        raise specific(Rejected(what, _reason(text, log), evidence=f"{upid}\n{log}"))

    def _upid(self, call: Callable[[], Any], kind: str) -> str:
        if not self._learned or self._unidentified.total() >= _MAX_UNIDENTIFIED:
            self.learn()
        try:
            upid = str(call())
        except OutcomeUnknown:
            located = self._search(kind)
            if located is None:
                raise
            upid = located
        except DriverError:
            self._unidentified[kind] += 1  # the call may have started a task that failed
            raise
        self._known.add(upid)
        return upid

    def _search(self, kind: str) -> str | None:
        """Return a task of that type that is newer than all known tasks."""
        for _ in attempts(self._clock, seconds=SEARCH_SECONDS, pause=1.0):
            new = [entry for entry in self._listed(kind) if entry["upid"] not in self._known]
            if len(new) > self._unidentified[kind]:
                return str(new[-1]["upid"])
        return None

    def _listed(self, kind: str) -> list[dict[str, Any]]:
        return tasks_of(self._api, self._node, kind, self._vmid)

    def stopped_by(self) -> str:
        """Return user, type and time of another client's task that stopped the VM; empty: none.

        Tasks from before the VM's last start do not count.
        """
        for entry in reversed(self._listed("")):
            kind, _, user = readable(entry["upid"]).split(":")[5:8]
            if kind == "qmstart":
                break
            if kind in _STOPPING and entry["upid"] not in self._known:
                at = datetime.fromtimestamp(int(entry["starttime"]), UTC)
                return f"{user}, task {kind} at {at:%H:%M:%S} UTC"
        return ""

    def wait(self, upid: str, *, what: str, seconds: float) -> Ended:
        """Wait for the end of a task. Raises as `run`."""
        for _ in attempts(self._clock, seconds=seconds, pause=0.2, longest=1.5):
            if (ended := self.look(upid, what=what)) is not None:
                return ended
        raise OutcomeUnknown(
            f"{what}: the task did not end within {seconds:.0f} s",
            cause="the node is overloaded, or a storage hangs",
            next_step="check the task on the node; pvebench repeats nothing until then",
            evidence=upid,
        )

    def _status(self, path: str) -> dict[str, Any] | None:
        try:
            status: dict[str, Any] = self._api.get(f"{path}/status")
        except ServerGone:
            return None  # the node may be rebooting; the deadline decides
        except Rejected as error:
            # The node knows no such task, or a server error says nothing about it.
            lost = {"status": "stopped", "exitstatus": "unable to open file - no such task"}
            return lost if error.status < 500 else None
        return status

    def _log(self, path: str) -> str:
        try:
            lines = self._api.get(f"{path}/log", start=0, limit=5000)
        except DriverError as error:  # the outcome is known and matters more
            return f"log not readable: {error.reason}"
        return "\n".join(readable(str(line["t"])) for line in lines)


def newest_task(api: Api, node: str, kind: str, vmid: str) -> str:
    """Return the UPID of the newest task of a type about a VM; empty: none is known."""
    rows = tasks_of(api, node, kind, vmid)
    return str(rows[-1]["upid"]) if rows else ""


def newest_duration(api: Api, node: str, kind: str, vmid: int) -> str:
    """Return how long the newest successful task of a type about a VM took, as text."""
    ended = [row for row in tasks_of(api, node, kind, vmid) if row.get("status") == "OK"]
    newest = ended[-1] if ended else {}
    known = "endtime" in newest
    return f"{newest['endtime'] - newest['starttime']} s" if known else "unknown, none is logged"


def runs_task(api: Api, node: str, kind: str, vmid: str = "") -> bool:
    """Return whether a task of a type runs on a node; with `vmid`, about that VM."""
    rows = tasks_of(api, node, kind, vmid, source="active")
    return any(str(row.get("status") or "RUNNING").upper() == "RUNNING" for row in rows)


def tasks_of(
    api: Api, node: str, kind: str = "", vmid: str | int = "", **options: str | int
) -> list[dict[str, Any]]:
    """Return up to 50 tasks in the order of their starts; an empty `kind` or `vmid`: of all."""
    only = {"source": "all", "limit": 50, "typefilter": kind or None, "vmid": vmid or None}
    rows: list[dict[str, Any]] = api.get(f"/nodes/{node}/tasks", **{**only, **options})
    return sorted(rows, key=lambda row: (int(row["starttime"]), int(row["pstart"])))


def _path(upid: str) -> str:
    return f"/nodes/{upid.split(':')[1]}/tasks/{upid}"


def _reason(text: str, log: str) -> str:
    """Return the reason; for a failed start or backup, it is in the log only."""
    if text == "job errors":
        lines = [line for line in log.splitlines() if line.startswith("ERROR: ")]
        return f"{text}: {lines[0].removeprefix('ERROR: ')}" if lines else text
    if "QEMU exited with code" in text:
        lines = [line for line in log.splitlines() if line.startswith("kvm:")]
        if lines:
            return f"{text}: {lines[-1].rpartition('}: ')[2]}"
    return text
