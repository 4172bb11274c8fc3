"""Steady state, by values and in simulated time."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from pvebench.model.run import Outcome
from pvebench.model.status import Phase
from pvebench.model.workload import SteadyRule
from pvebench.runner.steady import is_steady, steadiness
from pvebench_lab.simulated.simulated_hypervisor import SimulatedJob
from testing.packs import SMALL, write_pack
from testing.simulations import simulate

STEADY = SMALL.replace(
    "  runtime: 2s\n", "  runtime: 2s\n  steady: {interval: 10s, window: 5, limit: 5m}\n"
)


@pytest.mark.parametrize(("tau", "stops"), [(5, 27), (10, 40), (20, 58), (30, 67)])
def test_a_decaying_rate_is_steady_when_the_rule_says_so(tau: int, stops: int) -> None:
    """One value a minute of 20k + 80k·e^(-t/τ), a window of 10."""
    rule = SteadyRule(window=10)
    values: list[float] = []
    for minute in itertools.count(1):
        values.append(20_000 + 80_000 * math.exp(-minute / tau))
        if is_steady(values, rule):
            break
    assert len(values) == stops


def test_fewer_values_than_the_window_are_never_steady() -> None:
    assert not is_steady([100.0] * 4, SteadyRule())
    assert is_steady([100.0] * 5, SteadyRule())


def test_only_the_newest_window_counts() -> None:
    assert is_steady([1e6, 1e5, *[100.0] * 5], SteadyRule())


@pytest.mark.parametrize(
    ("values", "steady"),
    [
        ([100, 90, 110, 100, 100], True),
        ([100, 89, 110, 100, 100], False),  # range of 21 %
        ([95, 97, 100, 103, 105], False),  # the line rises by 10.4 %
        ([96, 98, 100, 102, 104], True),
    ],
)
def test_range_and_slope_are_both_limits(values: list[float], *, steady: bool) -> None:
    assert is_steady(values, SteadyRule()) is steady


def test_the_slope_has_a_sign_and_no_rate_has_no_steadiness() -> None:
    falling = steadiness([110.0, 105.0, 100.0])
    assert falling is not None
    assert falling.slope_ratio == pytest.approx(-10 / 105)
    assert steadiness([0.0, 0.0, 0.0]) is None
    assert steadiness([1.0, 1.0]) is None


def test_a_pack_with_steady_runs_each_workload_until_it_is_and_keeps_the_rates(
    tmp_path: Path,
) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, STEADY))
    simulation.worker.run()
    run = simulation.recorder.runs[0]
    samples = {sample.metric: sample.value for sample in run.samples}
    assert run.outcome is Outcome.OK
    assert 50 <= samples["steady_time"] < 70
    assert abs(samples["steady_slope"]) < 0.1
    assert len(run.evidence["steady_rates"].splitlines()) == 5
    assert (run.case.slug, Phase.SETTLE) in simulation.recorder.phases


def test_a_rate_that_never_settles_is_measured_and_said_to_be_not_steady(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growing(self: SimulatedJob, now: float, **_: float) -> int:
        return round(max(0.0, now - self.begun - 0.3) ** 4)

    monkeypatch.setattr(SimulatedJob, "operations", growing)
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, STEADY))
    simulation.worker.run()
    run = simulation.recorder.runs[0]
    assert run.outcome is Outcome.NOT_STEADY
    assert run.reason.startswith("not steady after 30")
    assert run.reason.endswith("; raise `limit` of `steady`")
    assert "iops" in {sample.metric for sample in run.samples}
    record = simulation.store.cases().get(run.case.key)
    assert record is not None
    assert record.failures_in_row == 0


def test_intervals_that_vary_more_than_the_pack_allows_make_a_run_noisy(tmp_path: Path) -> None:
    text = SMALL.replace("  runtime: 2s\n", "  runtime: 20s\n  noisy: 0.1%\n")
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, text))
    simulation.worker.run()
    run = simulation.recorder.runs[0]
    assert run.outcome is Outcome.NOISY
    assert "exceeds 0%" in run.reason
    assert run.samples


def test_repeats_run_a_case_several_times_a_round_of_its_scenario_apart(tmp_path: Path) -> None:
    text = SMALL.replace("  runtime: 2s\n", "  runtime: 2s\n  repeats: 3\n") + (
        "  - fio: {rw: randwrite, bs: 4k}\n"
    )
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, text))
    simulation.worker.run()
    slugs = [run.case.slug for run in simulation.recorder.runs]
    assert len(slugs) == 12
    assert all(slugs.count(slug) == 3 for slug in slugs)
    assert all(len({*slugs[start : start + 2]}) == 2 for start in range(0, 12, 2))
    attached = [phase for _, phase in simulation.recorder.phases if phase is Phase.FILL]
    assert len(attached) == 1
