"""What answers while pvebench starts: the first start builds the guest's image, for minutes."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

RETRY_SECONDS = 5


class Doorway:
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
