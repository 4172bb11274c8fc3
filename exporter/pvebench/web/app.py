"""The routes. Nothing here waits for a measurement."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from pvebench import __version__
from pvebench.metrics import Page
from pvebench.model.status import WorkerStatus

_LANDING = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>pvebench</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font:1rem/1.5 system-ui,sans-serif;margin:2rem auto;max-width:45rem;padding:0 1rem}}
:root{{color-scheme:light dark}}</style></head>
<body><h1>pvebench {version}</h1>
<p>Continuous storage benchmark for Proxmox VE.</p>
<ul><li><a href="/metrics">Metrics</a></li>
<li><a href="/-/healthy">Healthy</a>, <a href="/-/ready">ready</a></li></ul>
<h2>Now</h2><ul>{workers}</ul></body></html>
"""


def make_app(
    *, page: Page, statuses: Callable[[], list[WorkerStatus]], ready: Callable[[], bool]
) -> Starlette:
    """Return the application.

    Args:
        statuses: what each worker does.
        ready: whether the results are loaded and the workers have begun.
    """

    def metrics(request: Request) -> Response:
        compress = "gzip" in request.headers.get("accept-encoding", "")
        body, kind = page.render(accept=request.headers.get("accept", ""), compress=compress)
        headers = {"content-type": kind, "vary": "accept, accept-encoding"}
        if compress:
            headers["content-encoding"] = "gzip"
        return Response(body, headers=headers)

    def healthy(_: Request) -> Response:
        return PlainTextResponse("pvebench is healthy.\n")

    def is_ready(_: Request) -> Response:
        if ready():
            return PlainTextResponse("pvebench is ready.\n")
        return PlainTextResponse("pvebench is starting.\n", status_code=503)

    def landing(_: Request) -> Response:
        workers = "".join(f"<li>{escape(describe(status))}</li>" for status in statuses())
        return HTMLResponse(_LANDING.format(version=escape(__version__), workers=workers))

    return Starlette(
        routes=[
            # A Route, not a Mount: a mounted /metrics answers 307 first.
            Route("/metrics", metrics),
            Route("/-/healthy", healthy),
            Route("/-/ready", is_ready),
            Route("/", landing),
        ]
    )


def describe(status: WorkerStatus) -> str:
    """Return one sentence about what a worker does."""
    text = f"{status.node}: {status.state}"
    if status.case is not None:
        text += f" {status.case.slug} ({status.phase})"
    if status.cycle is not None:
        text += f", cycle {status.cycle.number}: {status.cycle.done} of {status.cycle.planned}"
    if status.next_due is not None:
        text += f", next run at {status.next_due:%H:%M:%S} UTC"
    return text
