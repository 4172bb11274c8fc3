"""Memory usage after retention has removed runs: `bench/kept.py DAYS`.

Twelve cases per day are stored, analyzed, shown and compared, and removed after sixty days.
Regularly prints the memory allocated by Python, measured with `tracemalloc`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
import tracemalloc
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from pvebench.config import Settings
from pvebench.log import log
from pvebench.service.housekeeping import DatabaseMaintenance
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench.verdicts.judge_input import JudgeInput
from pvebench.verdicts.ranking import rankings
from pvebench.web.views.tables import numbers_of
from testing.changes import CASES, START, measured

SETTINGS = Settings.model_validate({"keep_runs": "60d", "keep_backups": 0})
SHOWN_DAYS = 60


def keep(directory: Path, days: int) -> None:
    """Create the runs of a number of days, and print the memory regularly."""
    store = Store(directory / "pvebench.db", simulated=False)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=len(CASES))
    results = LiveResults(store)
    feed, now = JudgeInput(results), START
    tidier = DatabaseMaintenance(results, lambda: SETTINGS, lambda: now)
    tracemalloc.start(1)
    for day in range(1, days + 1):
        for case in CASES:
            results.keep(measured(case, day))
        now = START + timedelta(days=day + 1)
        tidier.check()
        feed.read()
        view = results.now
        rankings(view, {key: one.definition for key, one in view.cases.items()})
        for trend in view.trends.values():
            numbers_of(trend)
        if day % SHOWN_DAYS == 0:
            feed.material("lab")
            gc.collect()
            mib = tracemalloc.get_traced_memory()[0] / 2**20
            stored = results.now.totals.runs
            print(f"{day * len(CASES)} runs, {stored} stored, {mib:.2f} MiB", flush=True)
    store.close()


def main() -> None:
    """Count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("days", type=int, nargs="?", default=240)
    given = parser.parse_args()
    log.configure(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        keep(Path(name), given.days)


if __name__ == "__main__":
    main()
