"""The scan for changes at unknown times: once for each change, never for one glitch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pvebench.analysis import changepoints
from pvebench.analysis.case_history import CaseHistory
from pvebench.analysis.change import NearbyEvent, candidates, gaps
from pvebench.analysis.changepoints import Scanned
from pvebench.analysis.gradual_change import slow_trend
from pvebench.model.units import DAY
from testing.answers import material
from testing.noise import Series


def noise(runs: int, seed: int = 1, sigma: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.0, sigma) for _ in range(runs)]


def stepped(at: int, ratio: float, runs: int = 120, seed: int = 1) -> list[float]:
    return [
        value + (math.log(ratio) if run >= at else 0.0)
        for run, value in enumerate(noise(runs, seed))
    ]


def history_of(values: Sequence[float], times: Sequence[float] = ()) -> CaseHistory:
    """Return a history of logarithms, with one run a day unless there are times."""
    series = Series(np.array(times or DAY * np.arange(len(values))), np.array(values))
    return material([series], [{}]).histories[0]


def scan(values: Sequence[float], times: Sequence[float] = ()) -> Scanned:
    return changepoints.scan(history_of(values, times))


def steps_of(values: list[float]) -> list[int]:
    return [round(step.time / DAY) for step in scan(values).steps]


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.1])
def test_a_step_is_found_once_where_it_was(ratio: float) -> None:
    (found,) = scan(stepped(80, ratio)).steps
    assert abs(found.time / DAY - 80) <= 2
    assert [bool(scan(stepped(80, ratio)[:runs]).steps) for runs in (80, 95)] == [False, True]
    assert found.effect == pytest.approx(math.log(ratio), abs=0.03)


def test_a_place_that_is_passed_over_would_not_have_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    histories = [stepped(60 + seed, 1 - seed / 200, runs=160, seed=seed) for seed in range(20)]
    found = [scan(values) for values in histories]
    monkeypatch.setattr(changepoints, "WORTH", 0.0)
    assert [scan(values).steps for values in histories] == [one.steps for one in found]
    assert 5 < sum(bool(one.steps) for one in found) < 20
    assert any(one.doubt for one in found)


def test_a_bad_day_of_five_runs_is_a_doubt_and_no_step() -> None:
    values = stepped(80, 0.7)
    scanned = scan(values[:85])
    assert (scanned.steps, scanned.doubt is not None) == ((), True)
    values[85:] = noise(35, seed=9)
    assert steps_of(values) == []


def test_nine_runs_show_a_loss_of_a_tenth_unless_the_case_was_as_restless_before() -> None:
    values = stepped(80, 0.9)[:89]
    assert [round(index, -1) for index in steps_of(values)] == [80]
    swaying = [value + 0.05 * math.sin(run / 3) for run, value in enumerate(values)]
    assert (steps_of(swaying), scan(swaying).doubt is not None) == ([], True)


def test_further_runs_do_not_take_back_a_loss_after_few_runs() -> None:
    for a_day in (1, 48):
        values, times = stepped(50, 0.8, runs=140), [DAY / a_day * run for run in range(140)]
        assert all(scan(values[:runs], times[:runs]).steps for runs in range(57, 140))


def test_single_glitches_are_no_changes() -> None:
    for seed in range(1, 11):
        values = noise(100, seed)
        values[60] += math.log(0.5)
        values[80] += math.log(2.0)
        assert scan(values).steps == ()


def test_a_step_among_the_first_runs_is_found_when_there_are_more() -> None:
    values = stepped(20, 0.7)
    values[45:] = noise(75, seed=9)
    assert [round(index, -1) for index in steps_of(values[:44])] == [20]
    assert [abs(index - at) <= 2 for index, at in zip(steps_of(values), (20, 45), strict=True)]


def test_the_way_back_is_a_step_too_and_its_return_another_one() -> None:
    values = stepped(60, 0.8, runs=190)
    values[95:130] = noise(35, seed=9)
    found = scan(values).steps
    assert [round(step.time / DAY, -1) for step in found] == [60, 100, 130]


def test_a_found_step_does_not_hide_the_next() -> None:
    values = stepped(60, 1.6, runs=220)
    values[170:] = [value + math.log(0.85) for value in values[170:]]
    assert [abs(index - at) <= 2 for index, at in zip(steps_of(values), (60, 170), strict=True)]


def restless(runs: int) -> tuple[list[float], list[float]]:
    """Return runs with glitches whose level moves, now and then and at night; and their times."""
    rng, level, values = random.Random(1), 0.0, list[float]()
    times = [3600.0 * run for run in range(runs)]
    for run, value in enumerate(noise(runs)):
        level += rng.choice((-0.2, 0.15)) if rng.random() < 1 / 200 else 0.0
        glitch = rng.choice((0.0,) * 9 + (0.5,))
        values.append(value + level - glitch - (0.1 if run % 24 < 4 else 0.0))
    return values, times


def test_many_steps_do_not_make_each_border_be_tested_once_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested = list[int]()

    def border(levels: Any, *around: int) -> Any:
        tested.append(1)
        return real(levels, *around)

    real = changepoints._Levels._border
    monkeypatch.setattr(changepoints._Levels, "_border", border)
    values, times = restless(12_000)
    steps = scan(values, times).steps
    assert len(steps) > 30
    assert sum(tested) < 60 * len(steps)


def test_a_creeping_loss_is_a_trend_and_noise_is_none() -> None:
    creeping = [value - 0.001 * run for run, value in enumerate(noise(160))]
    trend = slow_trend(history_of(creeping))
    assert trend is not None
    assert trend.low < -0.001 * trend.runs < trend.high < -0.1
    assert trend.p_value < 0.001
    quiet = slow_trend(history_of(noise(160)))
    assert quiet is not None
    assert quiet.p_value > 0.1
    assert slow_trend(history_of(noise(70))) is None


def test_what_happened_near_a_change_is_named_the_nearest_first() -> None:
    times = [86400.0 * day for day in range(60)]
    del times[30:37]
    upgrade = NearbyEvent(times[32], "environment", "kernel")
    found = candidates(times, 30, [upgrade, *gaps(times)])
    assert [(one.kind, one.runs) for one in found] == [("gap", 0), ("environment", 2)]
    assert found[0].text == "no run for 192 h"
