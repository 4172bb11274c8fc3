"""A large history: three nodes of 1,350 cases each, one run per day for DAYS days (default 1,095).

The kernel is upgraded every two months, and the effect of an upgrade is cached for every case.
Prints the time of a start until pages are served, its memory, the time of one new run until page,
API and verdict include it, and the time of `results`; each with its ratio to a tenth of the
history, because frequent operations must not become slower with the history. Needs 3 KB of TMPDIR
per run; `bench/large.py 110` fills a tenth of three years.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pages import many_cases, one_run

from pvebench.metrics.exposition import Page
from pvebench.metrics.result_collectors import snapshot_of
from pvebench.model.definition import Definition
from pvebench.model.environment import Environment
from pvebench.model.run import Run, Sample, Unit
from pvebench.model.workload import Case
from pvebench.store.live_results import LiveResults, PlannedCase
from pvebench.store.store import Store
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.api import results_data

NODES = ("pve1", "pve2", "pve3")
DAYS = 1095
UPGRADE_DAYS = 61
NEW_RUNS = 20
MIB = 1024 * 1024
AIMS = {
    "start": ("start until ready", "s", 1, 5),
    "new_run": ("one new run until page", "ms", 1000, 50),
    "first_verdict": ("verdict from nothing", "s", 1, 30),
    "first_cpu": ("its CPU", "s", 1, 30),
    "later_verdict": ("verdict again", "s", 1, 1),
    "results": ("newest results", "s", 1, 0.5),
    "memory": ("memory at the start", "MB", 1e-6, 400),
    "judged_memory": ("with verdicts", "MB", 1e-6, 400),
}
"""Measured value -> its name, its unit, the factor to it, and the largest that reaches the aim."""


@dataclass(frozen=True)
class Measured:
    """Seconds of each step, and peak memory in bytes at the start and with verdicts."""

    runs: int
    start: float
    memory: int
    judged_memory: int
    new_run: float
    first_verdict: float
    first_cpu: float
    later_verdict: float
    results: float


def all_cases() -> list[Case]:
    """Return the cases of all nodes."""
    return [
        replace(case, scenario=replace(case.scenario, node=node))
        for node in NODES
        for case in many_cases()
    ]


def upgraded(day: int) -> Environment:
    """Return the environment of the runs of a day."""
    return Environment(node="lab", facts={"kernel": f"6.8.{day // UPGRADE_DAYS}"})


def history(cases: list[Case], days: int, now: datetime) -> Iterator[Run]:
    """Yield one run per day and case, oldest first, with a varying level."""
    for day in range(days):
        at = now - timedelta(days=days - day)
        environment = upgraded(day)
        for number, case in enumerate(cases):
            run = one_run(case, f"{day}/{number}", at + timedelta(seconds=20 * number))
            level = 10_000.0 * (1 + 0.01 * ((day * 7 + number) % 5))
            direction = case.workload.directions[0]
            values = (
                Sample("iops", direction, level, Unit.IOPS),
                Sample("bandwidth", direction, level * 4096, Unit.BYTES_PER_SECOND),
                Sample("clat_percentile", direction, 1.0 / level, Unit.SECONDS, "99"),
                Sample("host_cpu", None, 0.5, Unit.CORES, "qemu"),
            )
            yield replace(run, samples=values, environment=environment)


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of `work` in seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def peak() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(path: Path, days: int) -> None:
    """Print the cost of a store with a number of days, in a separate process."""
    cases, now = all_cases(), datetime.now(UTC)
    planned = [
        PlannedCase(key=case.key, definition=Definition.of(case), every_seconds=86400.0)
        for case in cases
    ]
    begun = time.perf_counter()
    store = Store(path, simulated=True)
    results = LiveResults(store, planned)
    page = Page(lambda: snapshot_of(results.now, now=now, max_age_seconds=86400.0 * 30), {})
    page.refresh()
    start = time.perf_counter() - begun
    memory = peak()
    results.listen(lambda run: page.refresh(run and run.case_key))
    spent = []
    for number in range(NEW_RUNS):
        run = replace(one_run(cases[number], f"new {number}", now), environment=upgraded(days - 1))
        spent.append(seconds(lambda run=run: (results.keep(run), page.render(compress=True))))
    spent.append(seconds(lambda: results_data(results.now, now).model_dump_json()))
    keeper = VerdictService(results, ())
    used = time.process_time()
    first = seconds(keeper.judge)
    used = time.process_time() - used
    results.keep(replace(one_run(cases[0], "last", now), environment=upgraded(days - 1)))
    later = seconds(keeper.judge)
    judged_memory = peak()
    listing = seconds(lambda: store.runs(limit=50))
    print(
        json.dumps(
            {
                "runs": days * len(cases),
                "start": start,
                "memory": memory,
                "judged_memory": judged_memory,
                "new_run": sorted(spent[:-1])[NEW_RUNS // 2],
                "first_verdict": first,
                "first_cpu": used,
                "later_verdict": later,
                "results": listing,
            }
        )
    )


def filled(directory: Path, days: int) -> Path:
    """Return the database of a history."""
    path = directory / f"{days}.db"
    store = Store(path, simulated=True)
    store.begin_cycle("c", node=NODES[0], pack="large", tier="full", planned=1)
    taken = seconds(lambda: store.add_history(history(all_cases(), days, datetime.now(UTC))))
    store.close()
    size = path.stat().st_size / MIB
    print(f"filled {days} days in {taken:.0f} s, {size:,.0f} MiB", flush=True)
    return path


def main() -> int:
    """Fill both histories, measure each in a separate process, print ratios and aims."""
    days = int(sys.argv[1]) if len(sys.argv) > 1 else DAYS
    with tempfile.TemporaryDirectory() as directory:
        found = []
        for many in (max(1, days // 10), days):
            path = filled(Path(directory), many)
            command = [sys.executable, __file__, "--measure", str(path), str(many)]
            made = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(Measured(**json.loads(made.stdout)))
    small, large = found
    print(f"{large.runs:,} runs compared with {small.runs:,}")
    missed = [name for name in AIMS if not printed(name, large, small)]
    print(f"missed: {', '.join(missed)}" if missed else "all aims reached")
    return 1 if missed else 0


def printed(name: str, large: Measured, small: Measured) -> bool:
    """Print a row of the table; return whether its aim is reached."""
    title, unit, factor, most = AIMS[name]
    value, other = getattr(large, name) * factor, getattr(small, name) * factor
    mark = "reached" if value <= most else "MISSED"
    print(
        f"{title:24} {value:10,.1f} {unit:3} {value / other:6.1f} ×  aim: {most:g} {unit}  {mark}"
    )
    return bool(value <= most)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main())
