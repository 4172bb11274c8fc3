"""Sends a site's log to its hub. One exchange per step; the caller waits between steps.

The site opens every connection. Whatever the hub answers, only the position in the log changes: no
word of a hub reaches a hypervisor. A position counts only if the site's own log has its chain.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from pvebench import __version__
from pvebench.log import log
from pvebench.model.units import back_off
from pvebench.sanitize import one_line
from pvebench_fleet import FleetMessageInvalid, HubUnreachable
from pvebench_fleet.fleet_log import (
    CONNECTED,
    FIRST,
    IDLE_SECONDS,
    NOT_CONNECTED,
    Entry,
    FleetLog,
    LogPosition,
)
from pvebench_fleet.wire import (
    MAJOR,
    Answer,
    Head,
    Hello,
    Limits,
    Marks,
    Skip,
    pack,
    read_message,
    shape_of,
)

POLL_SECONDS: Final = 5.0
"""Interval of looks for new lines in the site's own database."""
MAX_LINE_BYTES: Final = 1024 * 1024
HEAD_BYTES: Final = 1024
MAX_PAGES: Final = 50
FIRST_WAIT: Final = 4.0
LONGEST_WAIT: Final = 3600.0
MOVED: Final = "the cursor of the hub moved"
_NO_TURN: Final = "another process of this site sends to the hub; stop one of the two"


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to an HTTP request.

    Attributes:
        retry_after: seconds that the hub asks to wait; 0: not stated.
    """

    status: int
    content: bytes
    retry_after: float = 0.0


Send = Callable[[str, str, bytes], Reply]
"""Sends method, path and body; raises HubUnreachable."""


class Sender:
    """State of the exchange with the hub. A new process has another one.

    Args:
        process: random identity of this process, 16 hex digits; never stored, so that a copy of
            the site's files has another one.
        now: UNIX seconds.
        chance: returns a number from 0 to 1, so that sites do not return all at once.
        site: name of this site in its settings.
    """

    def __init__(
        self,
        log: FleetLog,
        send: Send,
        process: str,
        now: Callable[[], float],
        chance: Callable[[], float] = random.random,
        *,
        site: str = "",
    ) -> None:
        self.state = NOT_CONNECTED
        self.contact: float | None = None
        self._log = log
        self._send = send
        self.process = process
        self._now = now
        self._chance = chance
        self._site = site
        self._seen = 0
        self._turn: int | None = None
        self._limits = Limits()
        self._failures = 0
        self._renewed = False

    def step(self) -> float:
        """Exchange one message with the hub; return the seconds to wait before the next step."""
        try:
            wait = self._hello() if self._turn is None else self._push()
        except (HubUnreachable, FleetMessageInvalid) as error:
            return self._back_off(error.reason)
        return wait

    def _back_off(self, reason: str, at_least: float = 0.0) -> float:
        """Return a wait that doubles with every failure, with chance in it."""
        self._failures += 1
        self.state = one_line(reason)
        wait = back_off(self._failures, first=FIRST_WAIT, most=LONGEST_WAIT)
        return max(min(at_least, LONGEST_WAIT), wait * (0.5 + 0.5 * self._chance()))

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[Reply, Answer]:
        reply = self._send(method, path, body)
        is_ok = reply.status == HTTPStatus.OK
        # A proxy answers errors with a page of its own.
        readable = is_ok or reply.content.startswith(b"{")
        return reply, read_message(Answer, reply.content) if readable else Answer()

    def _hello(self) -> float:
        request = Hello(
            process=self.process,
            site=self._site,
            seen=self._seen,
            version=__version__,
            schemas=[MAJOR],
            now=self._now(),
        )
        reply, answer = self._exchange("POST", "hello", request.model_dump_json().encode())
        if reply.status != HTTPStatus.OK:
            return self._failed(reply, answer)
        self._accept(answer)
        self._turn = self._seen = answer.turn
        return self._compare((answer.acked, answer.chain))

    def _accept(self, answer: Answer) -> None:
        """Take over an answer. Only progress ends a back-off: any hub can say 200."""
        self._limits = answer.limits
        self._failures = min(self._failures, 3)
        self.contact, self.state = self._now(), CONNECTED

    def _push(self) -> float:
        body, after = self._next_lines()
        if body is None:
            self._failures = 0
            # Ask again even so: the cursor of a restored hub went back.
            idle = self._now() - (self.contact or 0.0)
            return POLL_SECONDS if 0 <= idle < IDLE_SECONDS else self._hello()
        reply, answer = self._exchange("POST", "push", body)
        if reply.status != HTTPStatus.OK:
            return self._failed(reply, answer)
        self._accept(answer)
        if answer.refused:
            log.warning("the hub refused results", lines=answer.refused[:10])
        # The answer counts only if it is about this request.
        if (answer.acked, answer.chain) != after:
            return self._moved((answer.acked, answer.chain))
        self._log.advance(after, self._now())
        self._failures = 0
        return self._limits.wait_seconds

    def _next_lines(self) -> tuple[bytes | None, LogPosition]:
        """Return the next push within the limits of the hub, and the place after it."""
        most = self._limits.lines
        while True:
            entries, before, after = self._log.batch(most)
            known = set[str]()
            lines = [line for entry in entries for line in lines_of(entry, known)]
            if (
                len(entries) <= 1
                or sum(len(line) + 1 for line in lines) < self._limits.bytes - HEAD_BYTES
            ):
                break
            most = len(entries) // 2
        if not entries:
            return None, after
        head = Head(
            turn=self._turn or 0,
            process=self.process,
            after=before[0],
            chain=before[1],
            to=after,
            count=len(lines),
            now=self._now(),
        )
        return pack(head, lines), after

    def _failed(self, reply: Reply, answer: Answer) -> float:
        """Handle another status than 200; return the wait."""
        status = reply.status
        if status == HTTPStatus.PRECONDITION_FAILED:
            self._turn, self._seen = None, answer.turn
            self._failures += 1
            return self._limits.wait_seconds if self._failures < 3 else self._back_off(_NO_TURN)
        if status == HTTPStatus.CONFLICT:
            self.contact = self._now()
            return self._moved((answer.acked, answer.chain))
        self._turn = None
        if status in {HTTPStatus.LOCKED, HTTPStatus.GONE}:
            self.contact = self._now()
            self.state = "held" if status == HTTPStatus.LOCKED else "forgotten by the hub"
            return IDLE_SECONDS
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            fewer = max(1, self._limits.lines // 2)
            self._limits = self._limits.model_copy(update={"lines": fewer})
        text = f"the hub returned {status} {answer.error}".strip()
        return self._back_off(text, reply.retry_after)

    # --- Where the cursor of the hub is not the position of this log.

    def _moved(self, cursor: LogPosition) -> float:
        """Compare; wait ever longer if the hub moves its cursor again before it takes lines."""
        self._failures += 1
        wait = self._compare(cursor)
        return wait if self._failures == 1 else self._back_off(MOVED, wait)

    def _compare(self, cursor: LogPosition) -> float:
        """Move to the hub's cursor if this log has it; else move the cursor back."""
        if self._log.chain_at(cursor[0]) == cursor[1]:
            if cursor != self._log.position():
                self._log.advance(cursor, self._now())
            return 0.0 if self._turn is not None else self._limits.wait_seconds
        return self._rewind(cursor)

    def _rewind(self, cursor: LogPosition) -> float:
        common = self._common_mark()
        if common is None:
            log.warning("no common line with the hub: all results are sent again")
            if self._renewed:
                return self._back_off("no common line with the hub")
            self._renewed = True
            self._log.renew()
            return self._limits.wait_seconds
        body = {"turn": self._turn or 0, "process": self.process, "seen": cursor, "to": common}
        reply, answer = self._exchange("POST", "rewind", _json(body))
        if reply.status != HTTPStatus.OK:
            is_conflict = reply.status == HTTPStatus.CONFLICT
            return self._back_off(MOVED) if is_conflict else self._failed(reply, answer)
        if (answer.acked, answer.chain) == common:
            self._log.advance(common, self._now())
        return self._limits.wait_seconds

    def _common_mark(self) -> LogPosition | None:
        if self._log.position() == FIRST:
            return FIRST  # as after `renew`: no mark of the hub is of this log
        before = 2**62 - 1
        for _ in range(MAX_PAGES):
            reply = self._send("GET", f"marks?before={before}", b"")
            if reply.status != HTTPStatus.OK:
                raise HubUnreachable(f"the hub returned {reply.status} for its marks")
            answer = read_message(Marks, reply.content)
            for seq, chain in (*answer.marks, *([] if answer.more else [(0, "")])):
                if self._log.chain_at(seq) == chain:
                    return seq, chain
            oldest = answer.marks[-1][0] if answer.marks else 0
            if not answer.more or oldest >= before:
                return None
            before = oldest
        raise HubUnreachable(f"the hub has more than {MAX_PAGES} pages of marks")


def _json(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def lines_of(entry: Entry, known: set[str]) -> list[bytes]:
    """Return an entry as lines; the shape of a run comes before its first use.

    Args:
        known: shapes that were used before; changed.
    """
    if entry.data is None:
        return [_skip(entry)]
    data, lines = dict(entry.data), []
    if entry.kind == "run":
        samples = data.pop("samples")
        try:
            shape = shape_of(samples)
        except FleetMessageInvalid as error:
            log.warning("result unfit for others", kind=entry.kind, reason=error.reason)
            return [_skip(entry)]
        if shape.shape not in known:
            known.add(shape.shape)
            lines.append(shape.model_dump_json().encode())
        data |= {"shape": shape.shape, "values": [sample.value for sample in samples]}
    text = _json({**data, "kind": entry.kind, "seq": entry.seq})
    if len(text) > MAX_LINE_BYTES:
        log.warning("result too large for the hub", kind=entry.kind, bytes=len(text))
        text = _skip(entry)
    return [*lines, text]


def _skip(entry: Entry) -> bytes:
    return Skip(seq=entry.seq).model_dump_json().encode()
