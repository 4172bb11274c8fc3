"""HTTP application, and its server: uvicorn in a separate thread."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from pvebench.errors import PortInUse
from pvebench.metrics import Page
from pvebench.model.status import WorkerStatus
from pvebench.provision.scrape import Targets, target_file
from pvebench.shipped import shipped
from pvebench.store.current import Results
from pvebench.verdicts import Verdicts
from pvebench.web.endpoints import Pages
from pvebench.web.request_filter import Access, RequestFilter
from pvebench.web.responses import internal_error, refuse

# --- Connection limits.
#
# Idle connections use file descriptors, which QEMU's sockets and the database need too. Beyond the
# limit, pvebench closes the connection that has been idle for longest, so that a scrape succeeds.

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


# --- Responses during startup, which takes minutes if it builds the guest image.

RETRY_SECONDS = 5


class StartupApp:
    """ASGI application that reports the progress of the startup.

    Before `forward_to`, `/-/healthy` returns 200 (the process is alive) and every other path 503
    with the latest line; afterwards, every request goes to the application.
    """

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._last = ""

    def say(self, line: str) -> None:
        """Set the line that reports the progress, as printed on the console."""
        self._last = line

    def forward_to(self, app: ASGIApp) -> None:
        """Forward every further request to the application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI 3)."""
        respond = self._app or self._response(scope)
        await respond(scope, receive, send)

    def _response(self, scope: Scope) -> ASGIApp:
        if scope["path"] == "/-/healthy":
            return PlainTextResponse("pvebench is healthy.\n")
        text = f"pvebench is starting. {self._last}".rstrip()
        headers = {"retry-after": str(RETRY_SECONDS), "cache-control": "no-store"}
        return PlainTextResponse(f"{text}\n", status_code=503, headers=headers)


# --- Runbooks of alerts: sections of docs/runbooks.md.

_HEADING: Final = re.compile(r"^## (\w+)$", re.MULTILINE)


def runbook(request: Request) -> Response:
    """Serve `/runbooks/<alert>`."""
    text = sections().get(request.path_params["alert"].lower())
    if text is None:
        raise HTTPException(404)
    return PlainTextResponse(text)


@cache
def sections() -> dict[str, str]:
    """Return the runbooks: alert name in lower case -> text."""
    _, *parts = _HEADING.split(shipped("docs/runbooks.md").read_text("utf-8"))
    return {
        name.lower(): f"{name}\n\n{text.strip()}\n"
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


# --- Application: /metrics, scrape targets and health; `endpoints` adds web UI and API.


def _utc_now() -> datetime:
    return datetime.now(UTC)


def make_app(
    *,
    page: Page,
    statuses: Callable[[], list[WorkerStatus]],
    results: Results,
    now: Callable[[], datetime] = _utc_now,
    verdicts: Callable[[], Verdicts] = Verdicts,
) -> Starlette:
    """Return the application.

    Args:
        page: content of /metrics.
        statuses: returns the status of each worker.
        results: results for web UI and API.
        now: clock of the workers' times.
        verdicts: returns the latest verdicts.
    """

    def metrics(request: Request) -> Response:
        compress = "gzip" in request.headers.get("accept-encoding", "")
        body, kind = page.render(accept=request.headers.get("accept", ""), compress=compress)
        headers = {"content-type": kind, "vary": "accept, accept-encoding"}
        if compress:
            headers["content-encoding"] = "gzip"
        return Response(body, headers=headers)

    def targets(request: Request) -> Response:
        # The client reached pvebench by this allowed name, so a scrape can use it too.
        content = target_file(Targets(addresses=[request.url.netloc]))
        return Response(content, media_type="application/json")

    def healthy(_: Request) -> Response:
        return PlainTextResponse("pvebench is healthy.\n")

    def is_ready(_: Request) -> Response:
        # During startup, StartupApp returns 503.
        return PlainTextResponse("pvebench is ready.\n")

    return Starlette(
        routes=[
            # A Route, not a Mount: a mounted /metrics redirects with 307.
            Route("/metrics", metrics),
            Route("/metrics/targets", targets),
            Route("/-/healthy", healthy),
            Route("/-/ready", is_ready),
            Route("/runbooks/{alert}", runbook),
            *Pages(results, statuses, now, verdicts).routes(),
        ],
        middleware=[
            Middleware(Encodings),
            # A large matrix is a megabyte of HTML; /metrics is already compressed.
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4),
        ],
        exception_handlers={HTTPException: refuse, Exception: internal_error},
    )


def listen(address: str) -> socket.socket:
    """Return a listening socket on `host:port`; called before anything else starts.

    Raises:
        PortInUse: the port is in use, or the address is not local.
    """
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
        listener.listen(128)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        raise PortInUse(
            f"cannot listen on {address}: {error.strerror}",
            cause="another pvebench or another program listens on this port" if taken else "",
            next_step="stop it, or set another address with --listen",
        ) from error
    return listener


class _Counting(uvicorn.Server):
    """Server that counts the iterations of its main loop, about ten per second.

    The number stops growing if the loop hangs.
    """

    turns = 0

    async def on_tick(self, counter: int) -> bool:
        self.turns += 1
        return await super().on_tick(counter)


class WebServer:
    """HTTP server for an application on a listening socket, in its own thread.

    Args:
        access: allowed host names and access rules; None: the default names.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, access: Access | None = None) -> None:
        rules = access or Access()

        class Protocol(BoundedProtocol):
            tls = staticmethod(lambda: rules.now().tls)

        config = uvicorn.Config(
            RequestFilter(app, rules),
            http=Protocol,
            ws="none",
            h11_max_incomplete_event_size=HEAD_BYTES,
            log_config=None,
            access_log=False,
            lifespan="off",
        )
        self._server = _Counting(config)
        self._socket = listener
        self._thread = threading.Thread(target=self._serve, name="pvebench-web", daemon=True)

    @property
    def turns(self) -> int:
        """Number of loop iterations; it grows as long as the server responds."""
        return self._server.turns

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5.0)
        self._socket.close()
