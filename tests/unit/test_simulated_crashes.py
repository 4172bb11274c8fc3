"""Killed at any moment: nothing is lost, doubled, mislabelled or left. `make sim` plays more."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.packs import write_pack
from support.simulated_crashes import ForgetfulJournal, play


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_whatever_fails_and_whenever_it_dies_nothing_is_lost_doubled_or_left(
    tmp_path: Path, start: int
) -> None:
    pack = write_pack(tmp_path)
    for seed in range(start, start + 10):
        schedule = play(seed, tmp_path, pack)
        assert schedule.wrong == [], f"seed {seed}"


def test_the_schedules_do_kill_and_do_fail(tmp_path: Path) -> None:
    pack = write_pack(tmp_path)
    played = [play(seed, tmp_path, pack) for seed in range(20)]
    assert sum(schedule.deaths for schedule in played) >= 10
    assert any(schedule.outcomes["failed"] for schedule in played)


def test_without_the_journal_the_same_schedules_leave_things_behind(tmp_path: Path) -> None:
    """The test of the test: it sees what the journal is for."""
    pack = write_pack(tmp_path)
    played = [play(seed, tmp_path, pack, journalled=ForgetfulJournal) for seed in range(10)]
    left = [line for schedule in played for line in schedule.wrong]
    assert any("VM lab is left" in line for line in left)
    assert any("volume local.raw is left" in line for line in left)
