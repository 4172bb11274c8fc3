"""The protocol of the fleet holds its rules in simulated faults, and the simulation can fail.

The rules are those of `testing.simulated_fleet`; each mutant breaks the protocol in one place.
"""

from __future__ import annotations

from collections import Counter

import pytest

from testing.fleet_mutants import MUTANTS
from testing.simulated_fleet import Schedule

SCHEDULES = 120
STRIKES = (
    "answer lost",
    "request lost",
    "request doubled",
    "late request",
    "refused",
    "hub killed",
    "hub restored",
    "site restored",
    "cloned",
)
SEEDS = {
    "do-nothing": 2,
    "sequence-only": 4,
    "no-process": 2,
    "cursor-first": 0,
    "higher-revision": 6,
    "no-undo": 58,
    "no-resend": 36,
    "skip-corrected": 1,
    "no-question": 33,
    "no-holding": 10,
}
"""Mutant -> a schedule that shows it."""


def test_no_fault_breaks_a_rule_and_every_kind_of_fault_strikes() -> None:
    struck: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        schedule = Schedule(seed).play()
        assert schedule.broken == [], seed
        struck.update(schedule.struck)
    assert all(struck[name] >= 10 for name in STRIKES), struck


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_protocol_breaks_a_rule(mutant: str) -> None:
    with MUTANTS[mutant]():
        assert Schedule(SEEDS[mutant]).play().broken
