"""Query time of every panel in Prometheus, with many series and with a long time range.

    bench/panels.py [SERIES DAYS STEP [DIRECTORY …]]     (default: 36000 1 60, then 300 365 240)

The series are those of the demo, including verdicts, copied to more nodes or reduced; values are
constant for an hour and vary by a percent, with a sample every STEP seconds (60 as recommended in
docs/scaling.md). Each query runs three times with the steps and variables of Grafana for the time
range; a panel's time is the sum of its queries. Prints the slowest panels and p95 over all, the
time of the cheapest query, and the CPU time of Prometheus, which shows the influence of other load.
With directories of dashboards, it measures each of them on the same data, one after the other.
Target: p95 below 200 ms, none above 500 ms.
"""

from __future__ import annotations

import logging
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pvebench.cli.demo import demo_page
from pvebench.log import log
from pvebench.metrics.catalog import ENVIRONMENT_END, ENVIRONMENT_START
from pvebench.verdicts import Feed, VerdictService
from pvebench.web import WebServer, listen
from testing.boards import chosen, dashboards, days_of, over_time, panels, step_of, substitute
from testing.demo_year import filled_store, results_of
from testing.prometheus import Prometheus, backfill, free_port, prometheus

DAY = 86_400.0
BLOCK_SECONDS = 7200.0
LONGEST_BLOCK_SECONDS = 486 * 3600.0
FILE_SAMPLES = 4_000_000
"""Maximum samples per intermediate file."""
HELD_SECONDS = 3600.0
ROUNDS = 3
SHOWN = 12
STORY_DAYS = 40
EPISODES = {ENVIRONMENT_START.exposed, ENVIRONMENT_END.exposed}
DEFAULT = ((36_000, 1.0, 60.0), (300, 365.0, 240.0))


@dataclass(frozen=True, slots=True)
class Series:
    """One series: name and labels as text, and its current value."""

    name: str
    labels: str
    value: float


def main(arguments: Sequence[str]) -> None:
    """Measure each size."""
    log.configure(logging.ERROR)
    sizes = DEFAULT
    if arguments:
        series, days, step = (float(one) for one in arguments[:3])
        sizes = ((int(series), days, step),)
    page = demo_series()
    for count, days, step in sizes:
        some = [within(one, days) for one in sized(page, count)]
        print(
            f"\n{len(some)} series x {days:.0f} days, a sample every {step:.0f} s; load "
            f"{os.getloadavg()[0]:.1f} at the start",
            flush=True,
        )
        with tempfile.TemporaryDirectory() as name, served(some, Path(name), days, step) as server:
            for folder in arguments[3:]:
                print(f"\n{folder}", flush=True)
                report(server, days, dashboards(sorted(Path(folder).glob("*.json"))))
            if not arguments[3:]:
                report(server, days, dashboards())


def demo_series() -> list[Series]:
    """Return the exposition of the demo after the days of its story, with verdicts."""
    with tempfile.TemporaryDirectory() as name:
        store = filled_store(Path(name), days=STORY_DAYS)
        results = results_of(store)
        page = demo_page(results)
        VerdictService(Feed(results), (), on_update=page.judged).judge()
        text = page.render()[0].decode()
        store.close()
    found = re.findall(r"(?m)^(\w+)(?:\{(.*)\})? (\S+)$", text)
    return [Series(name, labels, float(value)) for name, labels, value in found]


def within(one: Series, days: float) -> Series:
    """Return a period's start or end within the time range, so that before/after has two sides.

    The story's days are pressed into them.
    """
    if days >= STORY_DAYS or one.name not in EPISODES:
        return one
    now = time.time()
    return replace(one, value=float(round(now - (now - one.value) * days / STORY_DAYS)))


