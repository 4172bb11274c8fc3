"""`pvebench judge` on histories that were once told wrongly: the sentence, each."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli

pytestmark = pytest.mark.lab

HOUR = 3600.0
START = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
"""A Monday."""
Captured = pytest.CaptureFixture[str]
Effect = Callable[[int, float], float]
"""(run, time) -> what the value is multiplied by."""


def written(
    path: Path,
    effect: Effect,
    *,
    runs: int,
    upgrade: int | None = None,
    cases: Sequence[str] = ("disk",),
    hours: float = 24.0,
) -> Path:
    rng = random.Random(3)
    lines = ["time,value,environment,case"]
    for case in cases:
        for run in range(runs):
            time = START + run * hours * HOUR
            value = 1000 * effect(run, time) * math.exp(rng.gauss(0, 0.03))
            stamp = (datetime.fromtimestamp(time, UTC) + timedelta(seconds=len(case))).isoformat()
            place = "9.2" if upgrade is not None and run >= upgrade else "9.1"
            lines.append(f"{stamp},{value:.2f},{place},{case}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def said(path: Path, capsys: Captured, *options: str) -> tuple[int, str]:
    status = run_cli(["judge", str(path), *options])
    return status, capsys.readouterr().out


def step(ratio: float, begin: int, end: int = 10**9) -> Effect:
    return lambda run, _: ratio if begin <= run < end else 1.0


@pytest.mark.parametrize("after", [1, 5, 60])
def test_half_the_speed_after_nineteen_runs(tmp_path: Path, capsys: Captured, after: int) -> None:
    cases = [f"case{number}" for number in range(9)]
    path = written(tmp_path / "a.csv", step(0.5, 19), runs=19 + after, upgrade=19, cases=cases)
    status, text = said(path, capsys)
    assert re.search("Everything is (49|50)% slower since environment 9.2", text)
    assert (status, text.splitlines()[0]) == (1, "1 regression: 9 slower")


def test_a_loss_among_the_first_runs_is_reported_with_its_end(
    tmp_path: Path, capsys: Captured
) -> None:
    path = written(tmp_path / "a.csv", step(0.7, 20, 45), runs=145)
    status, text = said(path, capsys)
    assert status == 0
    assert re.search("disk is (29|30|31)% slower since 2026-03-2", text)
    assert "[resolved 2026-04-1" in text
    assert "unchanged (back at the baseline, changes above" in " ".join(text.split())


def test_a_recovery_closes_a_change_and_its_return_opens_one(
    tmp_path: Path, capsys: Captured
) -> None:
    mended = step(0.8, 100, 160)
    status, text = said(written(tmp_path / "a.csv", mended, runs=310), capsys)
    assert status == 0
    assert re.search("disk is (19|20|21)% slower since 2026-06-", text)
    assert "[resolved 2026-08-" in text
    again = written(
        tmp_path / "b.csv", lambda run, at: 0.8 if run >= 310 else mended(run, at), runs=330
    )
    status, text = said(again, capsys)
    assert (status, text.splitlines()[0]) == (1, "1 regression: 1 slower")
    assert re.search("disk is (19|20|21)% slower since 2027-01-", text)


@pytest.mark.parametrize("after", [60, 100])
def test_five_percent_stay_reported(tmp_path: Path, capsys: Captured, after: int) -> None:
    path = written(tmp_path / "a.csv", step(0.95, 200), runs=200 + after)
    status, text = said(path, capsys)
    assert (status, text.splitlines()[0]) == (1, "1 regression: 1 slower")


def test_a_step_after_a_larger_one_is_reported(tmp_path: Path, capsys: Captured) -> None:
    path = written(
        tmp_path / "a.csv",
        lambda run, _: 1.0 if run < 60 else 1.6 if run < 170 else 1.6 * 0.85,
        runs=240,
    )
    _, text = said(path, capsys)
    assert re.search("is (59|60|61)% faster", text)
    assert re.search("is (14|15|16)% slower", text)


def nightly(_: int, time: float) -> float:
    return 0.6 if time // HOUR % 24 == 2 else 1.0


def test_a_fifth_less_is_reported_beside_a_nightly_backup(tmp_path: Path, capsys: Captured) -> None:
    quiet = written(tmp_path / "a.csv", nightly, runs=400, hours=1)
    status, text = said(quiet, capsys)
    assert status == 0
    assert "1 unchanged." in text

    def slower(run: int, time: float) -> float:
        return nightly(run, time) * (0.8 if run >= 300 else 1.0)

    _, text = said(written(tmp_path / "b.csv", slower, runs=310, hours=1), capsys)
    assert re.search("1 possibly slower|disk is", text)
    status, text = said(written(tmp_path / "c.csv", slower, runs=330, hours=1), capsys)
    assert status == 1
    assert re.search("disk is (19|20|21)% slower since 2026-03-14", text)


def test_what_neighbours_do_now_and_then_is_no_change(tmp_path: Path, capsys: Captured) -> None:
    def bursts(run: int, _: float) -> float:
        return 0.8 if run % 50 in (20, 21, 22, 23) else 1.0

    status, text = said(written(tmp_path / "a.csv", bursts, runs=290), capsys)
    assert status == 0
    assert "1 unchanged." in text


def by_day(_: int, time: float) -> float:
    return 0.8 if 8 <= time // HOUR % 24 < 18 else 1.0


def test_days_are_not_compared_with_nights(tmp_path: Path, capsys: Captured) -> None:
    def nights_then_days(run: int) -> float:
        return (run // 4 * 24 + (run % 4 if run < 60 else 9 + run % 4)) * HOUR + START

    path, rng = tmp_path / "a.csv", random.Random(5)
    lines = ["time,value,environment"]
    for run in range(72):
        time = nights_then_days(run)
        value = 1000 * by_day(run, time) * math.exp(rng.gauss(0, 0.02))
        lines.append(f"{time},{value},{'9.1' if run < 60 else '9.2'}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    status, text = said(path, capsys, "--strict")
    assert status == 10
    assert "no earlier runs at the hours of the latest runs" in " ".join(text.split())


def test_a_few_runs_by_day_are_no_baseline_of_a_day(tmp_path: Path, capsys: Captured) -> None:
    path, rng = tmp_path / "a.csv", random.Random(7)
    lines = ["time,value,environment,case"]
    hours = [
        run // 2 * 24 + 1 + 2 * (run % 2) + (run % 6 == 5) * rng.uniform(0, 20) for run in range(60)
    ]
    hours += [30 * 24 + 9 + run for run in range(5)]
    for case in range(9):
        for run, hour in enumerate(hours):
            time = START + hour * HOUR + case
            value = 1000 * by_day(run, time) * math.exp(rng.gauss(0, 0.03))
            lines.append(f"{time},{value},{'9.1' if run < 60 else '9.2'},case{case}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    status, text = said(path, capsys)
    assert (status, "slower since" in text) == (0, False)
    assert text.startswith("Inconclusive: ")


def test_a_gain_is_one_number(tmp_path: Path, capsys: Captured) -> None:
    _, text = said(written(tmp_path / "a.csv", step(1.17, 40), runs=100, upgrade=40), capsys)
    (line,) = [line for line in text.splitlines() if "faster since" in line]
    told = line.split(" is ")[1].split("% faster")[0]
    assert f"+{told}." in text.replace(f"+{int(told) - 1}.", f"+{told}.")
