"""The scan for changes at unknown times: once for each change, never for one glitch."""

from __future__ import annotations

import math
import random

import pytest

from pvebench.analysis.causes import Happening, candidates, gaps
from pvebench.analysis.figures import FIGURES
from pvebench.analysis.scan import PlaceboScan
from pvebench.analysis.series import History, Point
from pvebench.analysis.trend import slow_trend
from pvebench.analysis.unknown import Scans


def noise(runs: int, seed: int = 1, sigma: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.0, sigma) for _ in range(runs)]


def stepped(at: int, ratio: float, runs: int = 120, seed: int = 1) -> list[float]:
    return [
        value + (math.log(ratio) if run >= at else 0.0)
        for run, value in enumerate(noise(runs, seed))
    ]


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.1])
def test_a_step_is_found_once_where_it_was_and_with_its_size(ratio: float) -> None:
    values = stepped(80, ratio)
    (found,) = PlaceboScan().detect(values)
    assert abs(found.index - 80) <= 2
    assert 81 <= found.seen <= 88
    points = tuple(Point(float(run), "", math.exp(value)) for run, value in enumerate(values))
    (step,) = Scans().steps(
        History(case="c", of="c", name="c", figure=FIGURES["throughput"], labels={}, points=points)
    )
    assert step.low <= math.log(ratio) <= step.high


def test_two_runs_far_off_are_no_change_before_the_third() -> None:
    values = stepped(80, 0.8)
    assert PlaceboScan().detect(values[:82]) == ()
    assert [step.index for step in PlaceboScan().detect(values[:83])] == [80]


def test_single_glitches_are_no_changes() -> None:
    for seed in range(1, 11):
        values = noise(100, seed)
        values[60] += math.log(0.5)
        values[80] += math.log(2.0)
        assert PlaceboScan().detect(values) == ()


def test_the_way_back_to_an_earlier_level_is_no_second_change() -> None:
    values = stepped(60, 0.8, runs=130)
    values[95:] = noise(35, seed=9)
    assert [round(step.index, -1) for step in PlaceboScan().detect(values)] == [60]


def test_judging_the_newest_run_finds_what_judging_all_of_them_finds() -> None:
    values = stepped(80, 0.9)
    starts, seen = [0], []
    for runs in range(1, len(values) + 1):
        step = PlaceboScan().newest(values[:runs], starts)
        if step is not None:
            starts.append(step.index)
            seen.append((step.index, step.seen))
    assert seen == [(step.index, step.seen) for step in PlaceboScan().detect(values)]


def test_a_creeping_loss_is_a_trend_and_noise_is_none() -> None:
    creeping = [value - 0.001 * run for run, value in enumerate(noise(160))]
    trend = slow_trend(creeping)
    assert trend is not None
    assert trend.low < -0.001 * trend.runs < trend.high < -0.1
    assert trend.p_value < 0.001
    quiet = slow_trend(noise(160))
    assert quiet is not None
    assert quiet.p_value > 0.1
    assert slow_trend(noise(70)) is None


def test_what_happened_near_a_change_is_named_the_nearest_first() -> None:
    times = [86400.0 * day for day in range(60)]
    del times[30:37]
    upgrade = Happening(times[32], "environment", "kernel")
    found = candidates(times, 30, [upgrade, *gaps(times)])
    assert [(one.happening.kind, one.runs) for one in found] == [("gap", 0), ("environment", 2)]
    assert found[0].happening.text == "no run for 192 h"
