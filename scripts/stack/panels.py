"""Ask every query of every dashboard, with each variable's default and with All."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

BUILT_IN: Final = {
    "__interval": "1h",
    "__rate_interval": "4m",
    "__range": "30d",
    "__interval_ms": "172800000",
}
PATIENCE_SECONDS: Final = 150.0
"""Judging a simulated year takes half a minute of CPU; until then verdict panels are empty."""


class Prometheus:
    """Its HTTP API, as far as it is needed here."""

    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query now.

        Raises:
            OSError: it does not answer, or calls the query wrong.
        """
        data = urllib.parse.urlencode({"query": expression}).encode()
        address = f"{self._address}/api/v1/query"
        with urllib.request.urlopen(address, data, timeout=60) as answer:  # noqa: S310 # our own address
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def print_empty(address: str, repository: Path) -> int:
    """Print the panels that show nothing; return 1 when a query is refused, else 0."""
    server = Prometheus(address)
    # The last to come: what was judged just now; what was said in the past is there at once.
    _wait(server, "timestamp(pvebench_verdict_timestamp_seconds) > time() - 60")
    _wait(server, "ALERTS")
    asked, refused, empty = 0, 0, []
    for path in sorted((repository / "grafana" / "dashboards").glob("*.json")):
        board = json.loads(path.read_text("utf-8"))
        for every in (False, True):
            values = choose(server, board, every=every)
            for panel, expressions in panels(board).items():
                try:
                    found = [server.query(substitute(one, values)) for one in expressions]
                except OSError as error:
                    refused += 1
                    print(f"{board['title']}: {panel}: {error}")
                    continue
                asked += len(found)
                if not any(found):
                    empty.append(f"{board['title']}: {panel} ({'All' if every else 'defaults'})")
    print(*empty, sep="\n")
    print(f"{asked} queries asked, {refused} refused; {len(empty)} times a panel was empty")
    return 1 if refused else 0


def _wait(server: Prometheus, expression: str) -> None:
    """Wait until something is there, or until it is clear that it does not come."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not server.query(expression) and time.monotonic() < deadline:
        time.sleep(1)


def panels(board: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return panel -> its queries, those in collapsed rows included."""
    found: dict[str, list[str]] = {}
    for outer in board["panels"]:
        for panel in (outer, *outer.get("panels", [])):
            if panel.get("targets"):
                found[panel["title"]] = [target["expr"] for target in panel["targets"]]
    return found


def choose(server: Prometheus, board: Mapping[str, Any], *, every: bool) -> dict[str, str]:
    """Return each variable's value: All where there is one and `every` is set, else the default."""
    values = dict(BUILT_IN)
    for variable in board["templating"]["list"]:
        if variable["type"] == "custom":
            values[variable["name"]] = variable["current"]["value"]
        elif variable["type"] == "query":
            wanted = every and variable.get("includeAll")
            values[variable["name"]] = (
                variable["allValue"] if wanted else _first(server, variable, values)
            )
    return values


def _first(server: Prometheus, variable: Mapping[str, Any], values: Mapping[str, str]) -> str:
    """Return what Grafana chooses by itself; `none` when there is nothing to choose from."""
    text = substitute(variable["query"]["query"], values)
    if results := re.fullmatch(r"query_result\((.+)\)", text):
        found = server.query(results[1])
        return str(found[0]["value"][1]) if found else "none"
    labels = re.fullmatch(r"label_values\((.+), (\w+)\)", text)
    if labels is None:
        return "none"
    known = {entry["metric"].get(labels[2], "") for entry in server.query(labels[1])} - {""}
    descending = variable.get("sort") == 2
    return (max if descending else min)(known, default="none")


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Put values where variables are."""
    for name, value in values.items():
        text = re.sub(rf"\$\{{?{name}\b\}}?", value.replace("\\", "\\\\"), text)
    return text
