"""Whatever fails and whenever it dies, the rules of docs/trust.md hold. `make sim` plays more."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from testing.packs import ROOT
from testing.simulated_crashes import Schedule, play
from testing.simulated_faults import PORT_FAULTS
from testing.simulated_mutants import MUTANTS
from testing.simulated_rules import RULES

SEEDS = 40
"""Within so many each mutant is to show itself. In which one changes with every call of the store
that comes or goes: faults strike by their number."""
OPERATIONS, CONTAINERS, CLUSTERS = range(6, SEEDS, 8), range(1, SEEDS, 2), range(0, SEEDS, 8)
ONLY = {
    "operation-without-journal": range(118, 119),
    "vm-given-up-before-its-marker": range(285, 286),
    "further-vm-without-journal": OPERATIONS,
    "clusters-further-vm-without-journal": CLUSTERS,
    "further-vm-taken-for-the-benchmark-vm": CLUSTERS,
    "container-without-journal": CONTAINERS,
    "container-forgotten": CONTAINERS,
}
"""Mutant -> the schedules that use what it breaks, see `simulated_crashes`; the rest: all. Two are
found in few schedules: their kill must hit one statement."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schedules")


@pytest.fixture(scope="module")
def played(place: Path) -> Callable[[int], Schedule]:
    """Play a seed's schedule, once for all tests."""
    return cache(lambda seed: play(seed, place))


@pytest.mark.parametrize("start", range(0, 20, 10))
def test_whatever_fails_and_whenever_it_dies_no_rule_is_broken(
    played: Callable[[int], Schedule], start: int
) -> None:
    for seed in range(start, start + 10):
        assert played(seed).broken.lines == [], f"seed {seed}"


def test_a_seed_reports_the_same_story_each_time(
    played: Callable[[int], Schedule], place: Path
) -> None:
    """Seed 2 is one whose second telling was another, while the cycles' names were drawn anew."""
    assert [play(2, place) for _ in range(3)].count(played(2)) == 3


def test_the_schedules_do_kill_and_each_fault_does_strike(
    played: Callable[[int], Schedule],
) -> None:
    some = [played(seed) for seed in range(10, 16)]
    assert sum(schedule.deaths for schedule in some) >= 3
    assert any(schedule.outcomes["failed"] for schedule in some)
    struck = {name for schedule in some for name, count in schedule.struck.items() if count}
    assert len(struck & set(PORT_FAULTS)) >= 3


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_pvebench_breaks_the_rule_that_it_should(place: Path, name: str) -> None:
    """The test of the test: each rule can be broken, and is seen to be."""
    mutant, rule = MUTANTS[name]
    with mutant():
        seeds = ONLY.get(name, range(SEEDS))
        assert any(rule in play(seed, place).broken.rules for seed in seeds)


def test_each_rule_has_its_mutant_and_its_row_in_the_docs() -> None:
    assert {rule for _, rule in MUTANTS.values()} == set(RULES)
    page = (ROOT / "docs" / "trust.md").read_text("utf-8")
    for rule, meaning in RULES.items():
        mutants = ", ".join(f"`{name}`" for name, (_, one) in MUTANTS.items() if one == rule)
        assert f"| {rule} | {meaning} | {mutants} |" in page
