"""uvicorn in a thread beside the workers."""

from __future__ import annotations

import errno
import re
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from types import TracebackType
from typing import Final, Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pvebench.errors import PortInUse
from pvebench.metrics import Page
from pvebench.model.status import WorkerStatus
from pvebench.provision.scrape import Targets, target_file
from pvebench.shipped import shipped
from pvebench.store.current import Results
from pvebench.verdicts import Verdicts
from pvebench.web.connection_limits import HEAD_BYTES, BoundedProtocol, Encodings
from pvebench.web.endpoints import Pages
from pvebench.web.request_filter import Access, RequestFilter
from pvebench.web.responses import our_fault, refuse

# --- What answers while pvebench starts: the first start builds the guest's image, for minutes.

RETRY_SECONDS = 5


class StartupApp:
    """An ASGI application that says what pvebench is at, until the real one is there.

    Until `open_to`, `/-/healthy` answers 200 (the process lives) and everything else 503 with
    what was said last; afterwards every request goes to the application.
    """

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._last = ""

    def say(self, line: str) -> None:
        """Keep a line about the start, as it is printed too."""
        self._last = line

    def open_to(self, app: ASGIApp) -> None:
        """Let the application answer from now on."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI 3)."""
        answer = self._app or self._answer(scope)
        await answer(scope, receive, send)

    def _answer(self, scope: Scope) -> ASGIApp:
        if scope["path"] == "/-/healthy":
            return PlainTextResponse("pvebench is healthy.\n")
        text = f"pvebench is starting. {self._last}".rstrip()
        headers = {"retry-after": str(RETRY_SECONDS), "cache-control": "no-store"}
        return PlainTextResponse(f"{text}\n", status_code=503, headers=headers)


# --- What to do about an alert, where its link leads: its section of docs/runbooks.md.

_HEADING: Final = re.compile(r"^## (\w+)$", re.MULTILINE)


def runbook(request: Request) -> Response:
    """`/runbooks/PVEBenchChange`."""
    text = sections().get(request.path_params["alert"].lower())
    if text is None:
        raise HTTPException(404)
    return PlainTextResponse(text)


@cache
def sections() -> dict[str, str]:
    """Return an alert's name in small letters -> what to do about it."""
    _, *parts = _HEADING.split(shipped("docs/runbooks.md").read_text("utf-8"))
    return {
        name.lower(): f"{name}\n\n{text.strip()}\n"
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


# --- The application: /metrics, its targets and health here, pages and API from `pages`.


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
        page: what /metrics answers.
        statuses: what each worker does.
        results: what the pages show.
        now: the clock that the workers' times come from.
        verdicts: what was said last.
    """

    def metrics(request: Request) -> Response:
        compress = "gzip" in request.headers.get("accept-encoding", "")
        body, kind = page.render(accept=request.headers.get("accept", ""), compress=compress)
        headers = {"content-type": kind, "vary": "accept, accept-encoding"}
        if compress:
            headers["content-encoding"] = "gzip"
        return Response(body, headers=headers)

    def targets(request: Request) -> Response:
        # Whoever asks has come by this name, and the gate let it in: so a scrape comes as well.
        found = target_file(Targets(addresses=[request.url.netloc]))
        return Response(found, media_type="application/json")

    def healthy(_: Request) -> Response:
        return PlainTextResponse("pvebench is healthy.\n")

    def is_ready(_: Request) -> Response:
        # Until this application is there, the doorway answers 503.
        return PlainTextResponse("pvebench is ready.\n")

    return Starlette(
        routes=[
            # A Route, not a Mount: a mounted /metrics answers 307 first.
            Route("/metrics", metrics),
            Route("/metrics/targets", targets),
            Route("/-/healthy", healthy),
            Route("/-/ready", is_ready),
            Route("/runbooks/{alert}", runbook),
            *Pages(results, statuses, now, verdicts).routes(),
        ],
        middleware=[
            Middleware(Encodings),
            # A large matrix is a megabyte of table; /metrics comes compressed already.
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4),
        ],
        exception_handlers={HTTPException: refuse, Exception: our_fault},
    )


def listen(address: str) -> socket.socket:
    """Return a listening socket on `host:port`; bound before anything else starts.

    Raises:
        PortInUse: somebody listens there already, or the address is not ours.
    """
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host.strip("[]"), int(port)))
        opened.listen(128)
    except OSError as error:
        opened.close()
        taken = error.errno == errno.EADDRINUSE
        raise PortInUse(
            f"cannot listen on {address}: {error.strerror}",
            cause="another pvebench or another program listens there" if taken else "",
            next_step="stop it, or choose another address with --listen",
        ) from error
    return opened


class _Counting(uvicorn.Server):
    """Counts the turns of its main loop, some ten a second: a loop that hangs turns no more."""

    turns = 0

    async def on_tick(self, counter: int) -> bool:
        self.turns += 1
        return await super().on_tick(counter)


class WebServer:
    """Serves an application on an open socket from its own thread, until closed.

    Args:
        access: by what names and under which rules clients come in; None: the usual names.
    """

    def __init__(self, app: ASGIApp, opened: socket.socket, access: Access | None = None) -> None:
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
        self._socket = opened
        self._thread = threading.Thread(target=self._serve, name="pvebench-web", daemon=True)

    @property
    def turns(self) -> int:
        """A number that grows as long as requests are answered."""
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
