"""Push of the shipped dashboards to a Grafana. It marks pushed dashboards, changes no others.

`grafana/builder` builds them.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from pvebench import __version__
from pvebench.errors import ConfigError, NotOwned, PipelineError
from pvebench.http_responses import Body, BoundedHandler, client_tls, read_body
from pvebench.model.units import MIB
from pvebench.sanitize import one_line
from pvebench.shipped import shipped

DATASOURCE: Final = "pvebench-prometheus"
"""Uid of the data source of grafana/provisioning; the shipped dashboards use it."""
_INPUT: Final = "DS_PROMETHEUS"
_TESTED: Final = "12.4.0"
"""Version of Grafana with which the dashboards are tested."""


def shipped_dashboards() -> dict[str, dict[str, Any]]:
    """Return file name -> dashboard."""
    files = sorted(shipped("grafana/dashboards").glob("*.json"))
    return {path.name: json.loads(path.read_text("utf-8")) for path in files}


def replace_source(dashboard: dict[str, Any], *, name: str, uid: str) -> dict[str, Any]:
    """Return a dashboard that uses the data source `uid`, called `name`."""
    result: dict[str, Any] = _replace_uid(dashboard, uid)
    for variable in result.get("templating", {}).get("list", []):
        if variable.get("type") == "datasource":
            variable["current"] = {"text": name, "value": uid}
    return result


def _replace_uid(node: Any, uid: str) -> Any:
    """Return a copy of JSON with `uid` instead of the uid of the shipped data source."""
    if isinstance(node, dict):
        return {key: _replace_uid(value, uid) for key, value in node.items()}
    if isinstance(node, list):
        return [_replace_uid(value, uid) for value in node]
    return uid if node == DATASOURCE else node


def to_import_format(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard in Grafana's export format; its import asks for the data source.

    Grafana replaces `${DS_PROMETHEUS}` by the selected data source.
    """
    placeholder = f"${{{_INPUT}}}"
    source = {
        "name": _INPUT,
        "label": "Prometheus",
        "description": "The Prometheus that scrapes pvebench.",
        "type": "datasource",
        "pluginId": "prometheus",
        "pluginName": "Prometheus",
    }
    return {
        "__inputs": [source],
        "__elements": {},
        "__requires": list(_requires(dashboard)),
        **replace_source(dashboard, name=placeholder, uid=placeholder),
    }


def _requires(dashboard: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _TESTED}
    yield {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}
    for kind in sorted(_panel_types(dashboard)):
        yield {"type": "panel", "id": kind, "name": kind, "version": ""}


def _panel_types(dashboard: dict[str, Any]) -> set[str]:
    """Return the types of the panels, including those in rows."""
    types: set[str] = set()
    for panel in dashboard.get("panels", []):
        types |= {panel["type"]} - {"row"}
        types |= _panel_types(panel)
    return types


# --- Grafana's HTTP API. The token never leaves this module.

