"""The application: /metrics, its targets and health here, pages and API from `pages`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pvebench.judging import Verdicts
from pvebench.metrics import Page
from pvebench.model.status import WorkerStatus
from pvebench.monitoring.scrape import Targets, target_file
from pvebench.results import Results
from pvebench.web.answers import our_fault, refuse
from pvebench.web.door import Encodings
from pvebench.web.pages import Pages
from pvebench.web.runbooks import runbook


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
