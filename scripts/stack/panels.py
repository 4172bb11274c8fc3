"""Ask every query of every dashboard, with each variable's default and with All."""

from __future__ import annotations

import sys
from typing import Final

from services import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests"))  # the tests read boards as Grafana does

from support.boards import chosen, dashboards, panels, substitute
from support.prometheus import Prometheus

PATIENCE_SECONDS: Final = 150.0
"""Judging a simulated year takes half a minute of CPU; until then verdict panels are empty."""


def print_empty(address: str) -> int:
    """Print the panels that show nothing; return 1 when a query is refused, else 0."""
    server = Prometheus(address)
    # The last to come: what was judged just now; what was said in the past is there at once.
    for last in ("timestamp(pvebench_verdict_timestamp_seconds) > time() - 60", "ALERTS"):
        server.wait_for(last, seconds=PATIENCE_SECONDS)
    asked, refused, empty = 0, 0, []
    for board in dashboards():
        for every in (False, True):
            values = chosen(server, board, every=every)
            for panel in [one for one in panels(board) if one.get("targets")]:
                where = f"{board['title']}: {panel['title']}"
                asked += len(panel["targets"])
                try:
                    found = [
                        server.query(substitute(target["expr"], values))
                        for target in panel["targets"]
                    ]
                except AssertionError as error:
                    refused += 1
                    print(f"{where}: {error}")
                    continue
                if not any(found):
                    empty.append(f"{where} ({'All' if every else 'defaults'})")
    print(*empty, sep="\n")
    print(f"{asked} queries asked, {refused} refused; {len(empty)} times a panel was empty")
    return 1 if refused else 0
