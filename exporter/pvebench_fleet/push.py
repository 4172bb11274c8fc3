"""Sends a site's log to its hub. One exchange per step; the caller waits between steps.

The site opens every connection. Whatever the hub answers, only the position in the log changes: no
word of a hub reaches a hypervisor. A position counts only if the site's own log has its chain.

A hub that is slow, absent or hostile costs the site one thread: every answer has a limit of size
and time, redirects are not followed, and no step follows another at once.
"""

from __future__ import annotations

import http.client
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pvebench import __version__
from pvebench.config import Settings
from pvebench.errors import ConfigError, PvebenchError, StoreError
from pvebench.files import read_secret
from pvebench.http_responses import bounded, client_tls, read_body
from pvebench.log import log
from pvebench.model.units import back_off, whole_number
from pvebench.sanitize import one_line
from pvebench.store.store import Store
from pvebench_fleet import FleetMessageInvalid, HubUnreachable
from pvebench_fleet.fleet_log import (
    CONNECTED,
    FIRST,
    IDLE_SECONDS,
    NOT_CONNECTED,
    SOUND,
    FleetLog,
    LogPosition,
    lines_of,
)
from pvebench_fleet.wire import (
    MAJOR,
    PROTOCOL,
    Answer,
    Head,
    Hello,
    Limits,
    Marks,
    Rewind,
    pack,
    read_message,
)

POLL_SECONDS: Final = 5.0
"""Interval of looks for new lines in the site's own database."""
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
            return self._hello() if self._turn is None else self._push()
        except (HubUnreachable, FleetMessageInvalid) as error:
            return self._back_off(error.reason)

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
        request = Rewind(turn=self._turn or 0, process=self.process, seen=cursor, to=common)
        reply, answer = self._exchange("POST", "rewind", request.model_dump_json().encode())
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


# --- HTTP connection to the hub, and the thread that sends.

TIMEOUT_SECONDS: Final = 30.0
"""Maximum time of each wait for the hub."""
ANSWER_SECONDS: Final = 60.0
ANSWER_BYTES: Final = 1024 * 1024
LEAST_WAIT: Final = 0.2
"""Minimum seconds between two requests, whatever the hub allows."""
RETRY_SECONDS: Final = 60.0
END_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAddress:
    """Address of a hub and how to identify to it.

    Attributes:
        token_file: with the token of this site, readable only by its owner.
        ca_file: authority of the hub's certificate; None: those of the system.
        site: name of this site.
    """

    url: str
    token_file: Path
    ca_file: Path | None = None
    site: str = ""

    def send(self, method: str, path: str, body: bytes) -> Reply:
        """Send a request; raises HubUnreachable."""
        try:
            with closing(bounded(self._connect(), ANSWER_SECONDS)) as connection:
                return self._exchange(connection, method, path, body)
        except (OSError, http.client.HTTPException, ConfigError, ValueError) as error:
            reason = _reason(error)
            raise HubUnreachable(
                f"hub {self.url}: {reason or type(error).__name__}"[:300],
                cause="the hub or the network is down, or token_file or ca_file is wrong",
                next_step="check the hub; pvebench retries",
            ) from error

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(
            host, parts.port, timeout=TIMEOUT_SECONDS, context=client_tls(self.ca_file)
        )

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes
    ) -> Reply:
        headers = {
            "authorization": f"Bearer {read_secret(self.token_file)}",
            "content-type": "application/json",
            "user-agent": PROTOCOL,
        }
        place = urlsplit(self.url).path.rstrip("/")
        connection.request(method, f"{place}/fleet/1/{path}", body or None, headers)
        response = connection.getresponse()
        content = read_body(response, most=ANSWER_BYTES, seconds=ANSWER_SECONDS)
        later = response.headers.get("retry-after", "")
        return Reply(response.status, content, whole_number(later) or 0.0)


def _reason(error: Exception) -> str:
    """Return what happened and, of a file, the next step: only this text reaches the state."""
    if not isinstance(error, PvebenchError):
        return str(error)
    return f"{error.happened}; {error.next_step}" if error.next_step else error.happened


def service(settings: Settings, store: Store) -> AbstractContextManager[object]:
    """Return the context in which an instance sends its results. Raises StoreError.

    A site that has left its fleet has no log any more.
    """
    if settings.fleet is None:
        FleetLog(store.engine).end()
        return nullcontext()
    address = HubAddress(**dict(settings.fleet), site=settings.site or "")
    return sending(address, store)


@contextmanager
def sending(
    hub: HubAddress, store: Store, now: Callable[[], float] = time.time
) -> Iterator[Sender]:
    """Send the log to the hub in a thread of its own, within the context.

    Raises:
        StoreError: the log cannot be started.
    """
    fleet = FleetLog(store.engine)
    fleet.begin()
    sender = Sender(fleet, hub.send, secrets.token_hex(8), now, site=hub.site)
    stopped = threading.Event()
    thread = threading.Thread(
        target=_send_all, args=(sender, fleet, store.faults, stopped), name="fleet", daemon=True
    )
    thread.start()
    try:
        yield sender
    finally:
        stopped.set()
        # An interrupted request loses nothing: the next process asks for the hub's cursor.
        thread.join(END_SECONDS)


def _send_all(
    sender: Sender, fleet: FleetLog, faults: dict[str, str], stopped: threading.Event
) -> None:
    noted: tuple[str, float | None] = "", None
    wait = 0.0
    while not stopped.wait(max(LEAST_WAIT, wait)):
        try:
            wait = sender.step()
            faults["fleet"] = "" if sender.state in SOUND else f"hub: {sender.state}"
            if (state := (sender.state, sender.contact)) != noted:
                fleet.note(state=sender.state, process=sender.process, contact=sender.contact)
                if state[0] != noted[0]:
                    log.info("fleet", state=sender.state)
                noted = state
        except StoreError as error:
            faults["fleet"] = error.reason
            log.warning("sending results to the hub failed", reason=error.reason)
            wait = RETRY_SECONDS
        except Exception as error:
            faults["fleet"] = f"internal error: {type(error).__name__}"
            # An internal error must not end the sending for good, nor affect measuring.
            log.exception("sending results to the hub failed")
            wait = RETRY_SECONDS
