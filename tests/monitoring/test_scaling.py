"""A store behind remote_write, as docs/scaling.md says: the same answers to the dashboards."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pvebench.web.endpoints import Pages
from pvebench.web.server import WebServer, listen, make_app
from testing.boards import chosen, dashboards, queries, substitute
from testing.monitored_demo import filled_store, page_of, results_of, statuses
from testing.packs import ROOT
from testing.prometheus import Prometheus, free_port, prometheus, wait_until_ready

LOOKBACK = "--query.lookback-delta=5m"


@contextmanager
def victoria_metrics(directory: Path) -> Iterator[str]:
    """Run Debian's VictoriaMetrics; gives the address that docs/scaling.md writes to."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        "victoria-metrics",
        f"-storageDataPath={directory}/vm",
        f"-httpListenAddr={address}",
        "-retentionPeriod=2y",
        "-search.latencyOffset=0s",
        "-loggerLevel=ERROR",
    ]
    with subprocess.Popen(command) as process:
        try:
            wait_until_ready(f"http://{address}/health")
            yield address
        finally:
            process.terminate()


def written_to(address: str) -> str:
    text = (ROOT / "docs" / "scaling.md").read_text("utf-8")
    found = re.search(r"- url: (http://victoriametrics:8428\S+)", text)
    assert found is not None
    return found[1].replace("victoriametrics:8428", address)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Prometheus]]:
    directory = tmp_path_factory.mktemp("scaling")
    store = filled_store(directory, days=26)
    exporter = f"127.0.0.1:{free_port()}"
    results = results_of(store)
    app = make_app(page_of(results), Pages(results, statuses))
    with (
        victoria_metrics(directory) as address,
        WebServer(app, listen(exporter)),
        prometheus(
            directory, exporter, LOOKBACK, seconds=5, remote_write=written_to(address)
        ) as near,
    ):
        far = Prometheus(f"http://{address}")
        near.wait_for("pvebench_results")
        near.wait_for_rules()
        for server in (near, far):
            server.wait_for("node_storage:pvebench_change_state:count_regressed", seconds=300)
            server.wait_for("count_over_time(pvebench_results[2m]) >= 4", seconds=300)
        yield near, far
    store.close()


def test_every_series_arrives(both: tuple[Prometheus, Prometheus]) -> None:
    near, far = (server.query('count by (__name__) ({__name__=~"pvebench_.*"})') for server in both)
    assert {one["metric"]["__name__"] for one in near} == {one["metric"]["__name__"] for one in far}


def test_every_panel_gets_the_series_from_it_that_prometheus_gives(
    both: tuple[Prometheus, Prometheus],
) -> None:
    near, _ = both
    # What is a few seconds old has arrived; a whole second, which both take as it is.
    moment = float(int(time.time()) - 10)
    values = {
        board["uid"]: chosen(near, board, every=True) | {"held": f"{moment:.0f}"}
        for board in dashboards()
    }
    different, filled = [], 0
    for uid, panel, ref, expression in queries():
        asked = substitute(expression, values[uid])
        # Among equals each server picks its own: their values are the same then.
        told = valued if re.search(r"\b(top|bottom)k\b", asked) else named
        one, other = (told(server.query(asked, at=moment)) for server in both)
        filled += bool(one)
        if one != other:
            different.append((uid, panel, ref, len(one), len(other)))
    assert different == []
    assert filled > 100


def size(value: float) -> float:
    """Return the size of a change; the table of Regressions adds 1,000,000 to a factor of 100."""
    return abs(value - 1_000_100) if abs(value - 1_000_100) < 1000 else abs(value)


def valued(found: list[dict[str, Any]]) -> list[str]:
    """Return the values of series, in order; of changes only their size, which decides a tie."""
    return sorted(f"{size(float(one['value'][1])):.9g}" for one in found)


def named(found: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the labels of series, without their name: VictoriaMetrics keeps it more often."""
    labels = [dict(one["metric"]) for one in found]
    for one in labels:
        one.pop("__name__", None)
    return sorted(labels, key=lambda one: sorted(one.items()))
