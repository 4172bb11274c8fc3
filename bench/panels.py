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

import json
import logging
import math
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pvebench.log import log
from pvebench.metrics.state_metrics import ENVIRONMENT_END, ENVIRONMENT_START
from pvebench.service.publisher import page_of
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.server import WebServer, listen
from pvebench_lab.cli.demo import SHOWN as DEMO
from testing import http_client
from testing.boards import chosen, dashboards, days_of, over_time, panels, step_of, substitute
from testing.demo_year import filled_store, results_of
from testing.prometheus import Prometheus, free_port, prometheus, wait_until_ready

DAY = 86_400.0
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
        page = page_of(results, lambda: DEMO)
        VerdictService(results, (), on_update=page.judged).judge()
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
    """Write past samples into Prometheus' data directory, an hour at a time.

    By remote write, which names a series once per request: promtool parses it at every sample.
    """
    start = time.time() // step * step - days * DAY
    names = [named(one, exporter) for one in page]
    rng = random.Random(0)  # noqa: S311 # invented values, no secrets
    with receiver(directory, days) as address:
        for hour in range(math.ceil(days * DAY / HELD_SECONDS)):
            between = moments(start + hour * HELD_SECONDS, step)
            body = b"".join(
                field(1, name + held_value(one, rng).join(between))
                for name, one in zip(names, page, strict=True)
            )
            send(f"{address}/api/v1/write", body)


def named(one: Series, exporter: str) -> bytes:
    """Return the labels of a series as fields of a `TimeSeries`, sorted by name."""
    labels = {"__name__": one.name, "job": "pvebench", "instance": exporter}
    for name, text in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', one.labels):
        labels[name] = json.loads(f'"{text}"')
    pairs = ((name.encode(), labels[name].encode()) for name in sorted(labels) if labels[name])
    return b"".join(field(1, field(1, name) + field(2, value)) for name, value in pairs)


def moments(start: float, step: float) -> list[bytes]:
    """Return what stands before, between and after the values of an hour's samples."""
    times = (start + step * number for number in range(int(HELD_SECONDS / step)))
    ends = [b"\x10" + varint(int(moment * 1000)) for moment in times]
    # Field 2 of a `TimeSeries`: the value, eight bytes after its tag, and the time.
    begin = b"\x12" + varint(9 + len(ends[0])) + b"\x09"
    return [begin, *(end + begin for end in ends[:-1]), ends[-1]]


def held_value(one: Series, rng: random.Random) -> bytes:
    """Return the value of an hour; states, counts and times do not vary."""
    varies = one.value != int(one.value) if math.isfinite(one.value) else False
    return struct.pack("<d", one.value * rng.gauss(1, 0.01) if varies else one.value)


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as protobuf writes it."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """Return a number as protobuf and Snappy write it: seven bits per byte, the lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def send(url: str, body: bytes) -> None:
    """Send a `WriteRequest`; it must be in Snappy's format, of which one literal is enough."""
    content = varint(len(body)) + b"\xfc" + struct.pack("<I", len(body) - 1) + body
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    http_client.post(url, content=content, headers=headers, timeout=300).raise_for_status()


@contextmanager
def receiver(directory: Path, days: float) -> Iterator[str]:
    """Yield a Prometheus that takes samples and has no rules; at its end most are in blocks."""
    (directory / "receiver.yml").write_text("", "utf-8")
    address = f"127.0.0.1:{free_port()}"
    hours = max(2, int(days * 24 / 50))
    command = [
        "prometheus",
        f"--config.file={directory}/receiver.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address={address}",
        "--web.enable-remote-write-receiver",
        "--storage.tsdb.retention.time=2y",
        f"--storage.tsdb.min-block-duration={hours}h",
        "--log.level=warn",
    ]
    with subprocess.Popen(command) as process:
        try:
            wait_until_ready(f"http://{address}/-/ready")
            yield f"http://{address}"
            # Otherwise the next Prometheus compacts during the measurement.
            while uncompacted(f"http://{address}") > 1.5 * hours * 3600.0:
                time.sleep(0.5)
        finally:
            process.terminate()


def uncompacted(address: str) -> float:
    """Return how many seconds are not in blocks yet."""
    answer = http_client.get(f"{address}/api/v1/status/tsdb", timeout=300).json()
    head = answer["data"]["headStats"]
    return (head["maxTime"] - head["minTime"]) / 1000.0


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
