"""The shipped dashboards, for a Grafana with its own data sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pvebench.shipped import shipped

DATASOURCE: Final = "pvebench-prometheus"
"""Uid of the data source of grafana/provisioning; the shipped dashboards use it."""
_INPUT: Final = "DS_PROMETHEUS"
_CLASSIC: Final = "10.0.0"
"""Oldest supported Grafana: classic dashboards of schema 37."""


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
    yield {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _CLASSIC}
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
