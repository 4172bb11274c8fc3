"""HTTP applications of the hub: the addresses of sites, its pages and its metrics."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pvebench.log import log
from pvebench.metrics.exposition import Families, text_of
from pvebench.model.environment import KnownIssue
from pvebench.model.figure import Metric
from pvebench.model.units import show_bytes, show_seconds
from pvebench.report.html import templates_of
from pvebench.sanitize import printable
from pvebench.verdicts.change_text import change_of
from pvebench.web.request_filter import is_in, user_of
from pvebench.web.responses import security_headers
from pvebench_fleet import HubDatabaseError
from pvebench_fleet.across_sites import FleetEffect
from pvebench_fleet.hub.fleet_view import SKEW_SECONDS, Compared, compared
from pvebench_fleet.hub.rules import Door, SiteBusy
from pvebench_fleet.hub.store.database import CONNECTIONS, HubDatabase
from pvebench_fleet.hub.store.overview import (
    CaseLine,
    NodeLine,
    Overview,
    SiteLine,
    SiteView,
    read_fleet_view,
    read_overview,
    read_site_view,
)
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
        overview = self._database.read(read_overview, self._role)
        return page_text(overview, self._comparison(), name=self._name, now=time.time())

    def site(self, name: str) -> str:
        """Return the page of a site; empty: it does not exist, or the role does not see it."""
        view = self._database.read(partial(read_site_view, name), self._role)
        return "" if view is None else site_page_text(view, now=time.time())

    def metrics(self) -> str:
        """Return the metrics."""
        return metrics_text(self._database.read(read_overview, self._role), self._comparison())

    def _comparison(self) -> Compared:
        with self._lock:  # a comparison takes seconds: one at a time
            now = time.monotonic()
            if self._compared is None or now - self._compared[0] > REFRESH_SECONDS:
                view = self._database.read(read_fleet_view, self._role)
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


# --- Pages and metrics as text. Pure.


def page_text(overview: Overview, compared: Compared, *, name: str, now: float) -> str:
    """Return the page as HTML; `now` in UNIX seconds, `name` of the hub."""
    waiting = [node for node in overview.nodes if node.unjudged or node.failed]
    worst = [
        (case.site, case.key, f"{case.direction} {case.metric}", _ratio(case.change))
        for case in overview.worst
    ]
    return _rendered(
        "fleet.html",
        name=name,
        compared=compared,
        sites=[*_rows(_site_row, overview.sites, now)],
        waiting=[*_rows(_node_row, waiting, now)],
        worst=worst,
    )


def site_page_text(view: SiteView, *, now: float) -> str:
    """Return the page of one site as HTML; `now` in UNIX seconds."""
    changes = [(severity, _ago(begin, now), text) for severity, begin, text in view.changes]
    return _rendered(
        "site.html",
        name=view.site.name,
        sites=[_site_row(view.site, now)],
        changes=changes,
        cases=[_case_row(case, now) for case in view.cases],
    )


def _rendered(template: str, **content: object) -> str:
    # Names and texts are a site's: characters that reverse or hide text are no part of a page.
    return printable(_TEMPLATES.get_template(template).render(**content))


def _case_row(case: CaseLine, now: float) -> tuple[str, ...]:
    finished, values = _ago(case.finished, now), _values(case)
    return case.key, finished, case.outcome, values, case.state, _ratio(case.change)


def _values(case: CaseLine) -> str:
    """Return the rates of a run: IOPS, or bandwidth where the tool counts no I/O."""
    found = {number[:2]: value for number, value in case.values.items()}
    rates = {
        way: f"{way} {show_bytes(value)}/s"
        for (name, way), value in found.items()
        if name == "bandwidth"
    }
    rates |= {
        way: f"{way} {value:,.0f} IOPS" for (name, way), value in found.items() if name == "iops"
    }
    return ", ".join(rates.values())


def _ratio(change: float | None) -> str:
    return "" if change is None else f"{change:+.1%}"


def _by_site(effect: FleetEffect) -> Iterator[tuple[str, str]]:
    """Yield each site and its change with the confidence interval."""
    for site in effect.sites:
        change = change_of(site.effect, effect.figure)
        low, high = sorted(change_of(end, effect.figure) for end in (site.low, site.high))
        yield site.site, f"{change:+.1%} ({low:+.1%} to {high:+.1%})"


def _ago(time: float | None, now: float) -> str:
    return "never" if not time else f"{show_seconds(max(0.0, now - time))} ago"


def _site_row(site: SiteLine, now: float) -> tuple[str, ...]:
    skew = site.skew or 0.0
    state = site.state + f", clock off by {show_seconds(abs(skew))}" * (abs(skew) > SKEW_SECONDS)
    contact, newest = _ago(site.contact, now), _ago(site.newest_run, now)
    return site.name, state, contact, newest, str(site.runs), str(site.refused), site.worst


def _rows(
    row: Callable[[Any, float], tuple[str, ...]], lines: Iterable[Any], now: float
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each line; what a site sent must not hide the others."""
    for line in lines:
        try:
            yield row(line, now)
        except Exception:
            log.exception("a line of the page failed", line=repr(line)[:300])
            yield getattr(line, "name", "") or line.site, "not shown: see the log of `hub pages`"


