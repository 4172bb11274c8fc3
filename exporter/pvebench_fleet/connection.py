"""HTTP connection of a site to its hub, and the thread that sends.

A hub that is slow, absent or hostile costs the site one thread: every answer has a limit of size
and time, redirects are not followed, and no step follows another at once.
"""

from __future__ import annotations

import http.client
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pvebench.config import Settings
from pvebench.errors import ConfigError, PvebenchError, StoreError
from pvebench.files import read_secret
from pvebench.http_responses import bounded, client_tls, read_body
from pvebench.log import log
from pvebench.model.units import whole_number
from pvebench.store.store import Store
from pvebench_fleet import HubUnreachable
from pvebench_fleet.fleet_log import SOUND, FleetLog
from pvebench_fleet.push import Reply, Sender
from pvebench_fleet.wire import PROTOCOL

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
            connection = bounded(self._connect(), ANSWER_SECONDS)
            try:
                return self._exchange(connection, method, path, body)
            finally:
                connection.close()
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


def new_process() -> str:
    """Return a random identity for this process; it is never stored."""
    return secrets.token_hex(8)


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
    sender = Sender(fleet, hub.send, new_process(), now, site=hub.site)
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
