"""Rules of the protocol at the hub. Pure: a transaction does the storing.

Each request of a site runs in one transaction, which locks the site's row; the answer leaves after
the commit. A cursor (number, chain) is what the site was acknowledged; the turn belongs to the one
process of the site that may push. Two processes that ask for the turn alternately are twins: the
site and a clone of it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from pvebench.model.units import DAY, whole_number
from pvebench_fleet import FleetMessageInvalid
from pvebench_fleet.wire import (
    MAJOR,
    Answer,
    Head,
    Hello,
    Limits,
    Line,
    Position,
    Rewind,
    read_line,
    read_message,
    unpack,
)

# --- What one site may store: sites share the hub's disk, its processes and its pages.

SITE_BYTES: Final = 10_000_000_000
"""Maximum size of the runs of a site: seven times three years of 4,050 daily cases."""
RUN_BYTES: Final = 128
"""Size of a run without its numbers and its reason."""
TABLES: Final[dict[str, tuple[int, str, str]]] = {
    "shape": (200, "digest", "shape"),
    "environment": (1000, "digest", "env"),
    "cycle": (200_000, "uid", "cycle_id"),
    "case": (30_000, "key", "case_id"),
    "decision": (2000, "number", "number"),
    "arrived": (200, "node", "node"),
    "mark": (20_000, "seq", ""),
    "process": (100, "process", ""),
    "refused": (1000, "seq", ""),
}
"""Table -> (maximum rows per site, name of a row within its site, what other rows refer to).

Of the last three the newest rows stay; the others take no more.
"""

FIRST: Final[Position] = (0, "")
STEP: Final = 2**20
"""Largest step between two turns. A random step makes the turns of a hub that was restored from a
backup differ from those that it gave before: a late request cannot match them."""
_SEQ: Final = re.compile(rb'"seq": ?([0-9]{1,18})[,}]')
AHEAD_SECONDS: Final = DAY
"""Time ahead of the hub's clock from which a run is refused: it would stay the newest one."""
HELD: Final = "two processes push for this site; select one with `pvebench hub sites hold`"
Answered = tuple[int, dict[str, Any]]
"""HTTP status, and fields of the answer."""


class SiteBusy(Exception):  # a state, not an error
    """Another request of the site is at work, or all places are taken."""


class State(StrEnum):
    """State of a site at the hub."""

    ACTIVE = "active"
    HELD = "held"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    """State of a site.

    Attributes:
        turn: number of the present turn; process: that has it, empty: none.
        cursor: place up to which everything is stored.
    """

    state: State = State.ACTIVE
    turn: int = 0
    process: str = ""
    cursor: Position = FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Process that has or had the turn.

    Attributes:
        turn: its newest turn.
        banned: a person said that it is not the site.
    """

    process: str
    turn: int
    banned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Content of a push.

    Attributes:
        lines: valid lines in their order.
        refused: (number of the line in the log or 0, reason, text) of the others.
    """

    head: Head
    lines: Sequence[Line] = ()
    refused: Sequence[tuple[int, str, str]] = field(default=())


class Transaction(Protocol):
    """What the rules need of the database, for one site whose row is locked."""

    site: SiteRow

    def save(self, site: SiteRow) -> None:
        """Store the state of the site."""

    def holder(self, process: str) -> Holder | None:
        """Return a process that has or had the turn."""

    def put_holder(self, holder: Holder) -> None:
        """Store a process."""

    def ban_others(self, process: str) -> None:
        """Ban all processes but this one."""

    def marks(self, before: int, most: int) -> Sequence[Position]:
        """Return the newest places of the cursor below a number, newest first."""

    def add_mark(self, place: Position) -> None:
        """Store a place of the cursor."""

    def drop_marks(self, after: int) -> None:
        """Remove the places with higher numbers."""

    def store(self, batch: Batch, turn: int) -> Sequence[int]:
        """Store lines, of which the later replaces the earlier; return refused numbers.

        The version of a run that a line replaces is kept under the turn, for `undo`.
        """

    def undo(self, after: int) -> None:
        """Restore the versions of runs that turns after this one have replaced."""


