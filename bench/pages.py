"""Response time of the web UI with 1,350 cases of 120 runs each.

Prints the first load at the start, the page after a new run, the API, and the ratio to a single
database query. Target: below 200 ms for the page. Temporarily needs half a gigabyte in TMPDIR.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pvebench.config import load_pack
from pvebench.drivers.storages import KINDS
from pvebench.model.definition import Definition
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Case, Direction
from pvebench.scheduler.plan import expand
from pvebench.store.live_results import LiveResults, PlannedCase
from pvebench.store.store import Store
from pvebench.web.api import results_data
from pvebench.web.responses import render
from pvebench.web.views.pages import index_view

CASES, RUNS, ROUNDS = 1350, 120, 9
EVERY = timedelta(hours=6)
PACK = Path(__file__).resolve().parents[1] / "scenarios" / "cache-matrix.yaml"


def main() -> None:
    """Fill a store and measure."""
    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory) / "pvebench.db", simulated=True)
        cases = many_cases()
        fill(store, cases, now)
        planned = [
            PlannedCase(
                key=case.key, definition=Definition.of(case), every_seconds=EVERY.total_seconds()
            )
            for case in cases
        ]
        made: list[LiveResults] = []
        first = measure(lambda: made.append(LiveResults(store, planned)), rounds=1)
        results = made[0]
        pages = []
        for number in range(ROUNDS):
            results.keep(one_run(cases[number], f"new {number}", now))
            pages.append(measure(lambda: page(results, now), rounds=1))
        api = measure(lambda: results_data(results.now, now).model_dump_json())
        bare = measure(store.newest_run)
        store.close()
    shown = statistics.median(pages)
    print(f"{CASES} cases, {CASES * RUNS} runs")
    print(f"first load      {first * 1000:7.0f} ms")
    print(f"page            {shown * 1000:7.0f} ms")
    print(f"results as JSON {api * 1000:7.0f} ms")
    print(f"single query    {bare * 1000:7.1f} ms")
    print(f"page / single query: {shown / bare:.0f}")


def measure(work: Callable[[], object], *, rounds: int = ROUNDS) -> float:
    """Return the median duration of `work` in seconds."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def page(results: LiveResults, now: datetime) -> str:
    """Render the whole page."""
    view = index_view(results.now, [], now)
    return render("index.html", page=view, simulated=view.simulated, here="/")


def many_cases() -> list[Case]:
    """Return as many cases as a full matrix has."""
    matrix = expand(load_pack(PACK), node="lab", storages={"local": KINDS["dir"].holds})
    some = matrix.cases
    copies = range(-(-CASES // len(some)))
    return [
        dataclasses.replace(
            case,
            workload=dataclasses.replace(
                case.workload, slug=f"{case.workload.slug}-{copy}", title=f"copy {copy}"
            ),
        )
        for copy in copies
        for case in some
    ][:CASES]


def one_run(case: Case, uid: str, finished: datetime) -> Run:
    """Return a successful run."""
    direction = case.workload.directions[0]
    return Run(
        uid=uid,
        case=case,
        environment=Environment(node="lab", facts={}),
        cycle="c",
        started=finished - timedelta(seconds=40),
        finished=finished,
        outcome=Outcome.OK,
        samples=(
            Sample("iops", direction, 10_000.0, Unit.IOPS),
            Sample("bandwidth", direction, 4e7, Unit.BYTES_PER_SECOND),
        ),
    )


def fill(store: Store, cases: list[Case], now: datetime) -> None:
    """Write all histories in one transaction."""
    store.begin_cycle("c", node="lab", pack="large", tier="full", planned=CASES)
    store.add_history(
        dataclasses.replace(
            one_run(case, f"{turn}/{number}", now - EVERY * (RUNS - turn) + seconds(number)),
            samples=samples_of(case.workload.directions[0], turn),
        )
        for turn in range(RUNS)
        for number, case in enumerate(cases)
    )


def seconds(number: int) -> timedelta:
    """Return the offset of a case's run end within its cycle."""
    return timedelta(seconds=number)


def samples_of(direction: Direction, turn: int) -> tuple[Sample, ...]:
    """Return as many samples as a real run has, including the two relevant ones."""
    level = 10_000.0 * (1 + 0.02 * (turn % 7))
    named = {"iops": level, "bandwidth": level * 4096, "clat_mean": 1e-3, "bytes": 1e9}
    values = {(name, ""): value for name, value in named.items()}
    values |= {("clat_percentile", str(part)): 1e-3 for part in range(20)}
    return tuple(
        Sample(metric, direction, value, Unit.IOPS, part)
        for (metric, part), value in values.items()
    )


if __name__ == "__main__":
    main()
