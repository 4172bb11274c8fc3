"""Keeps our dashboards in a Grafana: what was pushed is marked, and nothing else is touched."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode, urlsplit

from pvebench import __version__
from pvebench.errors import ConfigError, NotOwned, PipelineError, Problem
from pvebench.files import Body, ResponseTooLarge, read_body
from pvebench.model.units import MIB
from pvebench.provision.dashboards import DATASOURCE, mapped
from pvebench.sanitize import one_line

# --- Grafana's HTTP API, as far as dashboards are pushed. The token never leaves this module.

MOST_BYTES: Final = 32 * MIB
"""Of an answer: a dashboard is some hundred kB."""
_ALL_SECONDS: Final = 60.0
_STILL_SECONDS: Final = 20.0
_SHOWN: Final = 200


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that leads elsewhere is an answer: the token goes to the address that was given."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Grafana:
    """One Grafana, by the address of its root.

    Args:
        ca_file: authority to trust instead of the system's.

    Raises:
        ConfigError: address or token cannot be one.
    """

    def __init__(self, url: str, token: str, ca_file: Path | None = None) -> None:
        self.url = _root(url)
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise _wrong("--token-file", "holds no token: one word of ASCII characters")
        self._token = token
        context = _trust(ca_file)
        # Proxies of the environment are for the web; a token is not shown to them.
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.ProxyHandler({}),
            _NoRedirect(),
        )

    def get(self, path: str) -> Any:
        """Return what is there; None: there is nothing (404)."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Make or change something."""
        return self._call("POST", path, json.dumps(body).encode())

    def delete(self, path: str) -> Any:
        """Remove something; None: it was not there."""
        return self._call("DELETE", path, None)

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": f"pvebench/{__version__}",
        }
        request = urllib.request.Request(  # noqa: S310 # http or https, see _root
            self.url + path, body, headers, method=method
        )
        what = f"{method} {path.partition('?')[0]}"
        try:
            with self._opener.open(request, timeout=_STILL_SECONDS) as answer:
                return self._json(what, _read(what, answer))
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(what, error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = self._clean(str(getattr(error, "reason", error)))
            raise PipelineError(
                f"Grafana at {self.url} does not answer: {reason}",
                cause="another address, or a certificate of an authority that is not known here",
                next_step="mend --url; name the authority with --ca-file",
            ) from None  # the original may hold what was sent

    def _refused(self, what: str, error: urllib.error.HTTPError) -> None:
        if error.code == 404:
            return
        text = _read(what, error).decode("utf-8", "replace")
        try:
            said = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            said = text
        causes = {
            401: ("the token is not known there, or has ended", "make one, see the docs"),
            403: ("the token's service account lacks a right", "give it the role Admin"),
            412: ("somebody changed it at this moment", "push again"),
        }
        cause, next_step = causes.get(error.code, ("", f"look at {self.url} and its log"))
        raise PipelineError(
            f"Grafana answers {error.code} to {what}: {self._clean(said)}",
            cause=cause,
            next_step=next_step,
        )

    def _json(self, what: str, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            shown = self._clean(text[:_SHOWN].decode("utf-8", "replace"))
            raise PipelineError(
                f"what answers {what} at {self.url} is not Grafana: {shown}",
                next_step="name the address of Grafana's root with --url",
            ) from None

    def _clean(self, text: str) -> str:
        """Return foreign text for a message: one short line, without the token."""
        return one_line(text.replace(self._token, "…"), _SHOWN)


def _root(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong("--url", f"{url[:_SHOWN]!r}: {error}") from error
    if parts.scheme not in {"http", "https"} or not host or not url.isprintable() or " " in url:
        raise _wrong("--url", f"{url[:_SHOWN]!r} is not such as https://grafana.example.org")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _wrong("--url", "has more than an address and a path; the login is in --token-file")
    return url.rstrip("/")


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except OSError as error:  # an SSLError is one too
        raise _wrong("--ca-file", f"{ca_file} has no certificate: {error}") from error


def _read(what: str, answer: Body) -> bytes:
    try:
        return read_body(answer, most=MOST_BYTES, seconds=_ALL_SECONDS)
    except ResponseTooLarge as error:
        raise PipelineError(
            f"the answer to {what} was {error}",
            cause="what answers is not Grafana",
            next_step="name the address of Grafana's root with --url",
        ) from error


def _wrong(option: str, message: str) -> ConfigError:
    return ConfigError([Problem("command line", 0, 0, f"{option}: {message}")])


MARK: Final = "pvebench-push"
"""Tag of a dashboard that was pushed."""
FOLDER_UID: Final = "pvebench"
UIDS: Final = "pvebench-"
"""How all of ours begin. A copy that somebody saves, tags included, gets another uid."""
_ADDED: Final = ("id", "version")
_MOST_FOUND: Final = 5000
"""As many as Grafana's search ever gives."""


class Api(Protocol):
    """What is needed of Grafana; None: there is no such thing."""

    def get(self, path: str) -> Any:
        """Return what is there."""

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Make or change something."""

    def delete(self, path: str) -> Any:
        """Remove something."""


@dataclass(frozen=True, slots=True)
class Source:
    """A data source of Grafana."""

    uid: str
    name: str


def choose_source(api: Api, wanted: str | None) -> Source:
    """Return the data source that is meant by name or uid; without one, the only candidate.

    Raises:
        ChainBroken: there is none, or several.
    """
    rows = api.get("/api/datasources")
    found = [
        Source(str(row.get("uid")), str(row.get("name")))
        for row in _rows("data sources", rows)
        if row.get("type") == "prometheus"
    ]
    fitting = [one for one in found if wanted in (one.uid, one.name)]
    if wanted is None:
        fitting = [one for one in found if one.uid == DATASOURCE] or found
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(f"{one.name} ({one.uid})"[:100] for one in found[:20]) or "none"
    raise PipelineError(
        f"which data source is meant is not clear; of type prometheus there is {names}",
        cause="several Prometheus, or none that Grafana knows",
        next_step="name one with --datasource; or make it: Grafana, Connections, Data sources",
    )


def push(api: Api, dashboards: list[dict[str, Any]], source: Source, folder: str) -> Iterator[str]:
    """Make folder and dashboards what they are here; yield what was done with each.

    Everything is looked at before anything is changed.

    Raises:
        NotOurs: a dashboard has the uid of one of ours and was not pushed.
        ChainBroken: Grafana does not do it.
    """
    ours = {
        one["uid"]: _marked(mapped(one, name=source.name, uid=source.uid)) for one in dashboards
    }
    there = {uid: found for uid in ours if (found := _dashboard(api, uid)) is not None}
    _refuse_foreign(there)
    yield _make_folder(api, folder)
    for uid, dashboard in ours.items():
        yield f"{_put(api, dashboard, there.get(uid))}  {dashboard['title']}"
    for uid, title in _no_longer(api, ours):
        api.delete(f"/api/dashboards/uid/{quote(uid, safe='')}")
        yield f"removed    {title[:100]!r}, which is no longer shipped"


@dataclass(frozen=True, slots=True)
class _ExistingDashboard:
    """A dashboard of Grafana.

    Attributes:
        provisioned: it comes from a file there.
    """

    json: dict[str, Any]
    folder_uid: str
    provisioned: bool

    @property
    def pushed(self) -> bool:
        """Whether it was pushed, as far as anybody can tell."""
        return MARK in (self.json.get("tags") or []) and not self.provisioned


def _marked(dashboard: dict[str, Any]) -> dict[str, Any]:
    return {**dashboard, "tags": [*dashboard["tags"], MARK]}


def _dashboard(api: Api, uid: str) -> _ExistingDashboard | None:
    answer = api.get(f"/api/dashboards/uid/{quote(uid, safe='')}")
    if answer is None:
        return None
    row = _row("a dashboard", answer)
    meta = _row("a dashboard", row.get("meta"))
    return _ExistingDashboard(
        json=_row("a dashboard", row.get("dashboard")),
        folder_uid=str(meta.get("folderUid") or ""),
        provisioned=bool(meta.get("provisioned")),
    )


def _refuse_foreign(there: dict[str, _ExistingDashboard]) -> None:
    foreign = [uid for uid, found in there.items() if not found.pushed]
    if foreign:
        raise NotOwned(
            f"dashboards in Grafana that were not pushed: {', '.join(foreign)}; "
            "nothing was changed",
            cause="they come from files (make run, compose), or were imported by hand",
            next_step="keep those, or remove them there and push again",
        )


def _make_folder(api: Api, title: str) -> str:
    if (found := api.get(f"/api/folders/{FOLDER_UID}")) is not None:
        there = str(_row("a folder", found).get("title"))[:100]
        return f"folder     {there!r} is there"
    api.post("/api/folders", {"uid": FOLDER_UID, "title": title})
    return f"folder     {title!r} made"


def _put(api: Api, dashboard: dict[str, Any], found: _ExistingDashboard | None) -> str:
    """Make or change one; return what it took. Who changed it since it was looked at wins."""
    sent = dashboard
    if found is not None:
        kept = {key: value for key, value in found.json.items() if key not in _ADDED}
        if kept == dashboard and found.folder_uid == FOLDER_UID:
            return "unchanged"
        sent = {**dashboard, "version": found.json.get("version")}
    body = {"dashboard": sent, "folderUid": FOLDER_UID, "overwrite": False}
    api.post("/api/dashboards/db", {**body, "message": "pushed by pvebench"})
    return "made     " if found is None else "changed  "


def _no_longer(api: Api, ours: dict[str, Any]) -> list[tuple[str, str]]:
    """Return uid and title of what was pushed into our folder and is not shipped any more."""
    query = {"type": "dash-db", "tag": MARK, "folderUIDs": FOLDER_UID, "limit": _MOST_FOUND}
    rows = _rows("a search", api.get(f"/api/search?{urlencode(query)}"))
    uids = [uid for row in rows if (uid := str(row.get("uid"))).startswith(UIDS)]
    # The search is an index: what it says is looked at before it is believed.
    looked = [(uid, _dashboard(api, uid)) for uid in uids if uid not in ours]
    return [
        (uid, str(found.json.get("title")))
        for uid, found in looked
        if found is not None and found.pushed and found.folder_uid == FOLDER_UID
    ]


def _row(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PipelineError(
            f"Grafana's answer is none of {what}",
            cause="another program, or a Grafana of another age",
            next_step="name the address of Grafana's root with --url",
        )
    return value


def _rows(what: str, value: Any) -> list[dict[str, Any]]:
    rows = value if isinstance(value, list) else [value]
    return [_row(what, row) for row in rows]
