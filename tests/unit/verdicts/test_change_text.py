"""A change of a part of the cases is never called everything."""

from __future__ import annotations

import pytest

from pvebench.analysis.case_history import Group
from pvebench.analysis.change import Change, Move
from pvebench.model.run_metrics import JUDGED
from pvebench.verdicts.change_text import brief, interval_text, percent_text, sentence

VIRTIO: Group = (("bus", "virtio"),)


def change(group: Group, cases: int, of: int) -> Change:
    move = Move(
        figure=JUDGED["throughput"],
        effect=-0.2,
        low=-0.3,
        high=-0.1,
        cases=cases,
        runs=9,
        p_value=0.0,
    )
    names = tuple(f"case {number}" for number in range(cases))
    return Change(
        begin=0.0,
        nodes=("lab",),
        known=False,
        group=group,
        all_but=False,
        cases=names,
        names=names,
        of=of,
        moves=(move,),
    )


@pytest.mark.parametrize(
    ("group", "cases", "of", "begin"),
    [
        (VIRTIO, 6, 6, "Everything on virtio is 18% slower"),
        (VIRTIO, 4, 6, "Most cases on virtio are 18% slower"),
        ((), 4, 6, "Most cases are 18% slower"),
    ],
)
def test_a_part_is_called_a_part(group: Group, cases: int, of: int, begin: str) -> None:
    one = change(group, cases, of)
    assert sentence(one).startswith(begin)
    assert brief(one).startswith(begin.partition(" is ")[0].partition(" are ")[0])


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.006, 0.002, 0.009), "0.6% (0.2-0.9%)"),  # no interval of a certain change ends at 0
        ((0.0995, 0.0951, 0.1049), "10% (9.5-10.5%)"),
        ((-0.9996, -0.9999, -0.9), "100% (90-100%)"),
        ((1.6, 1.4, 1.8), "2.6 times (2.4-2.8 times)"),  # both in the same unit
        ((1246.0, 1239.0, 1251.0), "1,247 times (1,240-1,252 times)"),
    ],
)
def test_a_change_and_its_interval_round_alike(ends: tuple[float, float, float], text: str) -> None:
    assert f"{percent_text(ends[0])} ({interval_text(*ends)})" == text
