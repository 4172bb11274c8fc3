"""Checks of every request (host name, rate, login) and headers of every response."""

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
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

import bcrypt
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pvebench.errors import ConfigError
from pvebench.fields import host_and_port
from pvebench.files import signature
from pvebench.log import log
from pvebench.web.responses import HEADERS, Refused, refuse
from pvebench.web.tls_and_users import RateLimit, WebConfig, load_web_config

# --- Allowed host names, and the web configuration, which is reloaded when it changes.

_HOST: Final = re.compile(r"(?:\[(?P<ip>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?")


_LOOPBACK: Final = ("127.0.0.0/8", "::1")


class Access:
    """Allowed host names and the current web configuration.

    Args:
        address: listen address, `host:port`.
        names: further allowed host names.
        file: the web configuration file, if any.
        scrapers: networks besides loopback with reserved connections.

    Raises:
        ConfigError: the file is invalid.
    """

    def __init__(
        self,
        address: str = "",
        *,
        names: Iterable[str] = (),
        file: Path | None = None,
        scrapers: Iterable[str] = (),
    ) -> None:
        self._scrapers = [ip_network(network) for network in (*_LOOPBACK, *scrapers)]
        # Includes the own host name: it is not public, and containers are reached by it.
        own = (host_and_port(address)[0], "localhost", socket.gethostname(), *names)
        self._names = frozenset(name.lower().rstrip(".") for name in own)
        self._file = file
        self._config = WebConfig() if file is None else load_web_config(file)
        self._seen = signature(self._config.files)

    @property
    def scheme(self) -> str:
        """The URL scheme that clients must use: `http` or `https`."""
        return "http" if self._config.tls is None else "https"

    def is_scraper(self, address: str) -> bool:
        """Return whether a client can use reserved connections."""
        return is_in(address, self._scrapers)

    def is_allowed(self, host: str) -> bool:
        """Return whether a Host header is an address or an allowed name.

        A foreign page that redirects its own name to this machine (DNS rebinding) sends that name.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["ip"] or match["name"]).lower().rstrip(".")
        return name in self._names or name.endswith(".localhost") or _is_address(name)

    def now(self) -> WebConfig:
        """Return the current configuration; reload a changed file first, if it is valid.

        Call it from one thread only.
        """
        if self._file is not None and (seen := signature(self._config.files)) != self._seen:
            self._seen = seen
            self._reload(self._file)
        return self._config

    def _reload(self, file: Path) -> None:
        try:
            config = load_web_config(file)
        except ConfigError as error:
            # Happens between writing a new certificate and its key.
            log.warning("web configuration reload failed", reason=str(error))
            return
        if (config.tls is None) is not (self._config.tls is None):
            reason = "adding or removing tls_server_config needs a restart of pvebench"
            log.warning("web configuration reload failed", reason=reason)
            return
        if missing := self._config.missing_from(config):
            reason = f"the new file has no {' and no '.join(missing)}; the old one stays active"
            step = (
                "restore the lines; to remove the restriction, set {} or NoClientCert, or restart"
            )
            log.warning("web configuration reload failed", reason=reason, next_step=step)
            return
        self._config, self._seen = config, signature(config.files)
        log.info("web configuration reloaded", file=str(file))


def is_in(address: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Return whether the address of a client is in one of some networks."""
    client = ip_address(address.partition("%")[0])
    if isinstance(client, IPv6Address):
        client = client.ipv4_mapped or client
    return any(client in network for network in networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


# --- Basic authentication; bcrypt runs in a thread, outside the event loop.

MAX_WAITING: Final = 8
"""Maximum logins that wait for one check, which takes 0.1 s of CPU time."""
MAX_KNOWN: Final = 100
_BCRYPT_BYTES: Final = 72
"""Maximum length of a password; bcrypt and htpasswd ignore the rest."""


class Logins:
    """Password checks with a cache of successful logins, so that scrapes are cheap.

    The cache holds keyed digests of name, hash and password.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: set[bytes] = set()
        self._waiting = 0
        self._one_at_a_time = asyncio.Lock()

    async def admits(self, users: Mapping[str, bytes], header: str) -> bool:
        """Return whether an Authorization header has the name and password of a user.

        Raises:
            Refused: too many logins are waiting; this one was not checked.
        """
        credentials = _credentials(header)
        if credentials is None:
            return False
        name, password = credentials
        digest = self._digest(name.encode(), users.get(name, b""), password)
        if digest in self._known:
            return True
        # An unknown name always gets the same existing hash, so that the check takes as long.
        choice = int.from_bytes(self._digest(name.encode()), "big") % len(users)
        expected = users.get(name, sorted(users.values())[choice])
        if not await self._fits(password, expected) or name not in users:
            return False
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known.add(digest)
        return True

    def _digest(self, *parts: bytes) -> bytes:
        whole = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hmac.digest(self._key, whole, "sha256")

    async def _fits(self, password: bytes, expected: bytes) -> bool:
        if self._waiting >= MAX_WAITING:
            raise _later("too many logins at once", 1)
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                return await asyncio.to_thread(bcrypt.checkpw, password[:_BCRYPT_BYTES], expected)
        finally:
            self._waiting -= 1


def _credentials(header: str) -> tuple[str, bytes] | None:
    """Return (name, password) of a `Basic` header (RFC 7617); None for other headers."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = b64decode(text.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except ValueError:
        return None


def user_of(scope: Scope) -> str:
    """Return the user of a request that RequestFilter has forwarded; empty: no login is needed."""
    return str(scope.get(_USER, ""))


_USER: Final = "pvebench.user"
MAX_LOGGED: Final = 20
"""Maximum number of unknown host names to log, each once."""


class RequestFilter:
    """ASGI middleware for every request, regardless of its path."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._logins = Logins()
        self._bucket = Bucket()
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward or reject a request; add headers to the response."""
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
            await self._check(request, config)
        except Refused as refused:
            await refuse(request, refused)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    async def _check(self, request: Request, config: WebConfig) -> None:
        self._check_host(request.headers.get("host"))
        if not self._bucket.takes(config.rate_limit, time.monotonic()):
            seconds = max(1, round(config.rate_limit.interval))
            raise _later("too many requests (rate_limit)", seconds)
        if not config.users:
            return
        header = request.headers.get("authorization", "")
        if await self._logins.admits(config.users, header):
            request.scope[_USER] = (_credentials(header) or ("",))[0]
            return
        raise Refused(
            401,
            "authentication required",
            "log in as one of basic_auth_users of the web configuration file",
            headers={"www-authenticate": 'Basic realm="pvebench", charset="UTF-8"'},
        )

    def _check_host(self, host: str | None) -> None:
        # Browsers always send a Host header, so a client without one is not a browser.
        if host is None or self._access.is_allowed(host):
            return
        name = host[:100]
        step = "use the address, or allow the name with --host-name or host_names in the settings"
        if name not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(name)
            log.warning("request rejected: unknown host name", host=name, next_step=step)
        raise Refused(421, f"host name {name!r} is not allowed", step)


def _later(happened: str, seconds: int) -> Refused:
    return Refused(429, happened, f"retry in {seconds} s", headers={"retry-after": str(seconds)})


class Bucket:
    """Token bucket: full at first, one token per interval, at most `burst` tokens."""

    def __init__(self) -> None:
        self._limit = RateLimit()
        self._tokens = 0.0
        self._since = 0.0

    def takes(self, limit: RateLimit, now: float) -> bool:
        """Take a token, if any, and return whether it did; `now` in seconds."""
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
