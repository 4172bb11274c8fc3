"""The last weeks of the simulated year behind a real exporter page, in a real Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pvebench.metrics.exposition import Page
from pvebench.metrics.result_collectors import snapshot_of
from pvebench.model.status import CycleStatus, State, WorkerStatus
from pvebench.service.housekeeping import ConfigState
from pvebench.service.publisher import (
    collect_build,
    collect_config,
    collect_database,
    collect_scheduler,
)
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.web.endpoints import Pages
from pvebench.web.server import WebServer, listen, make_app
from pvebench_lab.cli.demo import SHOWN
from pvebench_lab.cli.past_metrics import Period, first_moment, write_past
from testing.demo_year import assignments, filled_store, results_of
from testing.prometheus import Prometheus, backfill, free_port, prometheus
from testing.verdicts import known_verdicts

STEP = 8 * 3600.0
LOOKBACK = "--query.lookback-delta=490m"


def statuses() -> list[WorkerStatus]:
    """Return one node that measures and one that waits."""
    now = datetime.now(UTC)
    case = assignments()[0].matrix.cases[0]
    due = next(one for one in assignments() if one.matrix.cases[0].scenario.node == "pve2")
    cycle = CycleStatus(
        uid="1",
        number=1,
        pack="demo",
        tier="core",
        planned=100,
        done=40,
        failed=1,
        started=now - timedelta(hours=1),
        expected_end=now + timedelta(hours=2),
    )
    return [
        WorkerStatus(
            node="pve1", state=State.RUNNING, since=now, progressed=now, case=case, cycle=cycle
        ),
        WorkerStatus(
            node="pve2",
            state=State.IDLE,
            since=now,
            progressed=now,
            next_due=now + timedelta(hours=1),
            upcoming=due.matrix.cases[1:2],
        ),
    ]


def page_of(results: LiveResults, *, judged: Verdicts | None = None) -> Page:
    """Return the page of some results.

    Args:
        judged: what was said of them; None: verdicts that the tests know.
    """
    loaded = ConfigState(digest="d", packs=("demo",), loaded=datetime.now(UTC), successful=True)
    page = Page(
        lambda: snapshot_of(
            results.now, now=datetime.now(UTC), max_age_seconds=SHOWN.max_age, wall=SHOWN.wall
        ),
        live={
            "build": collect_build,
            "config": lambda families: collect_config(loaded, families),
            "scheduler": lambda families: collect_scheduler(statuses(), families),
            "database": lambda families: collect_database(results.store.path, families),
        },
    )
    page.refresh()
    page.judged(known_verdicts(results.store) if judged is None else judged)
    return page


@contextmanager
def monitored(directory: Path, *, days: float) -> Iterator[Prometheus]:
    """Give a Prometheus that has the past from a backfill and the present from a scrape."""
    store = filled_store(directory, days=days)
    results = results_of(store)
    exporter = f"127.0.0.1:{free_port()}"
    past = directory / "past.om"
    window = Period(
        start=first_moment(results),
        end=datetime.now(UTC).timestamp(),
        step=STEP,
        labels={"job": "pvebench", "instance": exporter},
    )
    with past.open("w", encoding="utf-8") as file:
        write_past(results, SHOWN, window, file)
    backfill(past, directory / "data")
    app = make_app(page_of(results), Pages(results, statuses))
    # A busy machine needs longer than a second for a scrape; one that fails ends all series.
    started = prometheus(directory, exporter, LOOKBACK, seconds=5)
    with WebServer(app, listen(exporter)), started as server:
        server.wait_for("pvebench_iops")
        # Counters need two scrapes before they have increased, even by nothing.
        server.wait_for("count_over_time(pvebench_results[1m]) >= 2")
        server.wait_for_rules()
        server.wait_for("node_storage:pvebench_change_state:count_regressed")
        yield server
    store.close()
