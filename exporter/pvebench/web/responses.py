"""What every answer has in common: headers, errors, and not making one twice."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any, Final, Generic, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from pvebench import __version__
from pvebench.report.html import templates_of

# --- Templates and static files, read once.

KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
EVIDENCE_TITLES: Final = {
    "effective": "Effective configuration, read back after the switch",
    "error": "Error",
    "command": "Command in the guest",
    "output": "Raw output",
    "host": "Host figures at both ends of the window",
    "hypervisor": "What the hypervisor said",
    "notes": "Notes on the output",
    "host_cache": "What was done about the host's page cache before the run",
    "host_cached_bytes": "Bytes of the volume in the host's page cache before the run",
}


def _read_static() -> dict[str, bytes]:
    folder = files("pvebench.web") / "static"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


STATIC: Final = _read_static()
"""File name -> content; a handful of small files."""


def asset(name: str) -> str:
    """Return the address of a static file, which changes with its content."""
    return f"/static/{name}?v={hashlib.sha256(STATIC[name]).hexdigest()[:12]}"


_ENVIRONMENT: Final = templates_of("pvebench.web")
_ENVIRONMENT.globals |= {"asset": asset, "version": __version__, "titles": EVIDENCE_TITLES}


def render(template: str, **values: Any) -> str:
    """Return a page; every value is escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)


HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Refused(HTTPException):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        happened: what is wrong with it.
        next_step: what to do instead.
        headers: further ones of the answer.
    """

    def __init__(
        self, status: int, happened: str, next_step: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, happened, headers)
        self.next_step = next_step


Made = TypeVar("Made")


class Memo(Generic[Made]):
    """Remembers the last answer of each name, so that many viewers cost no more than one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[object, Made]] = {}

    def get(self, name: str, key: object, make: Callable[[], Made]) -> Made:
        """Return what `make` gave for an equal key the last time, else make it now."""
        with self._lock:
            known = self._known.get(name)
            if known is None or known[0] != key:
                known = self._known[name] = (key, make())
            return known[1]


def refuse(request: Request, error: Exception) -> Response:
    """Answer a Refused, and what Starlette refuses by itself: unknown addresses and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    # Not request.url: that is put together with the Host header, which may be anything.
    happened, step = (
        f"there is nothing at {request.scope['path']}",
        "start at /, or at /api/v1/status",
    )
    if isinstance(error, Refused):
        happened, step = error.detail, error.next_step
    elif status == 405:
        happened, step = f"{request.method} is not possible here", "read with GET or HEAD"
    answer = _error(request, status, happened, step)
    if isinstance(error, HTTPException):
        answer.headers.update(error.headers or {})  # Allow, of a method that is not
    return answer


def our_fault(request: Request, error: Exception) -> Response:
    """Answer a fault of pvebench; what it was stands in the log only."""
    del error
    return _error(
        request, 500, "the page cannot be made", "look at pvebench's log; measuring goes on"
    )


def _error(request: Request, status: int, happened: str, next_step: str) -> Response:
    if request.scope["path"].startswith("/api/"):
        error = {"happened": happened, "next_step": next_step}
        return JSONResponse({"error": error}, status_code=status)
    page = render(
        "error.html",
        happened=_sentence(happened),
        next_step=f"Next step: {next_step}.",
        simulated=False,
        here="",
    )
    return HTMLResponse(page, status_code=status)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def only(request: Request, allowed: Iterable[str]) -> dict[str, str]:
    """Return the query parameters.

    Raises:
        Refused: one is not among `allowed`, or is there twice.
    """
    names = tuple(allowed)
    items = request.query_params.multi_items()
    for name, _ in items:
        if name not in names:
            known = f"known are {', '.join(names)}" if names else "this address takes none"
            raise Refused(400, f"there is no parameter {name!r}", known)
    if len(dict(items)) < len(items):
        raise Refused(400, "a parameter is given twice", "give each one once")
    return dict(items)
