"""HTTP applications of the hub: the addresses of sites, and its page."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pvebench.errors import HubDatabaseError
from pvebench.log import log
from pvebench.model.environment import KnownIssue
from pvebench.web.request_filter import is_in, user_of
from pvebench.web.responses import security_headers
from pvebench_fleet.hub.fleet_view import Compared, compared
from pvebench_fleet.hub.pages import metrics, page, site_page
from pvebench_fleet.hub.rules import Door, SiteBusy
from pvebench_fleet.hub.store.database import CONNECTIONS, HubDatabase
from pvebench_fleet.hub.store.site_transaction import SiteUnknown

RETRY_SECONDS: Final = 5
LONG_RETRY_SECONDS: Final = 60
MIN_FREE: Final = 0.1
"""Share of the database's disk below which the hub stores no results."""
_TOKEN_CHARACTERS: Final = 200

P = ParamSpec("P")
T = TypeVar("T")


class SiteEndpoints:
    """Handles requests of sites; at most CONNECTIONS use the database at once, one per token.

    Attributes:
        door: rules of the protocol. database: identifies sites by their tokens.
        is_full: whether the disk of the database has too little space for more results.
    """

    def __init__(
        self, door: Door, database: HubDatabase, is_full: Callable[[], bool] = lambda: False
    ) -> None:
        self._door = door
        self._is_full = is_full
        self._database = database
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        self._tokens = set[str]()

    async def answer(self, request: Request) -> Response:
        """Answer a request; a busy or broken database asks the site to come back."""
        try:
            site = await self._with_place(request, self._site, request)
            # Without a place: a slow client would keep other sites out.
            body = await self._body(request)
            if body is None:
                text = f"larger than {self._door.limits.bytes} bytes"
                return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
            return await self._with_place(request, self._answer, site, request, body)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        except SiteUnknown:
            return _error(HTTPStatus.UNAUTHORIZED, "unknown token", {"www-authenticate": "Bearer"})
        except SiteBusy:
            return _later(HTTPStatus.TOO_MANY_REQUESTS, "too many requests at once")
        except HubDatabaseError as error:
            log.warning("request of a site failed", reason=error.reason)
            full = error.full
            status = HTTPStatus.INSUFFICIENT_STORAGE if full else HTTPStatus.SERVICE_UNAVAILABLE
            return _later(status, "the hub's database is full" if full else "database unavailable")

    async def _with_place(
        self, request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function that uses the database; raises SiteBusy if there is no place for it."""
        # Not the scheme: `bearer` and `BEARER` are the same one.
        token = request.headers.get("authorization", "").partition(" ")[2]
        if token in self._tokens or not self._places.acquire(blocking=False):
            raise SiteBusy
        self._tokens.add(token)
        try:
            return await run_in_threadpool(function, *args, **kwargs)
        finally:
            self._tokens.discard(token)
            self._places.release()

    async def _body(self, request: Request) -> bytes | None:
        """Return the body of a request; None: it is too large."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._door.limits.bytes:
                return None
        return bytes(body)

    def _site(self, request: Request) -> str:
        """Return the site whose token a request has.

        Raises:
            SiteUnknown: no site has it. HubDatabaseError: there is no space for a push.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_CHARACTERS:
            raise SiteUnknown("no token")
        site = self._database.site_of(token)
        if request.path_params["name"] == "push" and self._is_full():
            error = HubDatabaseError("the disk of the database is almost full")
            error.full = True
            raise error
        return site

    def _answer(self, site: str, request: Request, body: bytes) -> Response:
        path = f"{request.path_params['name']}?{request.url.query}"
        status, content = self._door.answer(site, request.method, path, body)
        return Response(content, status, media_type="application/json")


def _error(status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps({"error": text})
    return Response(body, status, headers=headers, media_type="application/json")


def _later(status: HTTPStatus, text: str) -> Response:
    soon = status == HTTPStatus.TOO_MANY_REQUESTS
    seconds = RETRY_SECONDS if soon else LONG_RETRY_SECONDS
    return _error(status, text, {"retry-after": str(seconds)})


REFRESH_SECONDS: Final = 600.0
"""Minimum time between two comparisons of all sites."""
_PAGE_HEADERS: Final = {**security_headers(style="'unsafe-inline'"), "cache-control": "no-store"}


class FleetPages:
    """The pages of the hub and its metrics. The comparison of sites is kept for a while.

    Args:
        issues: known ones.
        role: role whose sites are shown; empty: that of the database.
    """

    def __init__(
        self, database: HubDatabase, issues: Sequence[KnownIssue], name: str, role: str = ""
    ) -> None:
        self._database, self._issues, self._name = database, issues, name
        self._role = role
        self._lock = threading.Lock()
        self._compared: tuple[float, Compared] | None = None

    def page(self) -> str:
        """Return the page."""
        overview = self._database.overview(self._role)
        return page(overview, self._comparison(), name=self._name, now=time.time())

    def site(self, name: str) -> str:
        """Return the page of a site; empty: it does not exist, or the role does not see it."""
        view = self._database.site_view(name, self._role)
        return "" if view is None else site_page(view, now=time.time())

    def metrics(self) -> str:
        """Return the metrics."""
        return metrics(self._database.overview(self._role), self._comparison())

    def _comparison(self) -> Compared:
        with self._lock:  # a comparison takes seconds: one at a time
            now = time.monotonic()
            if self._compared is None or now - self._compared[0] > REFRESH_SECONDS:
                view = self._database.fleet_view(self._role)
                self._compared = now, compared(view, self._issues)
            return self._compared[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Which pages a request sees.

    Attributes:
        everyone: pages of each request; None: only users of `by_user` see pages.
        header: name of the header in which a proxy names the user; empty: the user is the login
            of the web configuration.
        proxies: where that header may come from.
    """

    everyone: FleetPages | None = None
    by_user: Mapping[str, FleetPages] = field(default_factory=dict)
    header: str = ""
    proxies: Sequence[IPv4Network | IPv6Network] = ()

    def pages(self, request: Request) -> FleetPages | None:
        """Return the pages of the user of a request; None: the user sees none."""
        return self.everyone or self.by_user.get(self._user(request))

    def _user(self, request: Request) -> str:
        if not self.header:
            return user_of(request.scope)
        names, client = request.headers.getlist(self.header), request.client
        # A client of the proxy could send a second header.
        trusted = len(names) == 1 and client is not None and is_in(client.host, self.proxies)
        return names[0] if trusted else ""


def make_pages(readers: Readers) -> Starlette:
    """Return the application of the hub's pages."""

    async def answer(
        request: Request, function: Callable[[FleetPages], str], media_type: str = "text/html"
    ) -> Response:
        pages = readers.pages(request)
        if pages is None:
            return _error(HTTPStatus.FORBIDDEN, "no role of the hub's database for this user")
        try:
            text = await run_in_threadpool(function, pages)
        except HubDatabaseError as error:
            log.warning("page of the hub failed", reason=error.reason)
            return _later(HTTPStatus.SERVICE_UNAVAILABLE, "database unavailable")
        if not text:
            return _error(HTTPStatus.NOT_FOUND, "no such site")
        return Response(text, headers=_PAGE_HEADERS, media_type=media_type)

    async def page(request: Request) -> Response:
        return await answer(request, FleetPages.page)

    async def site(request: Request) -> Response:
        name = request.path_params["name"]
        return await answer(request, lambda pages: pages.site(name))

    async def metrics(request: Request) -> Response:
        return await answer(request, FleetPages.metrics, "text/plain; version=0.0.4")

    return Starlette(
        routes=[
            Route("/", page),
            Route("/sites/{name}", site),
            Route("/metrics", metrics),
            Route("/-/healthy", _healthy),
        ]
    )


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("pvebench hub is healthy.\n")


def has_little_space(folder: Path) -> bool:
    """Return whether the file system of a folder has less than MIN_FREE of its space left."""
    usage = shutil.disk_usage(folder)
    return usage.free < MIN_FREE * usage.total


def make_app(
    door: Door, database: HubDatabase, is_full: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the application; `is_full` as of `SiteEndpoints`."""
    endpoints = SiteEndpoints(door, database, is_full)
    return Starlette(
        routes=[
            Route("/fleet/1/{name}", endpoints.answer, methods=["GET", "POST"]),
            Route("/-/healthy", _healthy),
        ]
    )