def hello(change: Transaction, request: Hello, step: Callable[[], int]) -> Answered:
    """Give the turn to a process, or hold the site if two processes alternate."""
    site = change.site
    if (stopped := _stopped(site)) is not None:
        if site.state is State.HELD and change.holder(request.process) is None:
            # A person may select it: the processes from before the hold may have ended.
            change.put_holder(Holder(process=request.process, turn=site.turn))
        return stopped
    if MAJOR not in request.schemas:
        known = f"this hub understands schema {MAJOR}; upgrade the hub"
        return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": known}
    if request.process == site.process:
        return HTTPStatus.OK, _cursor(site)
    if request.seen != site.turn:
        # Whatever arrives late cannot take the turn.
        return HTTPStatus.PRECONDITION_FAILED, {"turn": site.turn}
    if (known_holder := change.holder(request.process)) is not None:
        return _hold(change, known_holder)
    site = replace(site, turn=site.turn + step(), process=request.process)
    change.put_holder(Holder(process=site.process, turn=site.turn))
    change.save(site)
    return HTTPStatus.OK, _cursor(site)


def _hold(change: Transaction, twin: Holder) -> Answered:
    """Hold the site; what the asking process was acknowledged does not stay replaced."""
    if not twin.banned:
        change.undo(twin.turn)
        change.save(replace(change.site, state=State.HELD))
    return HTTPStatus.LOCKED, {"error": HELD}


def release(change: Transaction, keep: str, step: Callable[[], int]) -> bool:
    """End the hold: `keep` is the site, and the other processes are not.

    The site sends everything again, so that nothing of the others replaces its own results.

    Returns:
        Whether the process is known.
    """
    if change.holder(keep) is None:
        return False
    turn = change.site.turn + step()
    change.ban_others(keep)
    change.put_holder(Holder(process=keep, turn=turn))
    change.drop_marks(0)
    change.save(SiteRow(turn=turn, process=keep))
    return True


def push(change: Transaction, head: Head, texts: Sequence[bytes]) -> Answered:
    """Store the lines of a push, if they continue what is stored; else they are not even read."""
    site = change.site
    if (rejected := _rejected(site, head.turn, head.process)) is not None:
        return rejected
    if (head.after, head.chain) != site.cursor:
        return HTTPStatus.CONFLICT, _cursor(site)
    refused = change.store(read_lines(head, texts), site.turn)
    site = replace(site, cursor=head.to)
    change.add_mark(site.cursor)
    change.save(site)
    return HTTPStatus.OK, {**_cursor(site), "refused": [*refused]}


def rewind(change: Transaction, request: Rewind) -> Answered:
    """Move the cursor back to a place that both sides have; stored runs stay."""
    site = change.site
    if (rejected := _rejected(site, request.turn, request.process)) is not None:
        return rejected
    known = request.to == FIRST or request.to in change.marks(request.to[0] + 1, 1)
    if request.seen != site.cursor or not known:
        return HTTPStatus.CONFLICT, _cursor(site)
    change.drop_marks(request.to[0])
    site = replace(site, cursor=request.to)
    change.save(site)
    return HTTPStatus.OK, _cursor(site)


def _stopped(site: SiteRow) -> Answered | None:
    if site.state is State.FORGOTTEN:
        return HTTPStatus.GONE, {"error": "this hub no longer knows the site"}
    if site.state is State.HELD:
        return HTTPStatus.LOCKED, {"error": HELD}
    return None


def _rejected(site: SiteRow, turn: int, process: str) -> Answered | None:
    if (stopped := _stopped(site)) is not None:
        return stopped
    if (turn, process) != (site.turn, site.process):
        return HTTPStatus.PRECONDITION_FAILED, {"turn": site.turn}
    return None


def _cursor(site: SiteRow) -> dict[str, Any]:
    return {"turn": site.turn, "acked": site.cursor[0], "chain": site.cursor[1]}


