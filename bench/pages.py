"""How long the page at / takes with 1,350 cases of 120 runs each.

Prints the first reading at the start, the page after a run has been added, the API, and the ratio
to one bare question to the database. Aim: under 200 ms for the page. Needs half a gigabyte in
TMPDIR for a moment.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import insert

from pvebench.config import load_pack
from pvebench.model.environment import Environment
from pvebench.model.rules import STORAGE_KINDS
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Case, Direction
from pvebench.plan import expand
from pvebench.store import Store, define
from pvebench.store.tables import runs, samples
from pvebench.web import Board, PlannedCase
from pvebench.web.api import results_data
from pvebench.web.render import render
from pvebench.web.views import index_view

CASES, RUNS, ROUNDS = 1350, 120, 9
EVERY = timedelta(hours=6)
PACK = Path(__file__).resolve().parents[1] / "scenarios" / "cache-matrix.yaml"


def main() -> None:
    """Fill a store, then measure."""
    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory) / "pvebench.db", simulated=True)
        cases = many_cases()
        fill(store, cases, now)
        planned = [
            PlannedCase(key=case.key, definition=define(case), every_seconds=EVERY.total_seconds())
            for case in cases
        ]
        board = Board(store, planned)
        first = measure(board.content, rounds=1)
        pages = []
        for number in range(ROUNDS):
            store.add_run(one_run(cases[number], f"new {number}", now))
            pages.append(measure(lambda: page(board, now), rounds=1))
        api = measure(lambda: json.dumps(results_data(board.content(), now)))
        bare = measure(lambda: store.history.changed(10**9))
        store.close()
    shown = statistics.median(pages)
    print(f"{CASES} cases, {CASES * RUNS} runs")
    print(f"first reading   {first * 1000:7.0f} ms")
    print(f"page            {shown * 1000:7.0f} ms")
    print(f"results as JSON {api * 1000:7.0f} ms")
    print(f"bare question   {bare * 1000:7.1f} ms")
    print(f"page / bare question: {shown / bare:.0f}")


def measure(work: Callable[[], object], *, rounds: int = ROUNDS) -> float:
    """Return the median seconds that `work` takes."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def page(board: Board, now: datetime) -> str:
    """Make the whole page."""
    view = index_view(board.content(), [], now)
    return render("index.html", page=view, simulated=view.simulated, here="/")


def many_cases() -> list[Case]:
    """Return as many cases as a full matrix has."""
    matrix = expand(load_pack(PACK), node="lab", storages={"local": STORAGE_KINDS["dir"]})
    some = matrix.cases
    copies = range(-(-CASES // len(some)))
    return [
        dataclasses.replace(
            case,
            workload=dataclasses.replace(
                case.workload, slug=f"{case.workload.slug}-{copy}", title=f"copy {copy}"
            ),
        )
        for copy in copies for case in some
    ][:CASES]  # fmt: skip


def one_run(case: Case, uid: str, finished: datetime) -> Run:
    """Return a good run."""
    direction = case.workload.directions[0]
    return Run(
        uid=uid, case=case, environment=Environment(node="lab", facts={}), cycle="c",
        started=finished - timedelta(seconds=40), finished=finished, outcome=Outcome.OK,
        samples=(
            Sample("iops", direction, 10_000.0, Unit.IOPS),
            Sample("bandwidth", direction, 4e7, Unit.BYTES_PER_SECOND),
        ),
    )  # fmt: skip


def fill(store: Store, cases: list[Case], now: datetime) -> None:
    """Write the histories; around the store, which makes each of its runs durable by itself."""
    store.begin_cycle("c", node="lab", pack="large", tier="full", planned=CASES)
    store.add_run(one_run(cases[0], "first", now - EVERY * (RUNS + 1)))
    digest = Environment(node="lab", facts={}).digest
    texts = [json.dumps(define(case)) for case in cases]
    with store._engine.begin() as connection:  # noqa: SLF001 # see above
        for turn in range(RUNS):
            at = (now - EVERY * (RUNS - turn)).timestamp()
            first = 2 + turn * CASES
            connection.execute(insert(runs), [
                {
                    "id": first + number, "uid": f"{turn}/{number}", "case_key": case.key,
                    "node": "lab", "scenario": case.scenario.slug, "workload": case.workload.slug,
                    "definition": texts[number], "cycle": "c", "environment": digest,
                    "started": at + number, "finished": at + number + 9,
                    "outcome": str(Outcome.OK), "reason": "",
                }
                for number, case in enumerate(cases)
            ])  # fmt: skip
            connection.execute(insert(samples), [
                sample
                for number, case in enumerate(cases)
                for sample in sample_rows(first + number, case.workload.directions[0], turn)
            ])  # fmt: skip


def sample_rows(run: int, direction: Direction, turn: int) -> list[dict[str, object]]:
    """Return as many samples as a real run has, the two that matter among them."""
    level = 10_000.0 * (1 + 0.02 * (turn % 7))
    named = {"iops": level, "bandwidth": level * 4096, "clat_mean": 1e-3, "bytes": 1e9}
    others = {("clat_percentile", str(part)): 1e-3 for part in range(20)}
    return [
        {
            "run": run, "metric": metric, "direction": str(direction), "part": part,
            "value": value, "unit": "iops",
        }
        for (metric, part), value in ({(name, ""): v for name, v in named.items()} | others).items()
    ]  # fmt: skip


if __name__ == "__main__":
    main()