def _node_row(node: NodeLine, now: float) -> tuple[str, ...]:
    return node.site, node.node, str(node.unjudged), _ago(node.judged_at, now), node.failed


_TEMPLATES: Final = templates_of("pvebench_fleet")
_TEMPLATES.filters |= {"by_site": _by_site, "quoted": partial(quote, safe="")}

# --- Metrics.


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(f"pvebench_hub_{name}", "gauge", labels, text)


_SITE, _NODE = ("site",), ("site", "node")
_INFO: Final = _gauge("site_info", ("site", "state"), "State of a site, always 1.")
_OPEN: Final = _gauge("site_open_changes", ("site", "severity"), "Open regressions by severity.")
_of_site = partial(_gauge, labels=_SITE)
_OF_SITE: Final[Mapping[str, Metric]] = {
    "contact": _of_site(
        "site_contact_timestamp_seconds", text="Unix time of the last request; 0: never."
    ),
    "newest_run": _of_site(
        "site_newest_run_timestamp_seconds", text="Unix time of the newest run; 0: none."
    ),
    "skew": _of_site("site_skew_seconds", text="Difference of the site's clock to the hub's."),
    "runs": _of_site("site_runs_received", text="Runs and corrections that the hub received."),
    "refused": _of_site("site_refused_lines", text="Lines that the hub could not store."),
}
"""Attribute of a site -> its metric."""
_UNJUDGED: Final = _gauge("node_unjudged_runs", _NODE, "Runs that arrived since the last judging.")
_JUDGED: Final = _gauge(
    "node_judged_timestamp_seconds", _NODE, "Unix time of the last judging; 0: never."
)
_BLAMED: Final = _gauge("blamed_upgrades", (), "Upgrades that made several sites slower.")
_FAILED: Final = _gauge("sites_not_compared", (), "Sites whose data failed in the comparison.")
_ALL: Final = (_INFO, _OPEN, *_OF_SITE.values(), _UNJUDGED, _JUDGED, _BLAMED, _FAILED)
METRICS: Final = {metric.name for metric in _ALL}


def metrics_text(overview: Overview, compared: Compared) -> str:
    """Return the metrics in the text format of Prometheus."""
    families = Families()
    for site in overview.sites:
        labels = {"site": site.name}
        families.add(_INFO, {**labels, "state": site.state}, 1)
        for attribute, metric in _OF_SITE.items():
            families.add(metric, labels, getattr(site, attribute) or 0.0)
        families.add(_OPEN, {**labels, "severity": "critical"}, site.critical)
        families.add(_OPEN, {**labels, "severity": "warning"}, site.warnings)
    for node in overview.nodes:
        labels = {"site": node.site, "node": node.node}
        families.add(_UNJUDGED, labels, node.unjudged)
        families.add(_JUDGED, labels, node.judged_at)
    families.add(_BLAMED, {}, sum(upgrade.effect.worse for upgrade in compared.upgrades))
    families.add(_FAILED, {}, len(compared.failed))
    return text_of([families])
