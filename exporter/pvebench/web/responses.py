"""Common parts of responses: templates, headers, errors and caching."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from pvebench import __version__
from pvebench.model.units import show_span
from pvebench.report.html import templates_of
from pvebench.report.value_text import (
    PHASES,
    definition_texts,
    iso,
    outcome_text,
    sample_rows,
    show_age,
    show_moment,
    show_when,
    without_secrets,
)
from pvebench.verdicts.change_text import sentence
from pvebench.web.views import case_url

# --- Templates and static files.

KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
EVIDENCE_TITLES: Final = {
    "effective": "Effective configuration, read back after the switch",
    "error": "Error",
    "command": "Command in the guest",
    "output": "Raw output",
    "host": "Host metrics at the start and end of the measurement",
    "hypervisor": "Hypervisor messages",
    "notes": "Notes on the output",
    "host_cache": "Handling of the host page cache before the run",
    "host_cached_bytes": "Volume data in the host page cache before the run, bytes",
}


_FOLDER: Final = files("pvebench.web") / "static"
STATIC: Final = {file.name: file.read_bytes() for file in _FOLDER.iterdir() if file.is_file()}
"""File name -> content."""


def asset(name: str) -> str:
    """Return the URL of a static file, which changes with its content."""
    return f"/static/{name}?v={hashlib.sha256(STATIC[name]).hexdigest()[:12]}"


_ENVIRONMENT: Final = templates_of("pvebench.web")
_ENVIRONMENT.globals |= {"asset": asset, "version": __version__, "titles": EVIDENCE_TITLES}
_ENVIRONMENT.filters |= {
    "age": lambda moment, now: show_age((now - moment).total_seconds()),
    "case_url": case_url,
    "definition": definition_texts,
    "iso": iso,
    "moment": show_moment,
    "outcome": outcome_text,
    "phase": PHASES.get,
    "samples": sample_rows,
    "sentence": sentence,
    "span": lambda begin, end: show_span((end - begin).total_seconds()),
    "time": lambda seconds: datetime.fromtimestamp(seconds, UTC),
    "when": show_when,
    "without_secrets": without_secrets,
}


def render(template: str, **values: Any) -> str:
    """Return a rendered page with all values escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)


def security_headers(style: str, more: str = "") -> dict[str, str]:
    """Return the headers that limit what a page can do; `style`: source of its styles."""
    own = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return {
        "content-security-policy": f"default-src 'none'; style-src {style}; {more}{own}",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


HEADERS: Final = security_headers(
    "'self'", "script-src 'self'; img-src 'self' data:; connect-src 'self'; "
)


class Refused(HTTPException):
    """A rejected request.

    Args:
        status: HTTP status.
        happened: the error.
        next_step: the action for the client.
        headers: further headers of the response.
    """

    def __init__(
        self, status: int, happened: str, next_step: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, happened, headers)
        self.next_step = next_step


class ResponseCache:
    """Cache of the latest response per name, so that many viewers cost no more than one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[object, str]] = {}

    def get(self, name: str, key: object, make: Callable[[], str]) -> str:
        """Return the cached result for an equal key; otherwise call `make`."""
        with self._lock:
            known = self._known.get(name)
            if known is None or known[0] != key:
                known = self._known[name] = (key, make())
            return known[1]


def refuse(request: Request, error: Exception) -> Response:
    """Return the response to a Refused, and to paths and methods that Starlette rejects."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    # Not request.url, which contains the unchecked Host header.
    happened, step = (f"{request.scope['path']} not found", "start at /, or at /api/v1/status")
    if isinstance(error, Refused):
        happened, step = error.detail, error.next_step
    elif status == 405:
        happened, step = f"method {request.method} not allowed", "use GET or HEAD"
    response = _error(request, status, happened, step)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})  # such as Allow for status 405
    return response


def internal_error(request: Request, error: Exception) -> Response:
    """Return the response to an internal error; only the log has its details."""
    del error
    return _error(request, 500, "internal error", "check pvebench's log; runs continue")


def _error(request: Request, status: int, happened: str, next_step: str) -> Response:
    if request.scope["path"].startswith("/api/"):
        error = {"happened": happened, "next_step": next_step}
        return JSONResponse({"error": error}, status_code=status)
    page = render(
        "error.html",
        happened=happened[:1].upper() + happened[1:],
        next_step=f"Next step: {next_step}.",
        simulated=False,
        here="",
    )
    return HTMLResponse(page, status_code=status)


def query_parameters(request: Request, allowed: Iterable[str]) -> dict[str, str]:
    """Return the query parameters.

    Raises:
        Refused: a parameter is not in `allowed`, or is repeated.
    """
    names = tuple(allowed)
    items = request.query_params.multi_items()
    for name, _ in items:
        if name not in names:
            known = f"use {', '.join(names)}" if names else "remove it; this path has no parameters"
            raise Refused(400, f"unknown parameter {name!r}", known)
    if len(dict(items)) < len(items):
        raise Refused(400, "repeated parameter", "send each parameter once")
    return dict(items)
