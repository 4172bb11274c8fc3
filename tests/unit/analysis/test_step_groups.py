"""The same change on several nodes is told once; what differs stays apart."""

from __future__ import annotations

from dataclasses import replace

from pvebench.analysis.change import FactDifference
from pvebench.analysis.events import Event
from pvebench.analysis.step_groups import _differences, merge_nodes
from pvebench.verdicts.change_text import sentence
from testing.changes import DAY, FINDING, MOVE

FIRST = replace(
    FINDING,
    known=True,
    group=(("bus", "virtio"),),
    of=4,
    came_with=((FactDifference("kernel", "6.8.12-4-pve", "6.14.8-2-pve"),),),
)
SECOND = replace(
    FIRST,
    begin=90 * DAY,
    nodes=("pve2",),
    cases=("e", "f"),
    names=("e", "f"),
    of=2,
    moves=(replace(MOVE, effect=-0.26, low=-0.3, high=-0.24, cases=2, runs=3),),
    came_with=((FactDifference("kernel", "6.11.11-2-pve", "6.14.8-2-pve"),),),
)


def test_the_same_new_version_that_did_the_same_on_two_nodes_is_one_change() -> None:
    (found,) = merge_nodes([FIRST, SECOND])
    assert sentence(found) == (
        "Everything on virtio is 20% slower since kernel 6.14.8-2-pve "
        "(95% CI 16-26%; all 6 cases, 3 runs; on pve1 and pve2)"
    )
    assert (found.begin, found.cases) == (90 * DAY, ("a", "b", "c", "d", "e", "f"))


def test_what_differs_in_size_version_or_cases_stays_apart() -> None:
    further = (replace(MOVE, effect=-0.5, low=-0.55, high=-0.45),)
    other_kernel = (FactDifference("kernel", "6.8.12-4-pve", "6.17.1-1-pve"),)
    for other in (
        replace(SECOND, moves=further),
        replace(SECOND, came_with=(other_kernel,)),
        replace(SECOND, group=(("bus", "scsi"),)),
        replace(SECOND, known=False),
        replace(SECOND, nodes=("pve1",)),
        replace(SECOND, state="accepted"),
    ):
        assert len(merge_nodes([FIRST, other])) == 2


def test_three_nodes_are_reported_once_too() -> None:
    (found,) = merge_nodes([SECOND, FIRST, replace(FIRST, nodes=("pve3",))])
    assert found.nodes == ("pve1", "pve2", "pve3")
    assert "on pve1, pve2 and pve3)" in sentence(found)
    assert found.moves[0].cases == 10


def test_a_part_of_the_cases_is_not_called_everything() -> None:
    part = replace(FIRST, of=5)
    assert sentence(part).startswith(
        "Most cases on virtio are 18% slower since kernel 6.14.8-2-pve"
    )
    assert "; 4 of 5 cases, 5 runs" in sentence(part)
    assert sentence(replace(part, group=())).startswith("Most cases are 18% slower")
    assert sentence(replace(part, group=(), of=8)).startswith("Some cases are 18% slower")
    nearly = replace(part, cases=tuple("abcdefghi"), of=10)
    assert sentence(nearly).startswith("Nearly everything on virtio is 18% slower")
    assert sentence(replace(part, group=(), of=4)).startswith("Everything is 18% slower")
    assert sentence(replace(part, kind="drift")).startswith("Most cases on virtio are gradually")
    # A group with a name, and the cases without a label, are no more than these words say.
    write = (("rw", "randwrite"), ("bus", "virtio"))
    assert sentence(replace(part, group=write)).startswith("Random write on virtio is 18% slower")
    assert sentence(replace(part, all_but=True)).startswith("Everything except on virtio is 18%")


def test_an_option_of_another_storage_is_no_cause_beside_one_of_its_own() -> None:
    before = {"storage a sync": "standard", "storage b sync": "standard", "kernel": "6.8"}
    after = dict.fromkeys(before, "other")
    both = [Event(time=1.0, before=before, after=after)]
    (own,) = _differences(both, {"a"})
    assert [one.fact for one in own] == ["kernel", "storage a sync"]
    others = [Event(time=1.0, before=before, after={**before, "storage b sync": ""})]
    (only,) = _differences(others, {"a"})  # it happened then, and there is no other cause
    assert [one.fact for one in only] == ["storage b sync"]
