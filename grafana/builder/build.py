"""Write every dashboard as classic JSON; `--check` compares with the existing files instead.

Usage: python grafana/builder/build.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from builder.boards import case, compare, diskmark, matrix, operations, overview, upgrades, wall
from builder.parts import table_query
from builder.promql import HELD, RECENT, held, label, silent

OUTPUT: Final = Path(__file__).resolve().parents[1] / "dashboards"
SCHEMA_VERSION: Final = 37
"""Schema of Grafana 9.4; every later version migrates it when it loads the file."""
GRAY: Final = "#8E8E8E"
OF_THE_PAST: Final = {"timeseries", "state-timeline", "heatmap"}
"""Types of panels that show the times of their values."""
DASHBOARDS: Final = {
    "overview": overview.build,
    "wall": wall.build,
    "configuration-matrix": matrix.build,
    "before-after-upgrade": upgrades.build,
    "case-detail": case.build,
    "compare": compare.build,
    "diskmark": diskmark.build,
    "operations": operations.build,
}


def render(built: dashboard.Dashboard) -> str:
    """Return the text of a dashboard's file; the same source gives the same text."""
    data = _plain(built)
    on_a_wall = data["uid"] == wall.UID
    for panel in data["panels"] if on_a_wall else data["panels"][:1]:
        if on_a_wall or panel["title"] == "Status":
            _untitle(panel)
    data["schemaVersion"] = SCHEMA_VERSION
    data["editable"] = False
    # The SDK omits empty lists, which older versions of Grafana expect.
    data.setdefault("templating", {}).setdefault("list", [])
    data.setdefault("annotations", {}).setdefault("list", [])
    for control in (*data.get("links", ()), *data["annotations"]["list"]):
        # With the SDK's only value, Grafana 12 hides them behind a button "+ 3".
        control.pop("placement", None)
    _hold_values(data)
    for panel in all_panels(data):
        _gray_held(panel)
    for number, panel in enumerate(all_panels(data), start=1):
        panel["id"] = number
        _make_classic(panel)
    text = json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return text.replace("${datasource}", wall.SOURCE) if on_a_wall else text


def _untitle(panel: dict[str, Any]) -> None:
    """Move the title to the description: it is too small for a wall, and takes space."""
    panel["description"] = f"{panel['title']}. {panel['description']}"
    panel["title"] = ""


def _plain(built: Builder[Any]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    return data


def _hold_values(data: dict[str, Any]) -> None:
    """Read values and choices of the present at `$held`, so that they outlast the exporter."""
    for panel in all_panels(data):
        for target in panel.get("targets", ()):
            ranged = target.get("range")
            text = target["expr"]
            target["expr"] = text.replace(" @ end()", f" @ {HELD}") if ranged else held(text)
    for variable in data["templating"]["list"]:
        query = variable.get("query")
        if isinstance(query, dict) and variable["name"] != "held":
            text = query["query"]
            if text.startswith("query_result("):
                query["query"] = variable["definition"] = held(text)


def _gray_held(panel: dict[str, Any]) -> None:
    """Gray the held values of a panel once the exporter does not answer."""
    expressions = str([one["expr"] for one in panel.get("targets", ()) if one.get("instant")])
    if panel["type"] in OF_THE_PAST or HELD not in expressions or silent() in expressions:
        return
    color = label("color", GRAY, f"vector(1) unless on () {RECENT}")
    source = {"datasource": panel["targets"][0]["datasource"]}
    panel["targets"].append(_plain(table_query(color, ref="held")) | source)
    options = {
        "applyTo": {"id": "byRegexp", "options": "/.*/"},  # by default, it omits texts
        "configRefId": "held",
        "mappings": [{"fieldName": "color", "handlerKey": "color", "reducerId": "lastNotNull"}],
    }
    panel.setdefault("transformations", []).insert(0, {"id": "configFromData", "options": options})


def all_panels(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, including those in collapsed rows."""
    return [each for panel in data["panels"] for each in (panel, *panel.get("panels", []))]


def _make_classic(panel: dict[str, Any]) -> None:
    """Write cell options as schema 37 does: `displayMode`, which later versions migrate."""
    if panel["type"] == "state-timeline":
        # All rows at once: a pager takes the height of two and hides others. The SDK rejects 0.
        panel["options"]["perPage"] = 0
    if panel["type"] != "table":
        return
    custom = panel["fieldConfig"]["defaults"].setdefault("custom", {})
    custom.setdefault("align", "auto")
    options = custom.pop("cellOptions", None)
    if options is not None:
        custom["displayMode"] = options["type"]
    custom.setdefault("displayMode", "auto")


def main() -> int:
    """Write or compare the files; return the exit code."""
    differing = []
    for name, make in DASHBOARDS.items():
        path, text = OUTPUT / f"{name}.json", render(make())
        if "--check" not in sys.argv:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            differing.append(path.name)
    differing += sorted({path.stem for path in OUTPUT.glob("*.json")} - set(DASHBOARDS))
    if differing:
        print(f"dashboards differ from their source: {', '.join(differing)}; run make generate")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
