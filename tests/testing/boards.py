"""What Grafana does with a dashboard file, as far as queries go: panels, variables, values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testing.packs import ROOT
from testing.prometheus import Prometheus

FILES = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
BUILT_IN = {
    "__interval": "1h",
    "__rate_interval": "4m",
    "__range": "30d",
    # Long enough for one run of each case to have ended in it.
    "__interval_ms": str(2 * 86_400_000),
}
SCREEN_PIXELS, COLUMNS = 1920, 24
SCRAPE_SECONDS = 15
"""What the data source is told in grafana/provisioning."""
MINUTE, HOUR, DAY = 60, 3600, 86_400
STEPS = (
    (17.5, 15),
    (25, 20),
    (45, 30),
    (90, MINUTE),
    (210, 2 * MINUTE),
    (450, 5 * MINUTE),
    (750, 10 * MINUTE),
    (1050, 15 * MINUTE),
    (1500, 20 * MINUTE),
    (2700, 30 * MINUTE),
    (5400, HOUR),
    (9000, 2 * HOUR),
    (16_200, 3 * HOUR),
    (32_400, 6 * HOUR),
    (DAY, 12 * HOUR),
    (7 * DAY, DAY),
)
"""A point for so many seconds at most -> the step that Grafana asks for.

Witness: `roundInterval` of grafana/grafana, pkg/tsdb/intervalv2/intervalv2.go at 05b4ce4.
"""


def days_of(panel: Mapping[str, Any], range_: str) -> float:
    """Return how many days a panel shows where the board shows `range_`, such as `7d`."""
    text = panel.get("timeFrom") or range_
    found = re.fullmatch(r"(\d+)([hd])", text)
    assert found is not None, text
    return int(found[1]) / (24 if found[2] == "h" else 1)


def step_of(panel: Mapping[str, Any], days: float) -> int:
    """Return the step in which Grafana asks for so many days on a wide screen; seconds."""
    pixels = panel["gridPos"]["w"] / COLUMNS * SCREEN_PIXELS
    needed = days * DAY / (panel.get("maxDataPoints") or pixels)
    return next(step for most, step in STEPS if needed <= most)


def over_time(panel: Mapping[str, Any], days: float) -> dict[str, str]:
    """Return the variables that Grafana makes of a panel's time range.

    Witness: `interpolateVariables` of its pkg/promlib/models/query.go at 00aaabd.
    """
    step = step_of(panel, days)
    return {
        "__interval": f"{step}s",
        "__interval_ms": f"{step * 1000}",
        "__range": f"{days * DAY:.0f}s",
        "__rate_interval": f"{max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)}s",
    }


def dashboards(files: Sequence[Path] = FILES) -> list[dict[str, Any]]:
    """Return the files; the panels of a wall have their titles in their descriptions."""
    boards: list[dict[str, Any]] = [json.loads(path.read_text("utf-8")) for path in files]
    for board in boards:
        for panel in board["panels"]:
            panel["title"] = panel["title"] or panel["description"].partition(".")[0]
    return boards


GRAYS = "held"
"""Query of a panel that answers once the exporter is silent, with the color of held values."""
STANDS_IN = "Z"
"""Query of a panel that answers where its others do not, with what is to be read then."""


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all panels, those in collapsed rows included."""
    found: list[dict[str, Any]] = []
    for panel in dashboard["panels"]:
        found += [panel, *panel.get("panels", [])]
    return found


def queries() -> list[tuple[str, str, str, str]]:
    """Return (uid, panel, ref, expression) of every query."""
    return [
        (dashboard["uid"], panel["title"], target["refId"], target["expr"])
        for dashboard in dashboards()
        for panel in panels(dashboard)
        for target in panel.get("targets", [])
    ]


def variables(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard["templating"]["list"]
    return found


def chosen(server: Prometheus, dashboard: Mapping[str, Any], *, every: bool) -> dict[str, str]:
    """Return each variable's value: All where it has that and `every` is set, else the default."""
    values = dict(BUILT_IN)
    for variable in variables(dashboard):
        name = variable["name"]
        if variable["type"] == "custom":
            values[name] = variable["current"]["value"]
        elif variable["type"] == "query":
            preset = variable.get("current", {}).get("value") == "$__all"
            if variable.get("includeAll") and (every or preset):
                some = variable["allValue"] or _listed(server, variable, values)
                # Of no text for all, Grafana makes a pattern of each value.
                values[name] = some if isinstance(some, str) else f"({'|'.join(sorted(some))})"
            else:
                # With nothing to choose from, only All is in the list.
                values[name] = first_choice(server, variable, values) or (
                    variable["allValue"] if variable.get("includeAll") else ""
                )
    return values


def first_choice(server: Prometheus, variable: Mapping[str, Any], values: Mapping[str, str]) -> str:
    """Return what Grafana chooses when nobody has: the first of the sorted values."""
    text = substitute(variable["query"]["query"], values)
    if match := re.fullmatch(r"query_result\((.+)\)", text):
        return _from_results(server, match[1], variable)
    found = _listed(server, variable, values)
    if not found:
        return ""  # as Grafana does where there is nothing to choose from
    descending = variable.get("sort") == 2
    return str(max(found) if descending else min(found))


def _listed(server: Prometheus, variable: Mapping[str, Any], values: Mapping[str, str]) -> set[str]:
    """Return the values of a label that a variable offers."""
    text = substitute(variable["query"]["query"], values)
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", text)
    assert match, text
    # Grafana lists the labels of the time range, also of an exporter that has stopped.
    known = server.query(match[1]) or server.query(f"last_over_time({match[1]}[1h])")
    return {entry["metric"].get(match[2], "") for entry in known} - {""}


def _from_results(server: Prometheus, expression: str, variable: Mapping[str, Any]) -> str:
    """Return the value of what Grafana lists first: sorted by text, or as Prometheus answers."""
    pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
    found: list[tuple[str, str]] = []
    for entry in server.query(expression):
        labels = dict(entry["metric"])
        name = labels.pop("__name__", "")
        inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
        at, value = entry["value"]
        match = pattern.search(f"{name}{{{inside}}} {value} {at * 1000:.0f}")
        assert match, (variable["regex"], entry)
        found.append((match["text"], match["value"]))
    if variable.get("sort"):
        found.sort(reverse=variable["sort"] == 2)
    # Of nothing Grafana makes an empty value.
    return found[0][1] if found else ""


def substitute(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = re.sub(rf"\$\{{?{name}\b\}}?", value.replace("\\", "\\\\"), text)
    # A number is a group of a pattern, which Grafana leaves alone.
    assert not re.search(r"\$(?!\d)", text), text
    return text
