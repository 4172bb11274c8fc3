"""State, openness and exit code follow from the present level, and a claim from what it is of."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from pvebench.analysis.difference import difference
from pvebench.analysis.judge import Judge
from pvebench.analysis.verdict import Verdict
from pvebench.verdicts.overall_state import WORSE, exit_code
from pvebench_lab.cli.judge import judged
from testing.answers import LEVEL, ask, material
from testing.noise import CV, KINDS, Series, clock, independent, stream, unchanged

EARLY = {"bursts": 7, "spikes": 9, "nightly backup": 9}
"""Fewest of twelve histories in which a loss is reported after ten runs."""


def verdict_on(series: Series) -> tuple[Verdict, bool]:
    """Return the verdict on a history, and whether it is red."""
    verdicts = judged(material([series], [{}]), Judge())
    return verdicts.verdicts[0], exit_code(verdicts, strict=False) == 1


CASES = json.loads(gzip.decompress((Path(__file__).parent / "cases.json.gz").read_bytes()))
"""Histories that were judged wrongly: values of the public benchmarks of deno, scipy and Neon, and
generated ones with the noise of real hosts."""


def case(name: str) -> Series:
    given = CASES[name]
    numbers = sorted(set(given["environments"]))
    return Series(
        np.array(given["times"], dtype=float),
        np.log(np.array(given["values"]) / LEVEL),
        tuple(str(numbers.index(one)) for one in given["environments"]),
    )


def with_level(name: str, runs: int, *levels: tuple[int, float]) -> Series:
    """Return 24 runs a day at these (first run, level)."""
    rng = stream(name)
    times = clock(rng, runs, 24)
    shift = np.zeros(runs)
    for first, level in levels:
        shift[first:] = level
    return Series(times, independent(rng, times) + shift)


@pytest.mark.parametrize("name", ["null-nearzero-24aday-2", "null-gcsaw-24aday-4"])
def test_a_loss_is_over_once_the_level_is_back_whatever_the_sizes_add_up_to(name: str) -> None:
    verdict, red = verdict_on(case(name))
    assert (str(verdict.state), red) == ("unchanged", False)


def test_a_loss_after_a_gain_is_the_state_and_the_exit_code() -> None:
    verdict, red = verdict_on(with_level("gain", 300, (60, np.log(1.4)), (220, np.log(1.15))))
    assert (str(verdict.state), red) == ("slower", True)
    assert verdict.effect == pytest.approx(np.log(1.15 / 1.4), abs=0.03)


@pytest.mark.parametrize("ratio", [1.0, 0.93, 1.3])
def test_the_exit_code_is_red_exactly_if_the_state_is(ratio: float) -> None:
    differ = []
    for kind in KINDS:
        rng = stream("q1", kind, 24, ratio, "cons")
        series = unchanged(kind, rng, 300, 24)
        series = series.changed(int(rng.integers(120, 290)), ratio)
        verdict, red = verdict_on(series)
        differ += [(kind, verdict.state, red)] if (verdict.state in WORSE) != red else []
    assert differ == []


def test_a_step_that_fades_away_stays_with_its_size_as_a_resolved_change() -> None:
    rng = stream(9, "back slowly")
    times = clock(rng, 420, 8)
    level = np.interp(np.arange(420), [99, 100, 180, 340], [0, -0.05, -0.05, 0])
    series = Series(times, independent(rng, times) / 3 + level)
    first = [one for one in ask(series).worse() if one.index(times.tolist()) == 100]
    assert [(round(one.ratio, 2), one.state) for one in first] == [(-0.05, "resolved")]
    assert "no longer confirmed" in first[0].text


def test_a_clear_step_between_lasting_levels_is_kept_however_much_varied_before() -> None:
    series = case("claimed-unchanged-deno-req_per_sec-deno_post_json")
    (change,) = ask(series).worse()
    assert abs(change.index(series.times.tolist()) - 1019) <= 3
    verdict, red = verdict_on(series)
    assert (str(verdict.state), red) == ("slower", True)


def test_no_claim_follows_from_the_runs_just_before_alone() -> None:
    verdict, _ = verdict_on(case("missed-neon-read_latency_max"))
    assert verdict.baseline_runs == 1500
    assert verdict.reason.endswith("1490 runs before vary too slowly to rule out 10%")


@pytest.mark.parametrize("loss", [0.04, 0.05, 0.06])
def test_no_claim_averages_the_latest_runs_with_those_since_a_recovery(loss: float) -> None:
    series = with_level("recovered", 300, (148, -0.35), (164, 0.0), (286, -loss))
    verdict, _ = verdict_on(series)
    assert verdict.excluded > loss


def test_no_claim_is_of_a_mode_that_few_early_runs_had() -> None:
    series = with_level("two modes", 300, (32, 0.1), (248, 0.015))
    verdict, _ = verdict_on(series)
    assert verdict.excluded > 0.085


@pytest.mark.parametrize("kind", ["bursts", "spikes", "nightly backup"])
def test_a_loss_of_a_fifth_is_reported_within_ten_runs_although_runs_strayed_before(
    kind: str,
) -> None:
    reported = []
    for number in range(12):
        series = unchanged(kind, stream("soon", kind, number), 150, 24).changed(140, 0.8)
        changes = ask(series).worse()
        reported.append(any(abs(one.index(series.times.tolist()) - 140) <= 5 for one in changes))
    assert sum(reported) >= EARLY[kind]


def test_a_steady_history_still_rules_out_small_changes() -> None:
    verdict, _ = verdict_on(with_level("steady", 600))
    assert str(verdict.state) == "unchanged"
    assert verdict.excluded < 0.04


@pytest.mark.parametrize("name", ["missed-scipy-expn", "gain of a foreign program"])
def test_a_large_gain_of_runs_that_are_not_of_a_storage_is_an_improvement(name: str) -> None:
    series = case(name) if name in CASES else with_level(name, 300, (150, np.log(9.0)))
    verdict, red = verdict_on(series)
    assert (str(verdict.state), red) == ("faster", False)
    assert "mplausible" not in " ".join(change.text for change in ask(series).changes)


def test_a_rollback_is_over_although_a_run_near_zero_is_on_each_side() -> None:
    series = case("rollback-red-nearzero")
    for runs in (226, 232, 240):
        verdict, red = verdict_on(series.until(runs))
        assert (str(verdict.state), red) == ("unchanged", False)
    assert [round(change.ratio, 2) for change in ask(series).worse()] == [-0.15]


@pytest.mark.parametrize("outlier", [np.log(0.001), np.log(0.01), np.log(0.2), np.log(30)])
@pytest.mark.parametrize("runs", [10, 25])
def test_one_outlier_hardly_moves_a_level_or_its_interval(outlier: float, runs: int) -> None:
    rng = stream("outlier", runs)
    before, after = rng.normal(0, CV, 60), rng.normal(-0.2, CV, runs)
    clean = difference(before, after)
    after[runs // 2] = outlier
    apart = difference(before, after)
    assert apart.effect == pytest.approx(clean.effect, abs=0.03)
    assert apart.high - apart.low < 2 * (clean.high - clean.low)


def test_runs_on_two_levels_are_no_step_to_the_middle_of_them() -> None:
    series = case("sentence-10-outburst")
    (change,) = ask(series).worse()
    assert change.index(series.times.tolist()) == 150
    assert np.log1p(change.low) <= np.log(0.75) <= np.log1p(change.high)


def test_a_loss_by_half_is_reported_although_bursts_were_worse() -> None:
    series = case("never-told-outburst-48aday-0.5")
    (change,) = ask(series).worse()
    assert change.index(series.times.tolist()) == 200
    assert change.ratio == pytest.approx(-0.5, abs=0.02)


@pytest.mark.parametrize("kind", ["slow wander", "slow sawtooth", "independent"])
def test_the_interval_of_a_size_includes_slow_variation(kind: str) -> None:
    held = []
    for number in range(24):
        rng = stream("interval", kind, number)
        series = unchanged(kind, rng, 180, 8).changed(120, 0.7)
        times = series.times.tolist()
        held += [
            np.log1p(one.low) <= np.log(0.7) <= np.log1p(one.high)
            for one in ask(series).worse()
            if abs(one.index(times) - 120) <= 4
        ]
    assert len(held) >= 20
    assert np.mean(held) >= 0.7


def first_days(name: str, ratio: float) -> Series:
    """Return 48 runs a day, before their hours recur: an upgrade after 50, a change after 90."""
    rng = stream(name)
    times = clock(rng, 100, 48)
    return Series(times, independent(rng, times)).changed(90, ratio).upgraded(50)


@pytest.mark.parametrize(
    ("ratio", "state", "changes"),
    [(0.93, "possibly_slower", 0), (1.08, "possibly_faster", 0), (0.8, "slower", 1)],
)
def test_a_change_that_no_earlier_hour_shows_is_reported_in_the_first_days(
    ratio: float, state: str, changes: int
) -> None:
    series = first_days("first days", ratio)
    answers = [ask(series.until(runs)) for runs in range(96, 101)]
    assert {answer.states[0] for answer in answers} == {state}
    assert [len(answer.changes) for answer in answers] == [changes] * 5


def test_what_a_day_has_shown_is_no_change_in_the_first_days() -> None:
    """A backup of 12 hours each night takes half, and one more takes the same at noon."""
    rng = stream("seen before")
    times = clock(rng, 100, 48)
    night = (np.arange(100) % 48 >= 24) & (np.arange(100) < 90)
    logs = independent(rng, times) + np.log(0.5) * (night | (np.arange(100) >= 92))
    assert "possibly" not in ask(Series(times, logs)).states[0]
