"""The dashboards that come with pvebench, for a Grafana with data sources of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pvebench.shipped import shipped

DATASOURCE: Final = "pvebench-prometheus"
"""Uid of the data source that grafana/provisioning makes; a wall's dashboards name it."""
_INPUT: Final = "DS_PROMETHEUS"
_CLASSIC: Final = "10.0.0"
"""The oldest Grafana that reads them: they are classic dashboards, of schema 37."""


def shipped_dashboards() -> dict[str, dict[str, Any]]:
    """Return file name -> dashboard."""
    files = sorted(shipped("grafana/dashboards").glob("*.json"))
    return {path.name: json.loads(path.read_text("utf-8")) for path in files}


def mapped(dashboard: dict[str, Any], *, name: str, uid: str) -> dict[str, Any]:
    """Return a dashboard that asks the data source `uid`, called `name`."""
    found: dict[str, Any] = _with_source(dashboard, uid)
    for variable in found.get("templating", {}).get("list", []):
        if variable.get("type") == "datasource":
            variable["current"] = {"text": name, "value": uid}
    return found


def _with_source(node: Any, uid: str) -> Any:
    """Return a copy of JSON with `uid` in place of the uid of our own data source."""
    if isinstance(node, dict):
        return {key: _with_source(value, uid) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_source(value, uid) for value in node]
    return uid if node == DATASOURCE else node


def importable(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard in the form that Grafana exports to share: importing asks for the source.

    Grafana puts what is chosen wherever `${DS_PROMETHEUS}` stands.
    """
    placeholder = f"${{{_INPUT}}}"
    asked = {
        "name": _INPUT,
        "label": "Prometheus",
        "description": "The Prometheus that scrapes pvebench.",
        "type": "datasource",
        "pluginId": "prometheus",
        "pluginName": "Prometheus",
    }
    return {
        "__inputs": [asked],
        "__elements": {},
        "__requires": list(_requires(dashboard)),
        **mapped(dashboard, name=placeholder, uid=placeholder),
    }


def _requires(dashboard: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _CLASSIC}
    yield {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}
    for kind in sorted(_panel_types(dashboard)):
        yield {"type": "panel", "id": kind, "name": kind, "version": ""}


def _panel_types(dashboard: dict[str, Any]) -> set[str]:
    """Return the kinds of the panels, those inside of rows included."""
    found: set[str] = set()
    for panel in dashboard.get("panels", []):
        found |= {panel["type"]} - {"row"}
        found |= _panel_types(panel)
    return found
