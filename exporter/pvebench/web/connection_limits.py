"""Who gets in: connections are bounded in number and time, so that measuring has what it needs.

Idle connections cost file descriptors, which QEMU's sockets and the database need too. Beyond the
limit the one that has been idle for longest makes room, so that a scrape gets in whoever else
holds connections open.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

CONNECTIONS: Final = 128
"""At once; a tenth of the file descriptors that a process usually has."""
REQUEST_SECONDS: Final = 10.0
"""How long a connection may be there without a whole request."""
ANSWER_SECONDS: Final = 120.0
"""How long an answer may take, its reading by the other side included."""
HEAD_BYTES: Final = 16 * 1024
"""Of a request: its line and its headers."""


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP, with a limit on connections and on the time that each may take.

    TLS begins here and not in asyncio's server, which neither counts connections before their
    handshake is done nor takes another context while it runs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since = self.loop.time()
        self._limit: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""

    @staticmethod
    def tls() -> ssl.SSLContext | None:
        """Return what to open the next connection with; None: plain HTTP."""
        return None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Take a connection; another one that is idle may have to go."""
        super().connection_made(transport)
        self._limit = self.loop.call_later(REQUEST_SECONDS, self._look)
        if len(self.connections) > CONNECTIONS:
            self._make_room()
        context = self.tls()
        if context is not None:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._shake_hands(transport, context))

    def data_received(self, data: bytes) -> None:
        """Take what was sent; a request right behind the handshake waits for its end."""
        if self._handshake is None:
            super().data_received(data)
        else:
            self._early += data

    async def _shake_hands(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(plain, self, context, server_side=True)
        except OSError:  # ssl.SSLError is one: whoever it was does not speak TLS, or is not let in
            secured = None
        if secured is None:
            self.drop()
            return
        super().connection_made(secured)
        self._handshake, early, self._early = None, self._early, b""
        if early:
            super().data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request, but not for long."""
        self._since = self.loop.time()
        super().on_response_complete()

    def drop(self) -> None:
        """End the connection now."""
        self.connections.discard(self)
        self.transport.abort()

    @property
    def idle_since(self) -> float | None:
        """Since when nothing is asked, by the loop's clock; None: a request is being answered."""
        asked: RequestResponseCycle | None = self.cycle
        return self._since if asked is None or asked.response_complete else None

    def _make_room(self) -> None:
        idle = {
            one: since
            for one in self.connections
            if isinstance(one, BoundedProtocol) and (since := one.idle_since) is not None
        }
        min(idle, key=idle.__getitem__).drop()  # this one is idle too: there is always one

    def _look(self) -> None:
        since = self.idle_since
        waited = self.loop.time() - (self._since if since is None else since)
        most = ANSWER_SECONDS if since is None else REQUEST_SECONDS
        if waited >= most:
            self.drop()
        else:
            self._limit = self.loop.call_later(most - waited, self._look)


class Encodings:
    """ASGI middleware: what is compressed is told by one header, `gzip` or none.

    Others only look whether the word is there; `gzip;q=0` refuses it (RFC 9110, 12.5.3).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, with the header put in plain words."""
        if scope["type"] == "http":
            headers = MutableHeaders(scope=scope)
            given = headers.getlist("accept-encoding")
            if given:
                del headers["accept-encoding"]
                if accepts_gzip(",".join(given)):
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
