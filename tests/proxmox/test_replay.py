"""Recorded answers of a real API against those of the test API."""

from __future__ import annotations

from pathlib import Path

import pytest

import pve
from pve.replay import Verdict, compare, replay

HERE = Path(pve.__file__).parent


@pytest.mark.parametrize("major", [8, 9])
def test_the_test_api_answers_as_the_real_one_or_it_is_known_why_not(
    tmp_path: Path, major: int
) -> None:
    verdicts = replay(HERE / f"recordings-{major}.jsonl", tmp_path, major)
    played = [one for one in verdicts if not one.left_out]
    assert [one for one in played if one.difference and not one.reason] == []
    assert sum(not one.difference for one in played) > 315


def test_an_answer_that_differs_is_told_with_both() -> None:
    record = {"path": "/x", "status": 200, "reason": "OK", "body": {"data": []}}
    assert compare(record, 403, "no", None, {}) == "403 'no', not 200 'OK'"
    assert compare(record, 200, "", {}, {}) == "answers dict, not list"
    assert Verdict("new.case", "GET /x", "differs").reason == ""
