"""Keeps our dashboards in a Grafana: what was pushed is marked, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

from pvebench.errors import ChainBroken, NotOurs
from pvebench.monitoring.dashboards import DATASOURCE, mapped

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
    raise ChainBroken(
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
class _Found:
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


def _dashboard(api: Api, uid: str) -> _Found | None:
    answer = api.get(f"/api/dashboards/uid/{quote(uid, safe='')}")
    if answer is None:
        return None
    row = _row("a dashboard", answer)
    meta = _row("a dashboard", row.get("meta"))
    return _Found(
        json=_row("a dashboard", row.get("dashboard")),
        folder_uid=str(meta.get("folderUid") or ""),
        provisioned=bool(meta.get("provisioned")),
    )


def _refuse_foreign(there: dict[str, _Found]) -> None:
    foreign = [uid for uid, found in there.items() if not found.pushed]
    if foreign:
        raise NotOurs(
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


def _put(api: Api, dashboard: dict[str, Any], found: _Found | None) -> str:
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
        raise ChainBroken(
            f"Grafana's answer is none of {what}",
            cause="another program, or a Grafana of another age",
            next_step="name the address of Grafana's root with --url",
        )
    return value


def _rows(what: str, value: Any) -> list[dict[str, Any]]:
    rows = value if isinstance(value, list) else [value]
    return [_row(what, row) for row in rows]