def sized(page: list[Series], count: int) -> list[Series]:
    """Return about `count` series, with more nodes or fewer cases."""
    if count < len(page):
        return cut(page, count)
    copies = [
        Series(one.name, re.sub(r'node="([^"]*)"', rf'node="\1-{copy}"', one.labels), one.value)
        for copy in range(1, -(-count // len(page)))
        for one in page
        if 'node="' in one.labels
    ]
    return (page + copies)[:count]


def cut(page: list[Series], count: int) -> list[Series]:
    """Return the series without a case, and those of as many cases as fit."""

    def case(one: Series) -> str:
        parts = dict(re.findall(r'(\w+)="([^"]*)"', one.labels))
        return f"{parts.get('node')} {parts.get('scenario')} {parts.get('workload')}"

    found: list[Series] = []
    cases: dict[str, list[Series]] = {}
    for one in page:
        if 'scenario="' in one.labels and 'workload="' in one.labels:
            cases.setdefault(case(one), []).append(one)
        else:
            found.append(one)
    # Complete sets of workloads, as the dashboards compare them.
    for some in sorted(cases.values(), key=lambda some: case(some[0])):
        if len(found) + len(some) > count:
            break
        found += some
    return found


@contextmanager
def served(page: list[Series], directory: Path, days: float, step: float) -> Iterator[Prometheus]:
    """Yield a Prometheus with past samples of the series that scrapes the current ones."""
    exporter = f"127.0.0.1:{free_port()}"
    put(page, directory, exporter, days, step)
    text = "".join(f"{one.name}{{{one.labels}}} {one.value}\n" for one in page)

    async def metrics(_: Request) -> PlainTextResponse:
        return PlainTextResponse(text)

    app = Starlette(routes=[Route("/metrics", metrics)])
    with WebServer(app, listen(exporter)), prometheus(directory, exporter, seconds=30) as server:
        server.wait_for("node_storage:pvebench_change_state:count_compared", seconds=180)
        yield server


def put(page: list[Series], directory: Path, exporter: str, days: float, step: float) -> None:
    """Write past samples into Prometheus' data directory, block by block."""
    end = datetime.now(UTC).timestamp() // step * step
    start = end - days * DAY
    rows = max(1, int(FILE_SAMPLES / len(page)))
    length = min(
        LONGEST_BLOCK_SECONDS, max(BLOCK_SECONDS, rows * step // BLOCK_SECONDS * BLOCK_SECONDS)
    )
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting = []
        while start < end:
            until = min(end, start - start % length + length)
            path = directory / f"{start:.0f}.om"
            write(page, path, exporter, (start, until, step))
            waiting.append(pool.submit(load, path, directory / "data"))
            while len([one for one in waiting if not one.done()]) > 2:
                time.sleep(0.1)
            start = until
        for one in waiting:
            one.result()


def load(path: Path, data: Path) -> None:
    """Convert a file to blocks, and remove it."""
    backfill(path, data)
    path.unlink()


def write(page: list[Series], path: Path, exporter: str, times: tuple[float, float, float]) -> None:
    """Write a file of samples, grouped by series as the format requires."""
    start, end, step = times
    moments = [start + step * number for number in range(int((end - start) / step))]
    target = f'job="pvebench",instance="{exporter}"'
    rng = random.Random(path.name)  # noqa: S311 # invented values, no secrets
    with path.open("w", encoding="utf-8") as file:
        named = ""
        for one in sorted(page, key=lambda one: one.name):
            if one.name != named:
                named = one.name
                file.write(f"# TYPE {named} unknown\n")
            head = f"{one.name}{{{one.labels + ',' if one.labels else ''}{target}}} "
            levels: dict[float, str] = {}
            for moment in moments:
                held = moment // HELD_SECONDS
                if held not in levels:
                    # States, counts and times do not vary.
                    moved = (
                        one.value if one.value == int(one.value) else one.value * rng.gauss(1, 0.01)
                    )
                    levels[held] = f"{head}{moved!r} "
                file.write(f"{levels[held]}{moment:.0f}\n")
        file.write("# EOF\n")


def report(server: Prometheus, days: float, boards: list[dict[str, Any]]) -> None:
    """Run the queries of every panel of the dashboards, and print their times."""
    process = process_of(server)
    floor = statistics.median(
        asked(server, process, {"expr": "vector(1)"}, 1, days)[0] for _ in range(20)
    )
    found: list[tuple[float, float, str]] = []
    for board in boards:
        for every in (False, True):
            values = chosen(server, board, every=every)
            for panel in panels(board):
                name = f"{board['uid']}: {panel['title']} ({'All' if every else 'defaults'})"
                if panel.get("targets"):
                    found.append((*of_panel(server, process, panel, values, days), name))
    found.sort(reverse=True)
    for wall, cpu, name in found[:SHOWN]:
        print(f"{wall * 1000:7.0f} ms, CPU {cpu * 1000:5.0f} ms  {name}")
    for what, column in (("time", 0), ("CPU", 1)):
        times = [float(one[column]) for one in found]
        print(
            f"{len(times)} panels, {what}: p95 {quantile(times, 0.95) * 1000:.0f} ms, median "
            f"{statistics.median(times) * 1000:.0f} ms"
        )
    print(f"vector(1) takes {floor * 1000:.1f} ms; load {os.getloadavg()[0]:.1f} at the end")


def of_panel(
    server: Prometheus, process: int, panel: dict[str, Any], values: dict[str, str], days: float
) -> tuple[float, float]:
    """Return p95 of a panel's time, and the mean CPU time of Prometheus for it, in seconds."""
    days = days_of(panel, f"{days:.0f}d")
    values = values | over_time(panel, days)
    targets = [{**one, "expr": substitute(one["expr"], values)} for one in panel["targets"]]
    rounds = []
    for _ in range(ROUNDS):
        times = [asked(server, process, one, step_of(panel, days), days) for one in targets]
        rounds.append((sum(one[0] for one in times), sum(one[1] for one in times)))
    return quantile([one[0] for one in rounds], 0.95), statistics.mean(one[1] for one in rounds)


def asked(
    server: Prometheus, process: int, target: dict[str, Any], step: int, days: float
) -> tuple[float, float]:
    """Return wall and CPU time in seconds of a query that starts and ends at whole steps."""
    begun, used = time.perf_counter(), cpu_seconds(process)
    if target.get("range"):
        end = time.time() // step * step
        server.query_range(target["expr"], days=days, step=step, end=end)
    else:
        server.query(target["expr"])
    return time.perf_counter() - begun, cpu_seconds(process) - used


def process_of(server: Prometheus) -> int:
    """Return the process ID of the Prometheus at an address."""
    wanted = f"--web.listen-address={server.address.removeprefix('http://')}"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if wanted in path.read_bytes().decode("utf-8", "replace").split("\0"):
                return int(path.parent.name)
    raise AssertionError(f"no process has {wanted}")


def cpu_seconds(process: int) -> float:
    """Return the CPU time of all threads of a process, with nanosecond resolution."""
    times = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(path.read_text("ascii").split()[0]) for path in times) / 1e9


def quantile(values: list[float], share: float) -> float:
    """Return the smallest of the values that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    main(sys.argv[1:])
