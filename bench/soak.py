"""Resource growth of a service over compressed weeks: runs, scrapes, pages, reloads, retention.

`bench/soak.py RUNS --plot FILE.svg`: a separate process runs the simulated driver in simulated time
as fast as possible, with all parts of `pvebench serve`: analysis, daily checks and backups of the
database, retention. In parallel it is scraped, its pages are loaded and its settings are changed.
Prints resident memory, file descriptors, threads, database size and page time regularly, and their
change over the second half, when retention is active.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from unittest import mock
from xml.sax.saxutils import escape

import httpx2
import numpy as np
from scipy.stats import theilslopes

from pvebench.config import load_settings
from pvebench.drivers.clocks import SimulatedClock
from pvebench.errors import Interrupted
from pvebench.log import log
from pvebench.service.housekeeping import Configuration
from pvebench.service.instance import measure
from pvebench.service.startup import assignments
from pvebench_lab.simulated import simulated_hypervisor

ROUND_SECONDS = 2.0
"""Seconds of wall time between two scrapes, page loads and samples."""
RELOAD_ROUNDS = 5
"""Number of samples between two changes of the settings."""
PACK = Path(__file__).resolve().parents[1] / "scenarios" / "quick.yaml"
EVERY = ("every: 5m", "every: 10m")
"""12 cases every ten minutes: 50,000 runs are four weeks."""
SETTINGS = """\
driver: simulated
node: lab
state: {state}
packs: [{pack}]
listen: {listen}
max_age: {max_age}
keep_evidence: 2d
keep_runs: 7d
keep_backups: 3
"""
PAGES = ("/", "/api/v1/status", "/api/v1/results", "/api/v1/verdict", "/api/v1/runs")


@dataclass(frozen=True, slots=True)
class Look:
    """One sample.

    Attributes:
        runs: that were made so far.
        days: of the instance's own time that have passed.
    """

    runs: float
    days: float
    memory_mib: float
    descriptors: float
    threads: float
    database_mib: float
    scrape_ms: float
    page_ms: float


SHOWN = {
    "memory_mib": "resident memory, MiB",
    "descriptors": "open file descriptors",
    "threads": "threads",
    "database_mib": "database with its log, MiB",
    "scrape_ms": "scrape, ms",
    "page_ms": "page or API answer, ms",
}


class Quiet:
    """A `service.instance.Screen` without output."""

    def say(self, line: str) -> None:
        """Print nothing."""

    def progress(self, statuses: object) -> nullcontext[None]:
        """Ignore the call."""
        return nullcontext()


class Compressed(simulated_hypervisor.SimulatedEngine):
    """The simulation with accelerated time."""

    def make_clock(self, *, endless: bool) -> SimulatedClock:
        """Return simulated time, without waiting."""
        return SimulatedClock(datetime.now(UTC))


def serve(config: Path) -> None:
    """Run the service until a signal stops it."""

    def load() -> Configuration:
        settings = load_settings(config)
        return Configuration(settings, assignments(settings))

    log.configure(logging.WARNING)
    with mock.patch.object(simulated_hypervisor, "ENGINE", Compressed()):
        try:
            measure(load(), Quiet(), load=load, config=config, cycles=None, web=True)
        except Interrupted as end:
            sys.exit(end.exit_code)


class Service:
    """The service in a separate process, and the requests to it."""

    def __init__(self, directory: Path) -> None:
        self.config, self.state = directory / "pvebench.yaml", directory / "state"
        self._pack = directory / "pack.yaml"
        self._pack.write_text(PACK.read_text("utf-8").replace(*EVERY), "utf-8")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.listen = f"127.0.0.1:{probe.getsockname()[1]}"
        self.reload("14d")
        command = [sys.executable, __file__, "--serve", str(self.config)]
        self.process = subprocess.Popen(command, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        self.client = httpx2.Client(base_url=f"http://{self.listen}", timeout=120)
        self._paths = cycle(PAGES)
        self._begun: datetime | None = None

    def reload(self, max_age: str) -> None:
        """Write changed settings, which the service reloads."""
        text = SETTINGS.format(
            state=self.state, pack=self._pack, listen=self.listen, max_age=max_age
        )
        fresh = self.config.with_suffix(".new")
        fresh.write_text(text, "utf-8")
        fresh.replace(self.config)

    def look(self) -> Look:
        """Scrape it, load a page, and sample the process."""
        newest = self._fetch("/api/v1/runs?limit=1")[0].json()["runs"]
        now = datetime.fromisoformat(self._fetch("/api/v1/status")[0].json()["now"])
        self._begun = self._begun or now
        scrape_ms = self._fetch("/metrics")[1]
        page_ms = self._fetch(next(self._paths))[1]
        proc = Path(f"/proc/{self.process.pid}")
        status = dict(
            line.split(":", 1) for line in (proc / "status").read_text("ascii").splitlines()
        )
        return Look(
            runs=newest[0]["run"] if newest else 0,
            days=(now - self._begun).total_seconds() / 86400,
            memory_mib=int(status["VmRSS"].split()[0]) / 1024,
            descriptors=len(list((proc / "fd").iterdir())),
            threads=int(status["Threads"]),
            database_mib=sum(f.stat().st_size for f in self.state.glob("pvebench.db*")) / 2**20,
            scrape_ms=scrape_ms,
            page_ms=page_ms,
        )

    def _fetch(self, path: str) -> tuple[httpx2.Response, float]:
        begun = time.perf_counter()
        answer = self.client.get(path)
        answer.raise_for_status()
        return answer, (time.perf_counter() - begun) * 1000

    def wait_until_ready(self) -> None:
        """Wait until it measures."""
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"the service ended with {self.process.returncode}")
            try:
                if self.client.get("/-/ready").status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
        sys.exit("the service was not ready within a minute")

    def end(self) -> int:
        """Stop it like a service manager; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def soak(service: Service, runs: int, minutes: float) -> list[Look]:
    """Return the samples until `runs` runs or the time limit in minutes."""
    looks: list[Look] = []
    service.wait_until_ready()
    ends = time.monotonic() + 60 * minutes
    while not looks or (looks[-1].runs < runs and time.monotonic() < ends):
        begun = time.monotonic()
        looks.append(service.look())
        if len(looks) % RELOAD_ROUNDS == 0:
            service.reload(f"{14 + len(looks) % 2}d")
        if len(looks) % 60 == 0:
            print(f"  {looks[-1].runs:.0f} runs, {looks[-1].days:.1f} days", flush=True)
        time.sleep(max(0.0, begun + ROUND_SECONDS - time.monotonic()))
    return looks


