"""What several runs of one case say together: best and median of all, passes of one cycle."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from pvebench.model.run import Outcome
from pvebench.report.series import Cell
from pvebench.store import StoredRun

OVER_RUNS: Final = ("good_runs", "best", "median", "best_metric")
PASSES: Final = ("pass", "first_pass", "last_pass", "passes", "last_to_first_ratio")


def rates(run: StoredRun, direction: str) -> tuple[str, float] | None:
    """Return the metric that tells a run's speed in a direction, and its value.

    I/O per second, or bytes per second where the tool gives no other rate; None: neither.
    """
    values = {
        one.metric: one.value
        for one in run.samples
        if str(one.direction or "") == direction and not one.part
    }
    found = [(metric, values[metric]) for metric in ("iops", "bandwidth") if metric in values]
    return found[0] if found else None


def over_runs(history: Sequence[StoredRun], direction: str) -> dict[str, Cell]:
    """Return the best and the median of all good runs of a case."""
    good = [run for run in history if run.outcome.good]
    known = [found for run in good if (found := rates(run, direction)) is not None]
    if not known:
        return {"good_runs": len(good)}
    reached = [value for _, value in known]
    return {
        "good_runs": len(good), "best": max(reached), "median": statistics.median(reached),
        "best_metric": known[0][0],
    }  # fmt: skip


def passes(history: Sequence[StoredRun], direction: str) -> dict[str, Cell]:
    """Return the first and the last pass of the newest cycle that made several of a case.

    Args:
        history: runs of one case, newest first. A pass that was not good has no value.
    """
    newest: dict[str, Cell] = {"pass": history[0].pass_number or None}
    cycle = next((run.cycle for run in history if run.pass_number > 1), None)
    if cycle is None:
        return newest
    made = {run.pass_number: run for run in history if run.cycle == cycle and run.pass_number}
    reached = _reached(made, direction)
    last = max(made)
    first_value, last_value = reached.get(1), reached.get(last)
    ratio = last_value / first_value if first_value and last_value is not None else None
    return newest | {
        "passes": last, "first_pass": first_value, "last_pass": last_value,
        "last_to_first_ratio": ratio,
    }  # fmt: skip


def _reached(made: Mapping[int, StoredRun], direction: str) -> dict[int, float]:
    known = {number: rates(run, direction) for number, run in made.items() if run.outcome.good}
    return {number: found[1] for number, found in known.items() if found is not None}


def of_pass(runs: Sequence[StoredRun], number: int) -> list[StoredRun]:
    """Return the runs that were that pass of their case; those that were skipped were none."""
    return [run for run in runs if run.pass_number == number and run.outcome is not Outcome.SKIPPED]
