"""What every request passes before anything is answered: host name, rate, login; and headers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import socket
import time
from base64 import b64decode
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import bcrypt
import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pvebench.config.web_config import RateLimit, WebConfig, load_web_config
from pvebench.errors import ConfigError
from pvebench.files import signature
from pvebench.web.responses import HEADERS, Refused, refuse

# --- By what name and under which rules clients come in; the rules are read anew when they change.

_HOST: Final = re.compile(r"(?:\[(?P<ip>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?")

log = structlog.get_logger()


class Access:
    """The names that are ours, and what the web configuration file says now.

    Args:
        address: what is listened on, `host:port`.
        names: further names that clients may ask for.
        file: the web configuration file, if there is one.

    Raises:
        ConfigError: the file is wrong.
    """

    def __init__(
        self, address: str = "", *, names: Iterable[str] = (), file: Path | None = None
    ) -> None:
        # Its own name too: nobody else on the internet has that, and containers are called by it.
        own = (address.rpartition(":")[0], "localhost", socket.gethostname(), *names)
        self._names = frozenset(name.lower().rstrip(".") for name in own)
        self._file = file
        self._config = WebConfig() if file is None else load_web_config(file)
        self._seen = signature(self._config.files)

    @property
    def scheme(self) -> str:
        """How clients must ask: `http` or `https`."""
        return "http" if self._config.tls is None else "https"

    def is_ours(self, host: str) -> bool:
        """Return whether a Host header names this machine: by an address, or a name of ours.

        A page elsewhere whose name is made to lead here (DNS rebinding) can ask by its own name
        only.
        """
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found["ip"] or found["name"]).lower().rstrip(".")
        return name in self._names or name.endswith(".localhost") or _is_address(name)

    def now(self) -> WebConfig:
        """Return what is in force; a changed file is taken over first, if it is right.

        Called from one thread only.
        """
        if self._file is not None and (seen := signature(self._config.files)) != self._seen:
            self._seen = seen
            self._reread(self._file)
        return self._config

    def _reread(self, file: Path) -> None:
        try:
            found = load_web_config(file)
        except ConfigError as error:
            # Between a new certificate and its new key it is so for a moment.
            log.warning("the changed web configuration is not used", reason=str(error))
            return
        if (found.tls is None) is not (self._config.tls is None):
            reason = "tls_server_config cannot come or go while running; restart pvebench"
            log.warning("the changed web configuration is not used", reason=reason)
            return
        self._config, self._seen = found, signature(found.files)
        log.info("web configuration reloaded", file=str(file))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


# --- Basic authentication: passwords are compared with bcrypt hashes, beside the event loop.

MOST_WAITING: Final = 8
"""Logins that wait while one is looked at, which takes a tenth of a second of a CPU."""
MOST_KNOWN: Final = 100
_BCRYPT_BYTES: Final = 72
"""Of a password: bcrypt never looked at more, and htpasswd leaves the rest out too."""


class TooMany(Exception):
    """So many logins wait already that this one is not looked at."""


class Logins:
    """Who has logged in before is let in at once, so that a scrape costs nothing.

    What is remembered is a keyed digest of name, hash and password, of those that were right.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: set[bytes] = set()
        self._waiting = 0
        self._one_at_a_time = asyncio.Lock()

    async def admits(self, users: Mapping[str, bytes], header: str) -> bool:
        """Return whether an Authorization header has the name and password of a user.

        Raises:
            TooMany: it was not looked at.
        """
        given = _credentials(header)
        if given is None:
            return False
        name, password = given
        digest = self._digest(name.encode(), users.get(name, b""), password)
        if digest in self._known:
            return True
        # Somebody's hash for a name that is nobody's, and always the same one: it takes as long.
        choice = int.from_bytes(self._digest(name.encode()), "big") % len(users)
        wanted = users.get(name, sorted(users.values())[choice])
        if not await self._fits(password, wanted) or name not in users:
            return False
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known.add(digest)
        return True

    def _digest(self, *parts: bytes) -> bytes:
        whole = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hmac.digest(self._key, whole, "sha256")

    async def _fits(self, password: bytes, wanted: bytes) -> bool:
        if self._waiting >= MOST_WAITING:
            raise TooMany
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                return await asyncio.to_thread(bcrypt.checkpw, password[:_BCRYPT_BYTES], wanted)
        finally:
            self._waiting -= 1


def _credentials(header: str) -> tuple[str, bytes] | None:
    """Return (name, password) of `Basic …` (RFC 7617); None: it is not that."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = b64decode(text.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except ValueError:
        return None


MOST_TOLD: Final = 20
"""Foreign host names that are logged, each once."""


class RequestFilter:
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
