"""Limits on the number, the time and the rate of HTTP connections.

Connections use file descriptors, which QEMU's sockets and the database need too. If no place is
free, pvebench closes the connection whose client has been slow for longest: to send its request, or
to read the response. If no client is slow, new connections wait, and none waits
behind one that cannot use the reserved places.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from pvebench.web.request_filter import Access

MAX_CONNECTIONS: Final = 128
"""A tenth of the usual file descriptor limit of a process."""
RESERVED_CONNECTIONS: Final = 16
"""Connections that only loopback and `scrape_addresses` can use."""
MAX_WAITING: Final = 64
"""Accepted connections that wait for a place; of more, the oldest is closed."""
SLOW_SECONDS: Final = 0.2
"""Time that each client has before a new connection can replace its own."""
REQUEST_SECONDS: Final = 10.0
"""Maximum time of a connection without a complete request, including the TLS handshake."""
MIN_BYTES_PER_SECOND: Final = 64 * 1024
"""Minimum rate of reading a response, after REQUEST_SECONDS."""
ANSWER_SECONDS: Final = 120.0
"""Maximum time to compute a response."""
HEAD_BYTES: Final = 16 * 1024
"""Maximum size of a request's line and headers."""


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with limits on the time of connections.

    It starts TLS itself: asyncio does not count connections before their handshake ends.

    Args:
        tls: TLS context; None: plain HTTP.
        reserved: whether it can use reserved connections.
    """

    def __init__(self, *, tls: ssl.SSLContext | None, reserved: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reserved = reserved
        self._tls = tls
        self._since = self.loop.time()
        self._owed_bytes = 0
        self._limit: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Start the time limit and the TLS handshake."""
        super().connection_made(transport)
        self._plain = transport
        self._limit = self.loop.call_later(REQUEST_SECONDS, self._check_time)
        if self._tls is not None:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._shake_hands(transport, self._tls))

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


class LimitedServer(uvicorn.Server):
    """Server that accepts connections within the limits of this module.

    Attributes:
        turns: iterations of the main loop, about ten per second; it stops growing if the loop
            hangs.
    """

    def __init__(self, config: uvicorn.Config, access: Access) -> None:
        super().__init__(config)
        self.turns = 0
        self._access = access
        self._accepting: list[asyncio.Task[None]] = []
        self._admissions: dict[asyncio.Task[None], socket.socket] = {}
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._admission = asyncio.Lock()

    async def on_tick(self, counter: int) -> bool:
        """Count the iteration."""
        self.turns += 1
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on `sockets`; asyncio's own server cannot pause."""
        await super().startup(sockets=[])
        self._accepting = [asyncio.create_task(self._accept(one)) for one in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, then end the present ones."""
        for task in (*self._accepting, *self._admissions):
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError:  # no file descriptor is free
                await asyncio.sleep(SLOW_SECONDS / 10)
                continue
            admission = asyncio.create_task(self._admit(client, address[0]))
            self._admissions[admission] = client
            admission.add_done_callback(self._admitted)
            await asyncio.sleep(0)  # accepting does not yield while clients are queued

    async def _admit(self, client: socket.socket, host: str) -> None:
        """Connect a client as soon as there is a place for it."""
        reserved = self._access.is_scraper(host)
        try:
            while not await self._connect(client, reserved=reserved):  # time passes, no event
                self._wait(asyncio.current_task())
                await asyncio.sleep(SLOW_SECONDS / 10)
        except OSError:  # the client is gone
            client.close()

    def _wait(self, admission: asyncio.Task[None] | None) -> None:
        """Count a client that waits for a place; beyond the limit, close the oldest."""
        if admission is not None:
            self._waiting[admission] = None
        if len(self._waiting) > MAX_WAITING:
            next(iter(self._waiting)).cancel()

    def _admitted(self, admission: asyncio.Task[None]) -> None:
        self._waiting.pop(admission, None)
        client = self._admissions.pop(admission)
        if admission.cancelled():  # it waited for too long
            client.close()

    async def _connect(self, client: socket.socket, *, reserved: bool) -> bool:
        """Connect the client if there is a place; one at a time, so that the next counts it."""
        async with self._admission:
            if not self._has_place(reserved=reserved):
                return False
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(partial(self._protocol, reserved), client)
            return True

    def _protocol(self, reserved: bool) -> BoundedProtocol:
        return BoundedProtocol(
            tls=self._access.now().tls,
            reserved=reserved,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    def _has_place(self, *, reserved: bool) -> bool:
        """Return whether a connection can be accepted; close the slowest one if necessary."""
        everyone = cast("set[BoundedProtocol]", self.server_state.connections)
        other_protocols = [protocol for protocol in everyone if not protocol.reserved]
        beyond = not reserved and len(other_protocols) >= MAX_CONNECTIONS - RESERVED_CONNECTIONS
        if not beyond and len(everyone) < MAX_CONNECTIONS:
            return True
        slowest = max(
            other_protocols if beyond else everyone, key=lambda protocol: protocol.slow_seconds
        )
        if slowest.slow_seconds < SLOW_SECONDS:
            return False
        slowest.drop()
        return True
