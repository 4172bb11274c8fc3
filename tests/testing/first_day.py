"""Stores of the first day: empty, after one run, an hour and a day of the demo's story."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path

from pvebench.model.run import Run
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.endpoints import Pages
from pvebench.web.server import WebServer, listen, make_app
from pvebench_lab.cli.demo import SHOWN, simulated_runs
from pvebench_lab.cli.past_metrics import Period, first_moment, write_past
from pvebench_lab.simulated.demo_year import history
from testing.demo_year import assignments, last_days, results_of
from testing.monitored_demo import page_of, statuses
from testing.prometheus import Prometheus, backfill, free_port, prometheus
from testing.stores import TemporaryStore

YOUNG = {
    "empty": (1.0, 0),
    "first-run": (1.0, 1),
    "first-hour": (1 / 24, None),
    "first-day": (1.0, None),
}
"""Name -> (days of the story, how many of its runs; None: all of them)."""
PAST_STEPS = 240
"""Samples of each series in a past that is filled in."""


def fill(store: Store, days: float, count: int | None) -> None:
    """Put so many runs of the last days of the story into a store; None: all of them."""
    runs = one_cycle()
    for cycle, node in {(run.cycle, run.case.scenario.node) for run in runs}:
        store.begin_cycle(cycle, node=node, pack="demo", tier="core", planned=1)
    told = history(list(runs), last_days(days), end=datetime.now(UTC), seed=1)
    store.add_history(islice(told, count))


@cache
def one_cycle() -> tuple[Run, ...]:
    """A run of each case of the demo."""
    return tuple(
        replace(run, cycle=f"young-{run.case.scenario.node}")
        for assignment in assignments()
        for run in simulated_runs(assignment.matrix.cases[0].scenario.node, assignment, seed=1)
    )


@contextmanager
def young(
    directory: Path,
    name: str,
    *,
    past: bool = False,
    before_stop: Callable[[Prometheus], None] | None = None,
) -> Iterator[Prometheus]:
    """Give a Prometheus that scrapes such a store.

    Args:
        past: it has scraped it since the first run; else it begins now.
        before_stop: called while the exporter answers; then it stops, and Prometheus has noticed.
    """
    store = TemporaryStore(directory / "pvebench.db", simulated=True)
    fill(store, *YOUNG[name])
    results = results_of(store)
    page = page_of(results, judged=VerdictService(results, ()).judge())
    exporter = f"127.0.0.1:{free_port()}"
    if past and first_moment(results):
        _fill_past(directory, results, exporter)
    app = make_app(page, Pages(results, statuses))
    with prometheus(directory, exporter, seconds=1) as server:
        with WebServer(app, listen(exporter)):
            server.wait_for("pvebench_scheduler_state")
            server.wait_for("count_over_time(pvebench_results[1m]) >= 2")
            server.wait_for_rules()
            if before_stop is None:
                yield server
            else:
                before_stop(server)
        if before_stop is not None:
            server.wait_for('up{job="pvebench"} == 0')
            yield server
    store.close()


def _fill_past(directory: Path, results: LiveResults, exporter: str) -> None:
    start, end = first_moment(results), datetime.now(UTC).timestamp()
    labels = {"job": "pvebench", "instance": exporter}
    # Above Prometheus' look-back of five minutes lines would be dashed.
    step = min(240.0, max(15.0, (end - start) / PAST_STEPS))
    path = directory / "past.om"
    with path.open("w", encoding="utf-8") as file:
        write_past(results, SHOWN, Period(start=start, end=end, step=step, labels=labels), file)
    backfill(path, directory / "data")
