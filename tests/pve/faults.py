"""Faults that a test switches on, for the next call or calls that match."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["delay", "drop_before", "drop_after", "status", "status_after", "truncate", "mangle"]


@dataclass
class Fault:
    """One fault.

    Attributes:
        kind: `delay`: wait, then answer; `drop_before`: close the connection, nothing done;
            `drop_after`: do it, close without an answer; `status`: answer with `status` and
            `text`, nothing done; `status_after`: do it, answer so all the same; `truncate`: do it,
            cut the answer in the middle; `mangle`: do it, answer with `text` as the body.
        times: how many calls it still hits.
    """

    kind: Kind
    method: str
    path: re.Pattern[str]
    times: int = 1
    seconds: float = 0.0
    status: int = 500
    text: str = "fault"


@dataclass
class Faults:
    """The faults that are on, and how often each hit."""

    active: list[Fault] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self,
        kind: Kind,
        method: str,
        path: str,
        *,
        times: int = 1,
        seconds: float = 0.0,
        status: int = 500,
        text: str = "fault",
    ) -> None:
        """Switch a fault on for calls whose path ends with the pattern `path`."""
        pattern = re.compile(f".*{path}\\Z")
        self.active.append(Fault(kind, method, pattern, times, seconds, status, text))

    def take(self, method: str, path: str) -> Fault | None:
        """Return the fault for this call, counting it down."""
        with self.lock:
            for fault in self.active:
                if fault.times and fault.method == method and fault.path.match(path):
                    fault.times -= 1
                    self.hits.append(f"{fault.kind} {method} {path}")
                    return fault
        return None
