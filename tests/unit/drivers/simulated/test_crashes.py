"""Whatever fails and whenever it dies, the rules of docs/trust.md hold. `make sim` plays more."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.packs import ROOT
from testing.simulated_crashes import play
from testing.simulated_faults import PORT_FAULTS
from testing.simulated_mutants import MUTANTS
from testing.simulated_rules import RULES

SEEDS = 40
"""Within so many each mutant is to show itself. In which one changes with every call of the store
that comes or goes: faults strike by their number."""


@pytest.mark.parametrize("start", range(0, 20, 10))
def test_whatever_fails_and_whenever_it_dies_no_rule_is_broken(tmp_path: Path, start: int) -> None:
    for seed in range(start, start + 10):
        assert play(seed, tmp_path).broken.lines == [], f"seed {seed}"


def test_a_seed_reports_the_same_story_each_time(tmp_path: Path) -> None:
    """Seed 2 is one whose second telling was another, while the cycles' names were drawn anew."""
    assert [play(2, tmp_path) for _ in range(3)].count(play(2, tmp_path)) == 3


def test_the_schedules_do_kill_and_each_fault_does_strike(tmp_path: Path) -> None:
    played = [play(seed, tmp_path) for seed in range(30, 36)]
    assert sum(schedule.deaths for schedule in played) >= 3
    assert any(schedule.outcomes["failed"] for schedule in played)
    struck = {name for schedule in played for name, count in schedule.struck.items() if count}
    assert len(struck & set(PORT_FAULTS)) >= 3


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_pvebench_breaks_the_rule_that_it_should(tmp_path: Path, name: str) -> None:
    """The test of the test: each rule can be broken, and is seen to be."""
    mutant, rule = MUTANTS[name]
    with mutant():
        assert any(rule in play(seed, tmp_path).broken.rules for seed in range(SEEDS))


def test_each_rule_has_its_mutant_and_its_row_in_the_docs() -> None:
    assert {rule for _, rule in MUTANTS.values()} == set(RULES)
    page = (ROOT / "docs" / "trust.md").read_text("utf-8")
    for rule, meaning in RULES.items():
        mutants = ", ".join(f"`{name}`" for name, (_, one) in MUTANTS.items() if one == rule)
        assert f"| {rule} | {meaning} | {mutants} |" in page
