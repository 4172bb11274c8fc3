"""Events close together: named both where the runs between them do not tell which it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pvebench.analysis.case_history import CaseHistory, GoodRuns
from pvebench.analysis.change import Change
from pvebench.analysis.judge import Judge, Material
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.overall_state import change_data
from testing.histories import AFTER, BEFORE, Effect, Labels, after_change, histories

ONE = {"bus": "virtio", "cache": "none", "format": "raw", "rw": "randwrite"}
SECOND = {**AFTER, "kernel": "6.11.11-1-pve"}
THIRD = {**SECOND, "zfs": "2.3.1-1"}


def upgraded(effect: Effect, *places: int, runs: int = 48, noise: float = 0.02) -> Material:
    """A single case whose environment changes at the runs `places`."""
    found = histories(effect, labels=[ONE], runs=runs, changed_at=runs, noise=noise)
    return material_of([in_environments(one, places) for one in found])


def in_environments(history: CaseHistory, places: Sequence[int]) -> CaseHistory:
    points = GoodRuns(
        replace(point, environment=str(sum(run >= place for place in places)))
        for run, point in enumerate(history.points)
    )
    return replace(history, points=points)


def material_of(found: Sequence[CaseHistory]) -> Material:
    timeline = sorted({(point.time, point.environment) for one in found for point in one.points})
    facts = {str(number): own for number, own in enumerate((BEFORE, AFTER, SECOND, THIRD))}
    return Material(node="", histories=found, timeline=timeline, facts=facts)


def told(material: Material) -> Change:
    (finding,) = Judge().judge(material).findings
    return finding


@pytest.mark.parametrize("moved_at", [40, 41])
def test_of_two_upgrades_a_run_apart_neither_is_blamed_alone(moved_at: int) -> None:
    finding = told(upgraded(after_change(0.8, moved_at), 40, 41))
    assert " since pve-qemu-kvm 9.2.0-2 or kernel 6.11.11-1-pve (1 run apart) (95% CI" in (
        sentence(finding)
    )
    assert change_data(finding)["separable"] is False


def test_a_loss_that_the_runs_between_do_not_show_clearly_is_reported_with_both_upgrades() -> None:
    finding = told(upgraded(after_change(0.93, 42), 40, 42, noise=0.05, runs=100))
    assert "pve-qemu-kvm 9.2.0-2 or kernel 6.11.11-1-pve (2 runs apart)" in (sentence(finding))


def test_the_runs_between_two_upgrades_tell_which_it_was() -> None:
    first = told(upgraded(after_change(0.8, 40), 40, 42))
    assert " is 20% slower since pve-qemu-kvm 9.2.0-2 (95% CI" in sentence(first)
    second = told(upgraded(after_change(0.8, 42), 40, 42))
    assert " is 20% slower since kernel 6.11.11-1-pve (95% CI" in sentence(second)
    assert first.begin == second.begin - 2 * 86400
    assert change_data(second)["separable"] is True


def test_two_losses_close_together_are_each_reported_with_their_own_upgrade() -> None:
    def twice(labels: Labels, figure: str, run: int) -> float:
        return 1.0 if run < 40 else 0.8 if run < 46 else 0.6

    found = Judge().judge(upgraded(twice, 40, 46, runs=60)).findings
    texts = [sentence(one) for one in found]
    assert "25% slower since kernel 6.11.11-1-pve (" in texts[0]
    assert "20% slower since pve-qemu-kvm 9.2.0-2 (" in texts[1]


def test_of_three_upgrades_those_that_cannot_be_it_are_left_out() -> None:
    text = sentence(told(upgraded(after_change(0.8, 44), 40, 44, 45, runs=60)))
    assert " since kernel 6.11.11-1-pve or ZFS 2.3.1-1 (1 run apart) (" in text


def test_upgrades_between_which_a_case_was_not_run_are_named_together() -> None:
    alone = histories(after_change(0.7, 41, bus="virtio"), runs=48, changed_at=48)
    found = [in_environments(one, (40, 41)) for one in alone]
    # Only another case was run between the two upgrades.
    found = [
        one
        if one.labels["bus"] == "scsi"
        else replace(one, points=GoodRuns([*one.points[:40], *one.points[41:]]))
        for one in found
    ]
    text = sentence(told(material_of(found)))
    assert text.startswith("Everything on virtio is 30% slower since pve-qemu-kvm 9.2.0-2 or")
    assert " or kernel 6.11.11-1-pve (no run between them) (" in text
    assert json.dumps(change_data(told(material_of(found))))