def read_push(content: bytes) -> tuple[Head, list[bytes]]:
    """Return the head of a push and its lines, still as text.

    Raises:
        FleetMessageInvalid: the head is invalid, or lines are missing.
    """
    first, *texts = content.splitlines() or [b""]
    head = read_message(Head, first)
    if len(texts) != head.count or head.to[0] < head.after:
        raise FleetMessageInvalid(f"{len(texts)} lines instead of {head.count}, to {head.to[0]}")
    return head, texts


def read_lines(head: Head, texts: Sequence[bytes]) -> Batch:
    """Return the lines of a push; those that break the protocol are among the refused."""
    lines: list[Line] = []
    refused: list[tuple[int, str, str]] = []
    for text in texts:
        try:
            lines.append(read_line(text))
        except FleetMessageInvalid as error:
            refused.append((_number(text), error.reason, text[:1000].decode("utf-8", "replace")))
    return Batch(head=head, lines=lines, refused=refused)


def _number(text: bytes) -> int:
    """Return the number of an invalid line, as far as it can be read; 0: unknown."""
    found = _SEQ.search(text)
    return int(found[1]) if found else 0


# --- Requests of sites: from the bytes of a request to those of the answer; no HTTP server.

ANOTHER_SITE: Final = "this is the token of site {}; use the one of this site"
AHEAD: Final = "the clock of this site is {:.0f} h ahead of that of the hub; check both"
"""Refused as a whole, so that the site keeps its results."""
MARKS: Final = 500
"""Places per answer."""
Begin = Callable[[str, float | None], AbstractContextManager[Transaction]]
"""Opens the transaction of a site, whose clock says so many UNIX seconds; locks its row."""


@dataclass(frozen=True, slots=True)
class Door:
    """Handles the requests of sites that are already identified by their tokens.

    Attributes:
        step: returns the step to the next turn, from 1 to `STEP`.
    """

    begin: Begin
    step: Callable[[], int]
    limits: Limits = field(default_factory=Limits)
    now: Callable[[], float] = time.time

    def answer(self, site: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a request; `path` as after `/fleet/1/`."""
        name, _, query = path.partition("?")
        try:
            status, fields = self._answer(site, (method, name), query, body)
        except FleetMessageInvalid as error:
            large = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            status = large if error.too_large else HTTPStatus.BAD_REQUEST
            fields = {"error": error.reason}
        if "marks" in fields:
            return status, json.dumps(fields).encode()
        answer = Answer(now=self.now(), limits=self.limits, **fields)
        return status, answer.model_dump_json().encode()

    def _answer(self, site: str, route: tuple[str, str], query: str, body: bytes) -> Answered:
        match route:
            case "POST", "hello":
                greeting = read_message(Hello, body)
                if greeting.site not in {"", site}:
                    return HTTPStatus.FORBIDDEN, {"error": ANOTHER_SITE.format(site)}
                with self.begin(site, greeting.now) as change:
                    return hello(change, greeting, self.step)
            case "POST", "push":
                return self._push(site, *read_push(unpack(body, self.limits.bytes)))
            case "POST", "rewind":
                request = read_message(Rewind, body)
                with self.begin(site, None) as change:
                    return rewind(change, request)
            case "GET", "marks":
                return HTTPStatus.OK, self._marks(site, query)
            case _:
                return HTTPStatus.NOT_FOUND, {"error": "no such address"}

    def _push(self, site: str, head: Head, texts: Sequence[bytes]) -> Answered:
        ahead = head.now - self.now()
        with self.begin(site, head.now) as change:
            if ahead > AHEAD_SECONDS:
                return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": AHEAD.format(ahead / 3600)}
            return push(change, head, texts)

    def _marks(self, site: str, query: str) -> dict[str, Any]:
        before = whole_number(parse_qs(query).get("before", [""])[0])
        with self.begin(site, None) as change:
            marks = [*change.marks(2**62 if before is None else before, MARKS + 1)]
        return {"marks": marks[:MARKS], "more": len(marks) > MARKS}
