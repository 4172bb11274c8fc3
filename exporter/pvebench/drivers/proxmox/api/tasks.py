"""Tasks: started by a call, watched to their end, found again when the reply was lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import ConfigLocked, Rejected, refusal, spoken
from pvebench.errors import DriverError, OutcomeUnknown, ServerGone
from pvebench.model.ports import Clock

_WARNINGS: Final = re.compile(r"WARNINGS: \d+\Z")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 1.5
_SEARCH_SECONDS: Final = 10.0
"""How long a task whose UPID was lost may take to show up in the list."""
_MOST_UNTOLD: Final = 20
"""Of the 50 tasks that are listed."""
_LOCK_SECONDS: Final = 60.0
"""How long somebody's configuration lock is waited for; a stopped VM's clean-up takes 30."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A task that ended well. `warnings` is its log if it warned, else empty."""

    upid: str
    warnings: str = ""


KEPT_TASKS: Final = 1200
"""About as many a node keeps: an index of 50,000 bytes and an older one, 85 bytes a line."""
_DAY_SECONDS: Final = 86400


def share_of_log(api: Api, node: str, user: str, now: float) -> str:
    """Return how much of a node's task history is the user's of the last 24 hours."""
    found = api.get(f"/nodes/{node}/tasks", source="all", limit=KEPT_TASKS)
    since = now - _DAY_SECONDS
    own = sum(f":{user}:" in entry["upid"] and entry["starttime"] >= since for entry in found)
    return (
        f"{own} by pvebench in 24 hours, {own / KEPT_TASKS:.0%} of the about {KEPT_TASKS} "
        "that a node keeps"
    )


class Tasks:
    """The tasks of one VM (or, with vmid 0, of none) on one node. Owned by one thread."""

    def __init__(self, api: Api, node: str, clock: Clock, *, vmid: int = 0) -> None:
        self._api = api
        self._node = node
        self._clock = clock
        self._vmid = vmid
        self._known: set[str] = set()
        self._untold: Counter[str] = Counter()
        """Type -> at most so many tasks of ours came since `learn` without our knowing which."""

    def learn(self) -> None:
        """Note the tasks that are there already: none of them is one of what comes."""
        self._known |= {str(entry["upid"]) for entry in self._listed("")}
        self._untold.clear()

    def at_once(self, call: Callable[[], Any]) -> None:
        """Make `call`, which is answered when it is done; again while another holds the lock."""
        give_up = self._clock.monotonic() + _LOCK_SECONDS
        while True:
            try:
                call()
            except ConfigLocked:
                # The server says that it did nothing: the one case where to repeat is right.
                if self._clock.monotonic() > give_up:
                    raise
                self._clock.sleep(2.0)
            else:
                return

    def run(self, call: Callable[[], Any], *, kind: str, what: str, seconds: float) -> Ended:
        """Make `call`, which returns a UPID, and wait for the end of its task.

        Args:
            kind: the task's type, `qmconfig`, to find it again if the reply is lost.
            what: for messages.
            seconds: deadline of the task, not of the call.

        Raises:
            OutcomeUnknown: no reply and no such task; or it does not end in time.
            Rejected, Busy: it ended with an error; its log is the evidence.
        """
        upid = ""

        def begin() -> None:
            nonlocal upid
            upid = self._upid(call, kind)

        self.at_once(begin)
        return self.wait(upid, what=what, seconds=seconds)

    def _upid(self, call: Callable[[], Any], kind: str) -> str:
        if self._untold.total() >= _MOST_UNTOLD:
            self.learn()
        try:
            upid = str(call())
        except OutcomeUnknown:
            found = self._search(kind)
            if found is None:
                raise
            upid = found
        except DriverError:
            self._untold[kind] += 1  # it may have had a task, which failed
            raise
        self._known.add(upid)
        return upid

    def _search(self, kind: str) -> str | None:
        """Return the task of that type that came after all that we know to have ended."""
        deadline = self._clock.monotonic() + _SEARCH_SECONDS
        while True:
            new = [entry for entry in self._listed(kind) if entry["upid"] not in self._known]
            if len(new) > self._untold[kind]:
                return str(max(new, key=_age)["upid"])
            if self._clock.monotonic() > deadline:
                return None
            self._clock.sleep(1.0)

    def _listed(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api.get(
            f"/nodes/{self._node}/tasks",
            source="all",
            limit=50,
            vmid=self._vmid or None,
            typefilter=kind or None,
        )
        return found

    def wait(self, upid: str, *, what: str, seconds: float) -> Ended:
        """Wait for the end of a task. Raises as `run`."""
        node = upid.split(":")[1]
        path = f"/nodes/{node}/tasks/{upid}"
        deadline = self._clock.monotonic() + seconds
        pause = _FIRST_PAUSE
        while True:
            status = self._status(path)
            if status and status["status"] == "stopped":
                return self._judge(path, upid, spoken(str(status.get("exitstatus") or "")), what)
            if self._clock.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"{what}: the task did not end within {seconds:.0f} s",
                    cause="the node is overloaded, or a storage hangs",
                    next_step="look at the task on the node; nothing is repeated meanwhile",
                    evidence=upid,
                )
            self._clock.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 1.5)

    def _status(self, path: str) -> dict[str, Any] | None:
        try:
            status: dict[str, Any] = self._api.get(f"{path}/status")
        except ServerGone:
            return None  # a node that reboots; the deadline decides
        except Rejected as error:
            if error.status < 500:
                raise
            return None  # the server's own trouble says nothing about the task
        return status

    def _judge(self, path: str, upid: str, text: str, what: str) -> Ended:
        if text == "OK":
            return Ended(upid)
        log = self._log(path)
        if _WARNINGS.match(text):
            return Ended(upid, warnings=log)
        raise refusal(what, _said(text, log), evidence=f"{upid}\n{log}")

    def _log(self, path: str) -> str:
        try:
            lines = self._api.get(f"{path}/log", start=0, limit=200)
        except DriverError as error:  # how it ended is known, and matters more
            return f"its log cannot be read: {error.reason}"
        return "\n".join(spoken(str(line["t"])) for line in lines)


def _age(entry: dict[str, Any]) -> tuple[int, int]:
    return int(entry["starttime"]), int(entry["pstart"])


def _said(text: str, log: str) -> str:
    """Return the reason: of a failed start it is in the log only, in the line before the last."""
    if "QEMU exited with code" in text:
        lines = [line for line in log.splitlines() if line.startswith("kvm:")]
        if lines:
            return f"{text}: {lines[-1].rpartition('}: ')[2]}"
    return text
