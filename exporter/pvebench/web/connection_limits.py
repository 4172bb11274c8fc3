"""HTTP connection limits that keep file descriptors free.

Idle connections use file descriptors, which QEMU's sockets and the database need too. Beyond the
limit, pvebench closes the connection that has been idle for longest, so that a scrape always
succeeds.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

CONNECTIONS: Final = 128
"""Maximum number; a tenth of the usual file descriptor limit of a process."""
REQUEST_SECONDS: Final = 10.0
"""Maximum time of a connection without a complete request."""
ANSWER_SECONDS: Final = 120.0
"""Maximum time of a response, including the time that the client needs to read it."""
HEAD_BYTES: Final = 16 * 1024
"""Maximum size of a request's line and headers."""


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with limits on the number and the time of connections.

    It starts TLS itself: asyncio's server does not count connections before their handshake ends,
    and cannot change its context while it runs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since = self.loop.time()
        self._limit: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""

    @staticmethod
    def tls() -> ssl.SSLContext | None:
        """Return the TLS context of the next connection; None: plain HTTP."""
        return None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Accept a connection; drop an idle one beyond the limit."""
        super().connection_made(transport)
        self._limit = self.loop.call_later(REQUEST_SECONDS, self._check_time)
        if len(self.connections) > CONNECTIONS:
            self._drop_idle()
        context = self.tls()
        if context is not None:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._shake_hands(transport, context))

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
        super().connection_made(secured)
        self._handshake, early, self._early = None, self._early, b""
        if early:
            super().data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start the time limit for the next request."""
        self._since = self.loop.time()
        super().on_response_complete()

    def drop(self) -> None:
        """Close the connection immediately."""
        self.connections.discard(self)
        self.transport.abort()

    @property
    def idle_since(self) -> float | None:
        """Start of the idle time, by the loop's clock; None while a request is in progress."""
        request: RequestResponseCycle | None = self.cycle
        return self._since if request is None or request.response_complete else None

    def _drop_idle(self) -> None:
        idle = {
            connection: since
            for connection in self.connections
            if isinstance(connection, BoundedProtocol)
            and (since := connection.idle_since) is not None
        }
        min(idle, key=idle.__getitem__).drop()  # never empty: this connection is idle too

    def _check_time(self) -> None:
        since = self.idle_since
        waited = self.loop.time() - (self._since if since is None else since)
        limit = ANSWER_SECONDS if since is None else REQUEST_SECONDS
        if waited >= limit:
            self.drop()
        else:
            self._limit = self.loop.call_later(limit - waited, self._check_time)


class Encodings:
    """ASGI middleware that reduces Accept-Encoding to `gzip` or nothing.

    Other code only searches for the word, although `gzip;q=0` rejects it (RFC 9110, 12.5.3).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request with the normalized header."""
        if scope["type"] == "http":
            headers = MutableHeaders(scope=scope)
            values = headers.getlist("accept-encoding")
            if values:
                del headers["accept-encoding"]
                if accepts_gzip(",".join(values)):
                    headers["accept-encoding"] = "gzip"
        await self._app(scope, receive, send)


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip."""
    weights: dict[str, float] = {}
    for part in header.lower().split(","):
        coding, _, parameter = part.partition(";")
        name, _, weight = parameter.partition("=")
        try:
            weights[coding.strip()] = float(weight) if name.strip() == "q" else 1.0
        except ValueError:
            weights[coding.strip()] = 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0
