"""Cost of a scrape of 50,000 series, compared with prometheus_client rendering the same families.

One HTTP server serves both, with compressed requests like those of Prometheus. Every scrape of
pvebench follows a new result, so that its whole text is joined and compressed again. Prints p99 of
each, the CPU time of each without the server, and that of one new result with its scrape. Targets:
a 20th of the CPU time; one new result below 50 ms.
"""

from __future__ import annotations

import dataclasses
import gzip
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import httpx2
from prometheus_client import CollectorRegistry, generate_latest, make_asgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from pvebench.config import load_pack
from pvebench.drivers.storages import KINDS
from pvebench.metrics import result_collectors as metrics
from pvebench.metrics.exposition import Families, Page, text_of
from pvebench.metrics.result_collectors import CASE_COLLECTORS, SUMMARY_COLLECTORS, Snapshot
from pvebench.model.definition import Definition
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Case
from pvebench.scheduler.plan import expand
from pvebench.store.live_results import LiveResults, PlannedCase
from pvebench.store.store import Store
from pvebench.web.server import WebServer, listen

SERIES = 50_000
ROUNDS = 120
SLOW_EVERY = 4
"""Requests to pvebench per request to prometheus_client, which takes seconds."""
CPU_ROUNDS = 30
PACK = Path(__file__).resolve().parents[1] / "scenarios" / "cache-matrix.yaml"
PERCENTILES = ("50", "90", "95", "99", "99.9", "99.99")
ADDRESS = "127.0.0.1:9699"


class Yardstick:
    """Collector of the same families for a registry of prometheus_client."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """Yield the existing families: only their rendering is compared."""
        return self.families

    def prepare(self) -> int:
        """Create the families; return the number of their series."""
        families = Families()
        for collect in [*CASE_COLLECTORS.values(), *SUMMARY_COLLECTORS.values()]:
            collect(self._snapshot, families)
        self.families = [*text_string_to_metric_families(text_of([families]))]
        return sum(len(family.samples) for family in self.families)


def many_cases(count: int) -> list[Case]:
    """Return `count` cases of the matrix, with copies of its workloads."""
    some = expand(load_pack(PACK), node="lab", storages={"local": KINDS["dir"].holds}).cases
    copies = range(-(-count // len(some)))
    return [
        dataclasses.replace(
            case, workload=dataclasses.replace(case.workload, slug=f"{case.workload.slug}-{copy}")
        )
        for copy in copies
        for case in some
    ][:count]


def one_run(case: Case, finished: datetime) -> Run:
    """Return a run with fio's samples of one direction."""
    way = case.workload.directions[0]
    samples = [
        Sample("iops", way, 10_123.4, Unit.IOPS),
        Sample("bandwidth", way, 41_465_446.4, Unit.BYTES_PER_SECOND),
        Sample("clat_mean", way, 1.2345e-3, Unit.SECONDS),
        Sample("bytes", way, 414_654_464.0, Unit.BYTES),
        Sample("iops_variation", way, 0.031, Unit.RATIO),
    ]
    samples += [
        Sample("clat_percentile", way, 1.5e-3 * number, Unit.SECONDS, part=part)
        for number, part in enumerate(PERCENTILES, start=1)
    ]
    return Run(
        uid=case.key,
        case=case,
        environment=Environment(node="lab", facts={}),
        cycle="c",
        started=finished,
        finished=finished,
        outcome=Outcome.OK,
        samples=tuple(samples),
    )


def snapshot_of(cases: list[Case]) -> Snapshot:
    """Return the snapshot of a store in which every case has one run."""
    now = datetime.now(UTC)
    planned = [
        PlannedCase(key=case.key, definition=Definition.of(case), every_seconds=86400.0)
        for case in cases
    ]
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory) / "pvebench.db", simulated=False)
        store.begin_cycle("c", node="lab", pack="p", tier="full", planned=len(cases))
        store.add_history(one_run(case, now) for case in cases)
        view = LiveResults(store, planned).now
        store.close()
    return metrics.snapshot_of(view, now=now, max_age_seconds=86400.0)


def application(page: Page, registry: CollectorRegistry) -> Starlette:
    """Return both expositions as one application."""

    def metrics(_: Request) -> Response:
        return Response(page.render(compress=True)[0], headers={"content-encoding": "gzip"})

    yardstick = Mount("/yardstick", make_asgi_app(registry))
    return Starlette(routes=[Route("/metrics", metrics), yardstick])


def timed(client: httpx2.Client, path: str) -> float:
    """Return the seconds of one compressed request like that of Prometheus, read completely."""
    begun = time.perf_counter()
    with client.stream("GET", f"http://{ADDRESS}{path}") as answer:
        for _ in answer.iter_raw():
            pass
    spent = time.perf_counter() - begun
    if answer.status_code != 200:
        sys.exit(f"{path} answered {answer.status_code}")
    return spent


def p99(values: list[float]) -> float:
    """Return the 99th percentile by the nearest rank."""
    return sorted(values)[min(len(values) - 1, round(0.99 * len(values)))]


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds of some work in this thread."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def rendering(page: Page, registry: CollectorRegistry, cases: list[Case]) -> None:
    """Print the median CPU time of a new result, its scrape, a further one, and the yardstick."""
    spent: dict[str, list[float]] = {}
    for case in cases[:CPU_ROUNDS]:
        for name, work in {
            "one new result": lambda key=case.key: page.refresh(key),
            "its scrape": lambda: page.render(compress=True),
            "a further scrape": lambda: page.render(compress=True),
            "prometheus_client": lambda: gzip.compress(generate_latest(registry)),
        }.items():
            spent.setdefault(name, []).append(cpu(work))
    median = {name: sorted(values)[len(values) // 2] for name, values in spent.items()}
    for name, value in median.items():
        print(f"CPU: {name:17} {value * 1000:8.1f} ms")
    ratios = [
        median["prometheus_client"] / median[f"{name} scrape"] for name in ("its", "a further")
    ]
    print(f"ratio after a new result {ratios[0]:.0f} (target: 20), without {ratios[1]:.0f}")


def main() -> None:
    """Measure and print."""
    probe = Yardstick(snapshot_of(many_cases(200)))
    wanted = round(SERIES / (probe.prepare() / 200))
    cases = many_cases(wanted)
    snapshot = snapshot_of(cases)
    yardstick = Yardstick(snapshot)
    series = yardstick.prepare()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(yardstick)
    page = Page(lambda: snapshot, {})
    page.refresh()
    ours: list[float] = []
    theirs: list[float] = []
    with WebServer(application(page, registry), listen(ADDRESS)), httpx2.Client(timeout=60) as http:
        timed(http, "/metrics")
        for number in range(ROUNDS):
            page.refresh(cases[number].key)
            ours.append(timed(http, "/metrics"))
            if number % SLOW_EVERY == 0:
                theirs.append(timed(http, "/yardstick/"))
    print(f"{series} series of {len(cases)} cases")
    print(f"pvebench          p99 {p99(ours) * 1000:8.1f} ms")
    print(f"prometheus_client p99 {p99(theirs) * 1000:8.1f} ms")
    rendering(page, registry, cases)


if __name__ == "__main__":
    main()