MAX_BYTES: Final = 32 * MIB
"""Maximum size of a response; a dashboard has some hundred kB."""
_ALL_SECONDS: Final = 60.0
_STILL_SECONDS: Final = 20.0
_SHOWN: Final = 200


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirects: the token goes only to the given address."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Grafana:
    """Client of one Grafana.

    Args:
        url: root URL.
        ca_file: CA certificate to trust instead of the system's.

    Raises:
        ConfigError: the URL or the token is invalid.
    """

    def __init__(self, url: str, token: str, ca_file: Path | None = None) -> None:
        self.url = _root(url)
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise _invalid("--token-file", "contains no token; write one word of ASCII characters")
        self._token = token
        try:
            context = client_tls(ca_file)
        except OSError as error:  # an SSLError is one too
            raise _invalid("--ca-file", f"{ca_file} has no certificate: {error}") from error
        # Proxies of the environment must not see the token.
        self._opener = urllib.request.build_opener(
            BoundedHandler(_ALL_SECONDS, context), urllib.request.ProxyHandler({}), _NoRedirect()
        )

    def get(self, path: str) -> Any:
        """Return the resource; None: it does not exist (404)."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Create or change a resource."""
        return self._call("POST", path, json.dumps(body).encode())

    def delete(self, path: str) -> Any:
        """Remove a resource; None: it did not exist."""
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
        action = f"{method} {path.partition('?')[0]}"
        try:
            with self._opener.open(request, timeout=_STILL_SECONDS) as response:
                return self._json(action, _read(action, response))
        except urllib.error.HTTPError as error:
            with error:
                return self._handle_rejection(action, error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = self._clean(str(getattr(error, "reason", error)))
            raise PipelineError(
                f"Grafana at {self.url} does not respond: {reason}",
                cause="wrong address, or a certificate of an unknown authority",
                next_step="correct --url, or pass the CA certificate with --ca-file",
            ) from None  # the original may contain the request

    def _handle_rejection(self, action: str, error: urllib.error.HTTPError) -> None:
        if error.code == 404:
            return
        text = _read(action, error).decode("utf-8", "replace")
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            message = text
        causes = {
            401: ("unknown or expired token", "create a token, see docs/existing-grafana.md"),
            403: ("missing permission of the token's service account", "give it the role Admin"),
            412: ("changed by another user at the same time", "push again"),
        }
        cause, next_step = causes.get(error.code, ("", f"check {self.url} and its log"))
        raise PipelineError(
            f"Grafana returned {error.code} for {action}: {self._clean(message)}",
            cause=cause,
            next_step=next_step,
        )

    def _json(self, action: str, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            excerpt = self._clean(text[:_SHOWN].decode("utf-8", "replace"))
            raise PipelineError(
                f"{self.url} is not Grafana, response to {action}: {excerpt}",
                next_step="pass the root URL of Grafana with --url",
            ) from None

    def _clean(self, text: str) -> str:
        """Return external text for a message: one short line, without the token."""
        return one_line(text.replace(self._token, "…"), _SHOWN)


def _root(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _invalid("--url", f"{url[:_SHOWN]!r}: {error}") from error
    if parts.scheme not in {"http", "https"} or not host or not url.isprintable() or " " in url:
        raise _invalid(
            "--url", f"invalid URL {url[:_SHOWN]!r}; write one like https://grafana.example.org"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _invalid(
            "--url", "must contain only address and path; pass the login with --token-file"
        )
    return url.rstrip("/")


def _read(action: str, response: Body) -> bytes:
    try:
        return read_body(response, most=MAX_BYTES, seconds=_ALL_SECONDS)
    except (OSError, http.client.HTTPException) as error:
        raise PipelineError(
            f"{action}: {error}",
            cause="another program than Grafana, or a broken connection",
            next_step="pass the root URL of Grafana with --url, or try again",
        ) from error


def _invalid(option: str, message: str) -> ConfigError:
    return ConfigError.of_options(f"{option}: {message}")


# --- The push.

MARK: Final = "pvebench-push"
"""Tag of pushed dashboards."""
FOLDER_UID: Final = "pvebench"
UIDS: Final = "pvebench-"
"""Prefix of the uids of shipped dashboards. A user's copy has the tags too, but another uid."""
_ADDED: Final = ("id", "version")
_MAX_FOUND: Final = 5000
"""Maximum number of results of a Grafana search."""


@dataclass(frozen=True, slots=True)
class Source:
    """A data source of Grafana."""

    uid: str
    name: str


def choose_source(api: Grafana, key: str | None) -> Source:
    """Return the data source with this name or uid; without one, the only candidate.

    Raises:
        PipelineError: there is none, or several.
    """
    rows = api.get("/api/datasources")
    sources = [
        Source(str(row.get("uid")), str(row.get("name")))
        for row in _rows("data sources", rows)
        if row.get("type") == "prometheus"
    ]
    matching = [source for source in sources if key in (source.uid, source.name)]
    if key is None:
        matching = [source for source in sources if source.uid == DATASOURCE] or sources
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(f"{source.name} ({source.uid})"[:100] for source in sources[:20]) or "none"
    raise PipelineError(
        f"data source not found or ambiguous; of type prometheus: {names}",
        cause="Grafana has no Prometheus, or several",
        next_step="pass one with --datasource, or create it: Grafana, Connections, Data sources",
    )


def push(
    api: Grafana, dashboards: list[dict[str, Any]], source: Source, folder: str
) -> Iterator[str]:
    """Create or update the folder and the dashboards; yield a report line for each.

    All checks precede the first change.

    Raises:
        NotOwned: a dashboard has a shipped uid, but was not pushed.
        PipelineError: Grafana rejects a request.
    """
    pushed = {
        board["uid"]: {
            **replace_source(board, name=source.name, uid=source.uid),
            "tags": [*board["tags"], MARK],
        }
        for board in dashboards
    }
    existing = {uid: board for uid in pushed if (board := _dashboard(api, uid)) is not None}
    _refuse_foreign(existing)
    yield _make_folder(api, folder)
    for uid, dashboard in pushed.items():
        yield f"{_put(api, dashboard, existing.get(uid))}  {dashboard['title']}"
    for uid, title in _obsolete(api, pushed):
        api.delete(f"/api/dashboards/uid/{quote(uid, safe='')}")
        yield f"removed    {title[:100]!r}, which is no longer shipped"


@dataclass(frozen=True, slots=True)
class _ExistingDashboard:
    """A dashboard of Grafana.

    Attributes:
        provisioned: whether it comes from a file of that Grafana.
    """

    json: dict[str, Any]
    folder_uid: str
    provisioned: bool

    @property
    def pushed(self) -> bool:
        """Whether it was pushed, according to its tag."""
        return MARK in (self.json.get("tags") or []) and not self.provisioned


def _dashboard(api: Grafana, uid: str) -> _ExistingDashboard | None:
    response = api.get(f"/api/dashboards/uid/{quote(uid, safe='')}")
    if response is None:
        return None
    row = _row("a dashboard", response)
    meta = _row("a dashboard", row.get("meta"))
    return _ExistingDashboard(
        json=_row("a dashboard", row.get("dashboard")),
        folder_uid=str(meta.get("folderUid") or ""),
        provisioned=bool(meta.get("provisioned")),
    )


def _refuse_foreign(existing: dict[str, _ExistingDashboard]) -> None:
    foreign = [uid for uid, dashboard in existing.items() if not dashboard.pushed]
    if foreign:
        raise NotOwned(
            f"Grafana has dashboards that were not pushed: {', '.join(foreign)}; "
            "nothing was changed",
            cause="they were provisioned from files (make run, compose) or imported manually",
            next_step="keep them, or remove them in Grafana and push again",
        )


def _make_folder(api: Grafana, title: str) -> str:
    if (folder := api.get(f"/api/folders/{FOLDER_UID}")) is not None:
        existing = str(_row("a folder", folder).get("title"))[:100]
        return f"folder     {existing!r} exists"
    api.post("/api/folders", {"uid": FOLDER_UID, "title": title})
    return f"folder     {title!r} created"


def _put(api: Grafana, dashboard: dict[str, Any], existing: _ExistingDashboard | None) -> str:
    """Create or change a dashboard; return the action. A concurrent change by others wins."""
    sent = dashboard
    if existing is not None:
        present = {key: value for key, value in existing.json.items() if key not in _ADDED}
        if present == dashboard and existing.folder_uid == FOLDER_UID:
            return "unchanged"
        sent = {**dashboard, "version": existing.json.get("version")}
    body = {"dashboard": sent, "folderUid": FOLDER_UID, "overwrite": False}
    api.post("/api/dashboards/db", {**body, "message": "pushed by pvebench"})
    return "created  " if existing is None else "updated  "


def _obsolete(api: Grafana, pushed: dict[str, Any]) -> list[tuple[str, str]]:
    """Return uid and title of pushed dashboards in the folder that are no longer shipped."""
    query = {"type": "dash-db", "tag": MARK, "folderUIDs": FOLDER_UID, "limit": _MAX_FOUND}
    rows = _rows("a search", api.get(f"/api/search?{urlencode(query)}"))
    uids = [uid for row in rows if (uid := str(row.get("uid"))).startswith(UIDS)]
    # The search index may be outdated, so each result is checked.
    candidates = [(uid, _dashboard(api, uid)) for uid in uids if uid not in pushed]
    return [
        (uid, str(dashboard.json.get("title")))
        for uid, dashboard in candidates
        if dashboard is not None and dashboard.pushed and dashboard.folder_uid == FOLDER_UID
    ]


def _row(content: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PipelineError(
            f"unexpected Grafana response instead of {content}",
            cause="another program, or an unsupported Grafana version",
            next_step="pass the root URL of Grafana with --url",
        )
    return value


def _rows(content: str, value: Any) -> list[dict[str, Any]]:
    rows = value if isinstance(value, list) else [value]
    return [_row(content, row) for row in rows]
