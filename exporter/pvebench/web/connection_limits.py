"""Limits on the number, the time and the rate of HTTP connections.

Connections use file descriptors, which QEMU's sockets and the database need too. If no place is
free, a new connection replaces the one whose client has been slow for longest: to send its request,
or to read the response. If no client is slow, pvebench closes the new one.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from pvebench.web.request_filter import Access

MAX_CONNECTIONS: Final = 128
"""A tenth of the usual file descriptor limit of a process."""
RESERVED_CONNECTIONS: Final = 16
"""Connections that only loopback and `scrape_addresses` can use."""
REQUEST_SECONDS: Final = 10.0
"""Maximum time of a connection without a complete request, including the TLS handshake."""
MIN_BYTES_PER_SECOND: Final = 64 * 1024
"""Minimum rate of reading a response, after REQUEST_SECONDS."""
ANSWER_SECONDS: Final = 120.0
"""Maximum time to compute a response."""
HEAD_BYTES: Final = 16 * 1024
"""Maximum size of a request's line and headers."""


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with limits on the number and time of connections.

    It starts TLS itself: asyncio does not count connections before their handshake ends.
    """

    def __init__(self, access: Access, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reserved = False
        """Whether it can use reserved connections."""
        self._access = access
        self._since = self.loop.time()
        self._owed_bytes = 0
        self._limit: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Start the time limit and the TLS handshake, if there is a place."""
        super().connection_made(transport)
        self._plain = transport
        self.reserved = self.client is not None and self._access.is_scraper(self.client[0])
        if not self._find_place():
            self.drop()
            return
        self._limit = self.loop.call_later(REQUEST_SECONDS, self._check_time)
        if (tls := self._access.now().tls) is not None:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._shake_hands(transport, tls))

    def _find_place(self) -> bool:
        """Return whether there is a place; close the slowest other connection if necessary."""
        others = cast("set[BoundedProtocol]", self.connections) - {self}
        foreign = {other for other in others if not other.reserved}
        full = not self.reserved and len(foreign) >= MAX_CONNECTIONS - RESERVED_CONNECTIONS
        if not full and len(others) < MAX_CONNECTIONS:
            return True
        slowest = max(foreign if full else others, key=lambda other: other.slow_seconds)
        if not slowest.slow_seconds:
            return False
        slowest.drop()
        return True

    def data_received(self, data: bytes) -> None:
        """Handle received data; data right after the handshake waits for its end."""
        if self._handshake is None:
            super().data_received(data)
        else:
            self._early += data

    async def _shake_hands(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(plain, self, context, server_side=True)
        except OSError:  # includes ssl.SSLError: not TLS, or rejected
            secured = None
        if secured is None:
            self.drop()
            return
        secured.set_write_buffer_limits(high=1)  # the plain transport has a buffer already
        super().connection_made(secured)
        self._handshake, early, self._early = None, self._early, b""
        if early:
            super().data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the time limit of reading what is buffered."""
        super().pause_writing()
        self._restart_limit()

    def resume_writing(self) -> None:
        """Start the time limit of reading the rest."""
        super().resume_writing()
        self._restart_limit()

    def on_response_complete(self) -> None:
        """Start the time limit for reading the response and for the next request."""
        if not self.flow.write_paused:
            self._restart_limit()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Reject an invalid request, unless its response has begun: the body can be invalid too."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        if str(self.conn.our_state) in {"IDLE", "SEND_RESPONSE"}:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def drop(self) -> None:
        """Close the connection immediately."""
        self.connections.discard(self)
        self.transport.abort()

    @property
    def slow_seconds(self) -> float:
        """Time that the client has taken to send its request or to read; 0: pvebench computes."""
        request: RequestResponseCycle | None = self.cycle
        computing = request is not None and not request.response_complete
        return 0.0 if computing and not self._buffered() else self.loop.time() - self._since

    def _buffered(self) -> int:
        transports = {self._plain, self.transport}
        return sum(t.get_write_buffer_size() for t in transports if not t.is_closing())

    def _restart_limit(self) -> None:
        self._since, self._owed_bytes = self.loop.time(), self._buffered()

    def _check_time(self) -> None:
        limit = REQUEST_SECONDS + self._owed_bytes / MIN_BYTES_PER_SECOND
        remaining = limit - self.slow_seconds
        if self.slow_seconds == 0:
            remaining = ANSWER_SECONDS - (self.loop.time() - self._since)
        if remaining <= 0:
            self.drop()
        else:
            self._limit = self.loop.call_later(min(remaining, REQUEST_SECONDS), self._check_time)
