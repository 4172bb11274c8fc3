"""Tasks: work in the background with a UPID, a log and an end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pve.refusals import Refused


@dataclass
class Task:
    upid: str
    node: str
    kind: str
    subject: str
    user: str
    started: int
    log: list[str] = field(default_factory=list)
    end: str | None = None
    ended: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def status(self) -> dict[str, Any]:
        user, _, token = self.user.partition("!")
        found: dict[str, Any] = {
            "upid": self.upid,
            "node": self.node,
            "type": self.kind,
            "id": self.subject,
            "user": user,
            "starttime": self.started,
            "pid": 1,
            "pstart": int(self.upid.split(":")[3], 16),
            "status": "running" if self.end is None else "stopped",
        }
        if token:
            found["tokenid"] = token
        if self.end is not None:
            found["exitstatus"] = self.end
        return found


class TaskFailure(Exception):
    """How a worker ends badly; its text becomes the exit status."""


class Killed(BaseException):
    """SIGKILL of a worker: it undoes nothing, and its log has no last line.

    A stop is TERM, and KILL after 5 s (`check_worker` of PVE/RESTEnvironment.pm); the status is
    then what `upid_read_status` of PVE/Tools.pm says of such a log.
    """


class Tasks:
    """All tasks of a cluster."""

    def __init__(self) -> None:
        self.all: list[Task] = []
        self.doomed: dict[str, str] = {}
        """Kind of task -> text with which the next one of it fails."""
        self.deaf: set[str] = set()
        """Kinds of tasks that ignore TERM, so that a stop kills them."""
        self.killed_status = "unexpected status"
        """Exit status of a killed task; a crash of its node can lose the log (PVE/Tools.pm)."""
        self._numbers = itertools.count(0x1000)

    def foreign(self, node: str, kind: str, subject: str) -> Task:
        """Start a task of root that lasts until somebody sets its end."""
        number = next(self._numbers)
        started = int(time.time())
        upid = f"UPID:{node}:{number:08X}:{number * 7:08X}:{started:08X}:{kind}:{subject}:root@pam:"
        task = Task(upid, node, kind, subject, "root@pam", started)
        self.all.append(task)
        return task

    def run(
        self,
        node: str,
        kind: str,
        subject: str,
        user: str,
        work: Callable[[Task], None],
        undo: Callable[[], None] = lambda: None,
    ) -> str:
        """Start `work` in the background; return the UPID at once. A doomed task ends in `undo`."""
        started = int(time.time())
        number = next(self._numbers)
        upid = f"UPID:{node}:{number:08X}:{number * 7:08X}:{started:08X}:{kind}:{subject}:{user}:"
        task = Task(upid, node, kind, subject, user, started)
        self.all.append(task)
        self._begin(task, work, undo)
        return upid

    def _begin(self, task: Task, work: Callable[[Task], None], undo: Callable[[], None]) -> None:
        threading.Thread(target=self._work, args=(task, work, undo), daemon=True).start()

    def _work(self, task: Task, work: Callable[[Task], None], undo: Callable[[], None]) -> None:
        try:
            doom = self.doomed.pop(task.kind, None)
            if doom is not None:
                undo()
                raise TaskFailure(doom)
            work(task)
        except Refused as error:
            details = "".join(f" {key}: {why}" for key, why in error.errors.items())
            code = f"{error.status} " if error.errors else ""
            self._end(task, f"{code}{error.reason}{details}".replace("\n", " "), "ERROR")
        except Killed:
            task.log = task.log if self.killed_status == "unexpected status" else []
            task.ended, task.end = int(time.time()), self.killed_status
        except Exception as error:  # noqa: BLE001 # a worker's death ends its task, as in Proxmox
            self._end(task, str(error).replace("\n", " "), "ERROR")
        else:
            warnings = sum(line.startswith("WARN:") for line in task.log)
            self._end(task, f"WARNINGS: {warnings}" if warnings else "OK", "")

    @staticmethod
    def _end(task: Task, text: str, kind: str) -> None:
        task.log.append(f"TASK {kind + ': ' if kind else ''}{text}")
        task.ended = int(time.time())
        task.end = text

    def find(self, upid: str) -> Task:
        for task in self.all:
            if task.upid == upid:
                return task
        raise Refused(
            400, "Parameter verification failed.", errors={"upid": "unable to parse worker upid"}
        )
