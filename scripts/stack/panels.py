"""Run every query of every dashboard, with the default of each variable and with All."""

from __future__ import annotations

import sys
from typing import Final

from services import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests"))  # the tests parse dashboards like Grafana

from testing.boards import chosen, dashboards, panels, substitute
from testing.prometheus import Prometheus

PATIENCE_SECONDS: Final = 150.0
"""Time limit of the analysis: it takes half a minute of CPU; verdict panels are empty before."""


def print_empty(address: str) -> int:
    """Print the empty panels; return 1 if a query fails, otherwise 0."""
    server = Prometheus(address)
    # The current verdicts are the last samples to arrive; past ones exist from the start.
    for last in ("timestamp(pvebench_verdict_timestamp_seconds) > time() - 60", "ALERTS"):
        server.wait_for(last, seconds=PATIENCE_SECONDS)
    queries, failed, empty = 0, 0, []
    for board in dashboards():
        for every in (False, True):
            values = chosen(server, board, every=every)
            for panel in [panel for panel in panels(board) if panel.get("targets")]:
                where = f"{board['title']}: {panel['title']}"
                queries += len(panel["targets"])
                try:
                    results = [
                        server.query(substitute(target["expr"], values))
                        for target in panel["targets"]
                    ]
                except AssertionError as error:
                    failed += 1
                    print(f"{where}: {error}")
                    continue
                if not any(results):
                    empty.append(f"{where} ({'All' if every else 'defaults'})")
    print(*empty, sep="\n")
    print(f"{queries} queries, {failed} failed; {len(empty)} empty panels")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(print_empty(sys.argv[1]))
