"""A change is dated to an upgrade only if it began there."""

from __future__ import annotations

import pytest

from testing.answers import answered, ask, ask_node, material
from testing.fleets import fleet, labels_24
from testing.noise import Series, stream, unchanged

UPGRADE = 100


def beside(kind: str, rate: int, runs: int, ratio: float = 0.8) -> Series:
    """Return a history with a change so many runs after an upgrade that changes nothing."""
    series = unchanged(kind, stream("beside", kind, rate, runs), UPGRADE + 40, rate)
    return Series(series.times, series.logs).changed(UPGRADE + runs, ratio).upgraded(UPGRADE)


@pytest.mark.parametrize("kind", ["independent", "AR(1)", "t3 tails", "quantized"])
@pytest.mark.parametrize("runs", [-8, -5, -3, 3, 4, 6, 8])
def test_an_upgrade_is_not_blamed_for_a_change_some_runs_beside_it(kind: str, runs: int) -> None:
    for rate in (1, 8):
        series = beside(kind, rate, runs)
        for later in (8, 14, 30):
            assert not ask(series.until(UPGRADE + max(runs, 0) + later)).blamed()
        (change,) = ask(series).worse()
        assert abs(change.index(series.times.tolist()) - UPGRADE - runs) <= 2


@pytest.mark.parametrize("kind", ["independent", "t3 tails", "quantized"])
def test_an_upgrade_is_named_for_a_change_that_began_with_it(kind: str) -> None:
    for ratio in (0.8, 0.9):
        (change,) = ask(beside(kind, 8, 0, ratio)).blamed()
        assert change.ratio < 0


@pytest.mark.parametrize("runs", [4, 7])
def test_a_group_that_changed_after_an_upgrade_is_dated_to_its_own_runs(runs: int) -> None:
    node = fleet(stream("later group", runs), labels_24(), UPGRADE + 20).upgraded(UPGRADE)
    slower = node.changed(UPGRADE + runs, 0.8, node.members(bus="virtio"))
    answer = ask_node(slower)
    assert not answer.blamed()
    assert sum(len(change.cases) for change in answer.worse()) == 8


def test_cases_of_which_half_have_one_run_after_an_upgrade_and_half_three_are_judged() -> None:
    node = fleet(stream("halves"), labels_24()[:6], 63, 8).upgraded(60)
    runs = [one.until(63 if place % 2 else 61) for place, one in enumerate(node.series())]
    assert answered(material(runs, node.labels)).changes == ()
