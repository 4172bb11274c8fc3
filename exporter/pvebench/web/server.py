"""HTTP application, and its server: uvicorn in a separate thread."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Final, Self

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

from pvebench.errors import PortInUse
from pvebench.fields import host_and_port
from pvebench.metrics.exposition import Page
from pvebench.provision.scrape import NO_TARGETS, Targets, target_file
from pvebench.shipped import shipped
from pvebench.web.connection_limits import HEAD_BYTES, BoundedProtocol
from pvebench.web.endpoints import Pages
from pvebench.web.request_filter import Access, RequestFilter
from pvebench.web.responses import internal_error, refuse


class Compression(GZipMiddleware):
    """ASGI middleware that compresses what is not compressed already.

    It reduces Accept-Encoding to `gzip` or nothing: other code only searches for the word, although
    `gzip;q=0` rejects it (RFC 9110, 12.5.3).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request with the normalized header."""
        headers = MutableHeaders(scope=scope)
        if values := headers.getlist("accept-encoding"):
            del headers["accept-encoding"]
            if accepts_gzip(",".join(values)):
                headers["accept-encoding"] = "gzip"
        await super().__call__(scope, receive, send)


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


def make_app(page: Page, pages: Pages, scraped: Targets = NO_TARGETS) -> Starlette:
    """Return the application.

    Args:
        page: content of /metrics. pages: web UI and API.
        scraped: site, and path of the metrics in addition to `/metrics`.
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
        content = target_file(replace(scraped, addresses=[request.url.netloc]))
        return Response(content, media_type="application/json")

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("pvebench is healthy.\n")

    async def is_ready(_: Request) -> Response:
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
            *pages.routes(),
        ],
        # A large matrix is a megabyte of HTML.
        middleware=[Middleware(Compression, minimum_size=2000, compresslevel=4)],
        exception_handlers={HTTPException: refuse, Exception: internal_error},
    )


def add_reload(app: Starlette, ask: Callable[[], None]) -> None:
    """Let POST /-/reload request a reload of the settings."""

    async def reload(_: Request) -> Response:
        ask()
        return PlainTextResponse("pvebench reloads its settings between two runs.\n")

    app.add_route("/-/reload", reload, methods=["POST", "PUT"])


# --- The listening socket: opened here or passed by systemd, and the process that has a port.

OPTION: Final = "--web.listen-address"
MAX_QUEUED: Final = 64
"""Connections in the listen queue; beyond it, clients repeat their attempt after a second.

asyncio accepts as many at once, before it can close any. Each takes a file descriptor."""
_FIRST_PASSED: Final = 3  # SD_LISTEN_FDS_START
_LISTENING: Final = "0A"


def listen(address: str) -> socket.socket:
    """Return a listening socket on `host:port`; called before anything else starts.

    Raises:
        PortInUse: the port is in use, or the address is not local.
    """
    passed = passed_socket()
    if passed is not None:
        if address_of(passed) == address:
            return passed
        passed.close()
    host, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
        listener.listen(MAX_QUEUED)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        raise PortInUse(
            f"cannot listen on {address}: {error.strerror}",
            cause=f"{socket_owner(int(port))} listens on this port" if taken else "",
            next_step=f"{'stop it, or ' * taken}set another address with {OPTION}",
        ) from error
    return listener


def passed_socket() -> socket.socket | None:
    """Return the TCP socket that systemd passes to this process (sd_listen_fds(3)), if any."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not os.environ.get("LISTEN_FDS"):
        return None
    try:
        passed = socket.socket(fileno=os.dup(_FIRST_PASSED))
    except OSError:
        return None
    if passed.family not in (socket.AF_INET, socket.AF_INET6):
        passed.close()
        return None
    return passed


def address_of(listener: socket.socket) -> str:
    """Return `host:port` of an IPv4 or IPv6 socket."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_owner(port: int) -> str:
    """Return name and ID of the process that listens on `port`, or its user if it is hidden."""
    users: dict[str, int] = {}  # of the sockets
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        rows = table.read_text("ascii").splitlines()[1:] if table.exists() else []
        for columns in map(str.split, rows):
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                users[f"socket:[{columns[9]}]"] = int(columns[7])
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        # Processes may end meanwhile, and those of other users are not readable.
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()) in users:
                process = descriptor.parents[1]
                return f"{(process / 'comm').read_text('utf-8').strip()} (process {process.name})"
    for user in users.values():
        with contextlib.suppress(KeyError):
            return f"a process of user {pwd.getpwuid(user).pw_name}"
    return "a process of another user"


class WebServer:
    """HTTP server for an application on a listening socket, in its own thread.

    Args:
        access: allowed host names and access rules; None: the default names.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, access: Access | None = None) -> None:
        rules = access or Access()
        self.turns = 0
        """Seconds in which the loop ran: it grows as long as the server responds."""
        config = uvicorn.Config(
            RequestFilter(app, rules),
            http=partial(BoundedProtocol, rules),  # type: ignore[arg-type] # called like the class
            callback_notify=self._count,
            timeout_notify=-(2**40),  # every time, even after the wall clock was set back
            backlog=MAX_QUEUED,
            ws="none",
            h11_max_incomplete_event_size=HEAD_BYTES,
            log_config=None,
            access_log=False,
            lifespan="off",
            # Who may write X-Forwarded-For could choose the address of the client.
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)
        self._socket = listener
        self._thread = threading.Thread(target=self._serve, name="pvebench-web", daemon=True)

    async def _count(self) -> None:
        self.turns += 1

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5.0)
        self._socket.close()
