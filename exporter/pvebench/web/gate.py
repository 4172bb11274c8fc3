"""What every request passes before anything is answered: host name, rate, login; and headers."""

from __future__ import annotations

import time
from typing import Final

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pvebench.config.web_config import RateLimit, WebConfig
from pvebench.web.access import Access
from pvebench.web.answers import HEADERS, Refused, refuse
from pvebench.web.logins import Logins, TooMany

MOST_TOLD: Final = 20
"""Foreign host names that are logged, each once."""

log = structlog.get_logger()


class Gate:
    """ASGI middleware around everything, whatever the path."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._logins = Logins()
        self._bucket = Bucket()
        self._told: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse; put the headers on what comes back."""
        config = self._access.now()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.update(config.headers)
            await send(message)

        request = Request(scope)
        try:
            await self._look(request, config)
        except Refused as refused:
            await refuse(request, refused)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    async def _look(self, request: Request, config: WebConfig) -> None:
        self._look_at_host(request.headers.get("host"))
        if not self._bucket.takes(config.rate_limit, time.monotonic()):
            seconds = max(1, round(config.rate_limit.interval))
            raise _later("too many requests (rate_limit)", seconds)
        if not config.users:
            return
        try:
            if await self._logins.admits(config.users, request.headers.get("authorization", "")):
                return
        except TooMany as error:
            raise _later("too many logins at once", 1) from error
        raise Refused(
            401,
            "a name and a password are wanted",
            "log in as one of basic_auth_users of the web configuration file",
            headers={"www-authenticate": 'Basic realm="pvebench", charset="UTF-8"'},
        )

    def _look_at_host(self, host: str | None) -> None:
        # Browsers always say by which name they came; what does not is none.
        if host is None or self._access.is_ours(host):
            return
        shown = host[:100]
        step = "ask by address, or name it: --host-name, or host_names in the settings"
        if shown not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(shown)
            log.warning("refused: asked by a name that is not ours", host=shown, next_step=step)
        raise Refused(421, f"{shown!r} is not a name of this pvebench", step)


def _later(happened: str, seconds: int) -> Refused:
    return Refused(
        429, happened, f"ask again in {seconds} s", headers={"retry-after": str(seconds)}
    )


class Bucket:
    """A token bucket: full at first, one more each interval, never more than the burst."""

    def __init__(self) -> None:
        self._limit = RateLimit()
        self._tokens = 0.0
        self._since = 0.0

    def takes(self, limit: RateLimit, now: float) -> bool:
        """Return whether there is a token, and take it; `now` in seconds."""
        if limit.interval == 0:
            return True
        if limit != self._limit:
            self._limit, self._tokens, self._since = limit, limit.burst, now
        gained = (now - self._since) / limit.interval
        self._tokens, self._since = min(float(limit.burst), self._tokens + gained), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
