"""The generated histories that detection is measured with, and how they are asked about."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pvebench.analysis.judge import Judge
from pvebench.cli.main import run_cli
from pvebench.model.run_metrics import JUDGED
from pvebench_lab.cli.judge import read_history
from testing.answers import LEVEL, ask, ask_node, material
from testing.fleets import fleet, labels_24, mixed_case
from testing.noise import KINDS, Series, clock, independent, modes, stream, unchanged


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_noise_depends_on_its_seed_alone(kind: str) -> None:
    first, again, other = (unchanged(kind, stream(seed, kind), 100) for seed in (1, 1, 2))
    assert np.array_equal(first.logs, again.logs)
    assert np.array_equal(first.times, again.times)
    assert not np.array_equal(first.logs, other.logs)
    assert np.isfinite(first.logs).all()
    assert (np.diff(first.times) >= 0).all()


def test_the_answer_is_that_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    series = unchanged("t3 tails", stream(7), 160, 8).changed(100, 0.7).upgraded(100)
    path = tmp_path / "0.csv"
    lines = ["time,value,environment"]
    for time, log, environment in zip(series.times, series.logs, series.environments, strict=True):
        lines.append(f"{float(time)!r},{float(LEVEL * np.exp(log))!r},{environment}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    answer = ask(series)
    assert run_cli(["judge", str(path), "--format", "json"]) == int(answer.red) == 1
    data = json.loads(capsys.readouterr().out)
    (change,), (moved,) = data["changes"], answer.changes
    assert moved.ratio == pytest.approx(change["moves"][0]["change_ratio"])
    assert moved.low == pytest.approx(change["moves"][0]["low_ratio"])
    assert moved.upgrade
    assert abs(moved.index(series.times.tolist()) - 100) <= 1
    assert {0: data["verdicts"][0]["state"]} == answer.states
    given = read_history(path, JUDGED["throughput"]).histories[0].points
    asked = material([series], [{}]).histories[0].points
    assert list(given.times) == pytest.approx(list(asked.times))
    assert list(given.values) == pytest.approx(list(asked.values))


def test_a_group_that_an_upgrade_slowed_is_named_with_its_labels() -> None:
    node = fleet(stream(8), labels_24(), 43).upgraded(40)
    slower = node.changed(40, 0.8, node.members(bus="scsi"))
    (change,) = ask_node(slower).changes
    assert change.group == {"bus": "scsi"}
    assert change.upgrade
    assert ask_node(node).changes == ()


def test_an_upgrade_three_runs_after_a_change_is_not_blamed_however_small_the_noise() -> None:
    for seed in (61, 62, 63):
        node = fleet(stream(seed, 1, 3.0, 0), labels_24(), 71).upgraded(63)
        slower = node.changed(60, 0.8, node.members(bus="virtio"))
        for cycles in (1, 3, 8):
            assert not ask_node(slower, 63 + cycles).blamed()


def test_a_group_is_named_while_nothing_is_known_of_the_other_cases() -> None:
    node = fleet(stream(61, 5, 8, 3, 0), labels_24(), 8, 8).upgraded(5)
    answer = ask_node(node.changed(5, 0.8, node.members(bus="virtio")))
    (change,) = answer.changes
    assert (change.group, change.upgrade) == ({"bus": "virtio"}, True)
    assert "inconclusive" in answer.states.values()


def test_a_changed_series_keeps_what_was_before() -> None:
    series = Series(np.arange(10.0), np.zeros(10)).changed(4, 0.5)
    assert series.logs.tolist() == [0.0] * 4 + [pytest.approx(np.log(0.5))] * 6
    assert series.upgraded(2, 5).environments == ("0", "0", "1", "1", "1", "2", "2", "2", "2", "2")
    assert len(series.until(3).times) == len(series.until(3).logs) == 3


def test_an_interval_holds_the_true_size_although_the_place_was_estimated() -> None:
    rng = stream(1, False, 36)
    runs = 100 + int(rng.integers(10, 60))
    effect = float(rng.choice([-1, -1, 1]) * np.exp(rng.uniform(np.log(0.03), np.log(0.6))))
    series = mixed_case(rng, runs, float(rng.choice([1, 4, 8, 24])))
    changes = ask(series.changed(100, float(np.exp(effect)))).changes
    (found,) = [one for one in changes if abs(one.index(series.times.tolist()) - 100) <= 8]
    assert np.log1p(found.low) <= effect <= np.log1p(found.high)


@pytest.mark.parametrize("kind", ["modes of about 25 runs", "day load 15%", "bursts"])
def test_run_by_run_ends_with_the_same_answer_as_from_nothing(kind: str) -> None:
    series, known = unchanged(kind, stream(4, kind), 260, 8).changed(180, 0.8), Judge()
    for runs in range(20, 260, 12):
        ask(series.until(runs), known)
    assert ask(series, known) == ask(series)


def test_a_mode_that_stays_is_a_level_although_single_runs_cross_the_middle() -> None:
    def stuck(number: int) -> Series:
        rng = stream(3, "stuck at the worse of two modes for 100 runs", number)
        times = clock(rng, 400, 8)
        logs = modes(rng, times)
        logs[300:] = independent(rng, times[300:]) - 0.1
        return Series(times, logs)

    assert all(ask(stuck(number)).red for number in (9, 16, 18, 21))


@pytest.mark.parametrize("seed", [2, 8])
def test_two_groups_that_one_upgrade_moved_show_what_their_own_cases_show(seed: int) -> None:
    node = fleet(stream(seed, "two groups"), labels_24(), 65, 4).upgraded(60)
    slower = node.changed(60, 0.8, node.members(bus="virtio"))
    changes = ask_node(slower.changed(60, 1.2, node.members(bus="scsi"))).changes
    found = {str(change.group): round(change.ratio, 1) for change in changes}
    assert {("{'bus': 'virtio'}", -0.2), ("{'bus': 'scsi'}", 0.2)} <= {*found.items()}