def report(looks: Sequence[Look]) -> None:
    """Print the medians of each series by quarter, and its change over the second half."""
    runs = np.array([look.runs for look in looks])
    quarters = [
        np.flatnonzero((runs > runs[-1] * low) & (runs <= runs[-1] * (low + 0.25)))
        for low in (0.0, 0.25, 0.5, 0.75)
    ]
    print(f"{runs[-1]:.0f} runs in {looks[-1].days:.1f} simulated days, {len(looks)} samples")
    print(f"{'medians of the quarters':34}" + "".join(f"{n:>10}" for n in ("1", "2", "3", "4")))
    half = runs > runs[-1] / 2
    for name, title in SHOWN.items():
        values = np.array([getattr(look, name) for look in looks])
        medians = [float(np.median(values[quarter])) for quarter in quarters]
        change = "  the same all along the second half"
        if np.ptp(values[half]):
            slope, _, low, high = theilslopes(values[half], runs[half] / 10_000, 0.95)
            change = (
                f"  per 10,000 runs {slope / medians[2]:+.1%}"
                f" ({low / medians[2]:+.1%} to {high / medians[2]:+.1%})"
            )
        print(f"{title:34}" + "".join(f"{median:10.1f}" for median in medians) + change)


def plot(looks: Sequence[Look]) -> str:
    """Return a chart of all series over the runs as SVG."""
    width, height, gap = 360, 120, 44
    right = max(look.runs for look in looks)
    parts = []
    for number, (name, title) in enumerate(SHOWN.items()):
        x, y = 50 + (number % 2) * (width + 70), 30 + (number // 2) * (height + gap)
        values = [getattr(look, name) for look in looks]
        top = max(values) * 1.1 or 1.0
        points = " ".join(
            f"{x + width * look.runs / right:.1f},{y + height * (1 - value / top):.1f}"
            for look, value in zip(looks, values, strict=True)
        )
        parts += [
            f'<text x="{x}" y="{y - 8}">{escape(title)}</text>',
            f'<text x="{x - 6}" y="{y + 8}" text-anchor="end">{top:.0f}</text>',
            f'<text x="{x - 6}" y="{y + height}" text-anchor="end">0</text>',
            f'<text x="{x + width}" y="{y + height + 14}" text-anchor="end">{right:,.0f} runs'
            "</text>",
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="#aaa"/>',
            f'<polyline points="{points}" fill="none" stroke="#2563a8" stroke-width="1"/>',
        ]
    rows = -(-len(SHOWN) // 2)
    size = f'width="{2 * width + 140}" height="{30 + rows * (height + gap)}"'
    style = 'font-family="sans-serif" font-size="12"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    body = "\n".join([background, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def main() -> None:
    """Run the test, print and plot the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=int, nargs="?", default=2000)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="time limit in minutes")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--table", type=Path, help="write all samples as CSV")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    with tempfile.TemporaryDirectory() as name:
        service = Service(Path(name))
        try:
            looks = soak(service, given.runs, given.minutes)
        finally:
            ended = service.end()
    if given.table:
        names = [field.name for field in fields(Look)]
        rows = [",".join(str(getattr(look, name)) for name in names) for look in looks]
        given.table.write_text("\n".join([",".join(names), *rows, ""]), "utf-8")
    report(looks)
    if given.plot:
        given.plot.write_text(plot(looks), "utf-8")
    print(f"exit code {ended} (expected: 130)")
    sys.exit(ended != 130)


if __name__ == "__main__":
    main()
