"""One event is one change in the list, although detection finds its cases in several ways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.change import Change, FactDifference
from pvebench.analysis.step_groups import of_one_event
from pvebench.analysis.verdict import Verdict, VerdictState
from pvebench.model.run_metrics import JUDGED
from pvebench.verdicts.change_text import sentence
from testing.changes import DAY, FINDING, MOVE

RUNS = GoodRuns(GoodRun(day * DAY, "", 1.0) for day in range(200))
KERNEL = ((FactDifference("kernel", "6.14.4-1-pve", "6.14.5-1-pve"),),)
VIRTIO = (("bus", "virtio"),)
UPGRADE = replace(FINDING, known=True, came_with=KERNEL, state="resolved", end=128 * DAY)
MOST = replace(UPGRADE, cases=("a", "b", "c", "d"), names=("a", "b", "c", "d"), group=VIRTIO, of=6)
LATER = replace(UPGRADE, cases=("e", "f"), names=("e", "f"), end=134 * DAY)


def changes(*found: Change, unknown: str = "") -> tuple[Change, ...]:
    """Return the changes of a node: a to f are on virtio, s to z on scsi.

    Args:
        unknown: cases without a conclusive verdict.
    """
    buses = dict.fromkeys("abcdef", "virtio") | dict.fromkeys("stuvwxyz", "scsi")
    verdicts = tuple(
        Verdict(
            history=CaseHistory(
                case=case,
                of=case,
                name=case,
                figure=MOVE.figure,
                labels={"bus": bus, "tool": "fio"},
                points=RUNS,
            ),
            state=VerdictState.INCONCLUSIVE if case in unknown else VerdictState.UNCHANGED,
        )
        for case, bus in buses.items()
    )
    return of_one_event(found, verdicts)


def test_four_of_six_cases_and_two_that_end_later_are_one_change() -> None:
    for found in ((MOST, LATER), (LATER, MOST)):
        (change,) = changes(*found)
        assert set(change.cases) == set("abcdef")
        assert (change.group, change.of, change.end) == (VIRTIO, 6, 128 * DAY)
        text = sentence(change, evidence=False)
        assert text == (
            "Everything on virtio is 18% slower since kernel 6.14.5-1-pve (all 6 cases; on pve1) "
            "[resolved 1970-05-09 after 28 days]"
        )


def test_what_another_metric_of_the_same_cases_shows_is_part_of_the_change() -> None:
    stall = replace(MOVE, figure=JUDGED["longest_stall"], effect=-0.2)
    whole = replace(MOST, cases=tuple("abcdef"), names=tuple("abcdef"))
    part = replace(MOST, cases=("a", "b"), names=("a", "b"), moves=(stall,))
    for found in ((whole, part), (part, whole)):
        (change,) = changes(*found)
        assert [move.figure.name for move in change.moves] == ["throughput", "longest_stall"]
        assert change.cases == whole.cases
    # The other way round, it would hide the slower cases.
    assert len(changes(replace(whole, moves=(stall,)), replace(part, moves=(MOVE,)))) == 2


def test_a_group_has_no_label_that_all_cases_with_its_metric_have() -> None:
    (change,) = changes(replace(MOST, group=(*VIRTIO, ("tool", "fio"))))
    assert change.group == VIRTIO


def test_cases_without_a_verdict_still_show_which_labels_the_others_lack() -> None:
    for found in ((MOST,), (MOST, LATER)):
        (change,) = changes(*found, unknown="stuvwxyz")
        assert change.group == VIRTIO
        assert " on virtio " in sentence(change)
    (change,) = changes(MOST, unknown="abcdef")
    assert change.of == len(change.cases)


def test_cases_without_a_common_label_are_listed() -> None:
    (change,) = changes(MOST, replace(LATER, cases=("s",), names=("s",)))
    assert change.group is None
    assert sentence(change).startswith("a, b, c and 2 more are 18% slower")


@pytest.mark.parametrize(
    "other",
    [
        replace(LATER, state="open", end=None),
        replace(LATER, moves=(replace(MOVE, effect=0.2),)),
        replace(LATER, moves=(replace(MOVE, effect=-0.6),)),
        replace(LATER, begin=108 * DAY),
        replace(LATER, came_with=((FactDifference("qemu", "9", "10"),),)),
        replace(LATER, known=False, came_with=()),
        replace(LATER, kind="bursts"),
        replace(LATER, back=True),
        replace(LATER, all_but=True, group=VIRTIO),
    ],
    ids=[
        "it lasts",
        "it got better",
        "far more",
        "a later upgrade to the same version",
        "other versions",
        "an unknown cause",
        "only some runs",
        "a return to an earlier level",
        "all but a group",
    ],
)
def test_what_may_have_another_cause_or_state_stays_separate(other: Change) -> None:
    assert len(changes(MOST, other)) == 2
