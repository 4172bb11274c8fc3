"""What every answer has in common: headers, errors, and not making one twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pvebench.web.render import render

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
    """

    def __init__(self, status: int, happened: str, next_step: str) -> None:
        super().__init__(status, happened)
        self.next_step = next_step


class SecureHeaders:
    """ASGI middleware that puts HEADERS on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and add the headers to the answer's start."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sending)


class Memo:
    """Remembers the last answer of each name, so that many viewers cost no more than one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[object, str]] = {}

    def get(self, name: str, key: object, make: Callable[[], str]) -> str:
        """Return what `make` gave for an equal key the last time, else make it now."""
        with self._lock:
            known = self._known.get(name)
            if known is None or known[0] != key:
                known = self._known[name] = (key, make())
            return known[1]


def refuse(request: Request, error: Exception) -> Response:
    """Answer a Refused, and what Starlette refuses by itself: unknown addresses and methods."""
    if isinstance(error, Refused):
        return _error(request, error.status_code, error.detail, error.next_step)
    status = error.status_code if isinstance(error, HTTPException) else 500
    happened, step = f"there is nothing at {request.url.path}", "start at /, or at /api/v1/status"
    if status == 405:
        happened, step = f"{request.method} is not possible here", "read with GET or HEAD"
    answer = _error(request, status, happened, step)
    if isinstance(error, HTTPException):
        answer.headers.update(error.headers or {})  # Allow, of a method that is not
    return answer


def our_fault(request: Request, error: Exception) -> Response:
    """Answer a fault of pvebench; what it was stands in the log only."""
    del error
    answer = _error(
        request, 500, "the page cannot be made", "look at pvebench's log; measuring goes on"
    )
    answer.headers.update(HEADERS)  # this one is made outside of all middleware
    return answer


def _error(request: Request, status: int, happened: str, next_step: str) -> Response:
    if request.url.path.startswith("/api/"):
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
