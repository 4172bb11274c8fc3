"""Recorded answers of a real API against those of the test API."""

from __future__ import annotations

from pathlib import Path

import pytest

import pve
from pve.behaviours import NAMES, Behaviors, holds
from pve.replay import Verdict, compare, replay, report

HERE = Path(pve.__file__).parent


@pytest.mark.parametrize("major", [8, 9])
@pytest.mark.parametrize(("kind", "matched"), [("", 315), ("admin-", 80)])
def test_the_test_api_answers_as_the_real_one_or_it_is_known_why_not(
    tmp_path: Path, major: int, kind: str, matched: int
) -> None:
    verdicts = replay(HERE / f"recordings-{kind}{major}.jsonl", tmp_path, major)
    played = [one for one in verdicts if not one.left_out]
    assert [one for one in played if one.difference and not one.reason] == []
    assert sum(not one.difference for one in played) > matched


@pytest.mark.parametrize("major", [8, 9])
@pytest.mark.parametrize("name", NAMES)
def test_the_test_api_behaves_as_the_real_one(tmp_path: Path, major: int, name: str) -> None:
    assert holds(name, tmp_path, major), getattr(Behaviors, name).__doc__


def test_an_answer_that_differs_is_reported_with_both(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"path": "/x", "status": 200, "reason": "OK", "body": {"data": []}}
    assert compare(record, 403, "no", None, {}) == "403 'no', not 200 'OK'"
    assert compare(record, 200, "", {}, {}) == "answers dict, not list"
    refused = {"path": "/x", "status": 400, "reason": "no", "body": {"errors": {"a": "bad form"}}}
    assert compare(refused, 400, "no", None, {"a": "other"}) == "says 'other' of a, not 'bad form'"
    listed = {"path": "/s/content", "status": 200, "body": {"data": [{"volid": "x:1"}]}}
    assert "x:1" in compare({**listed, "reason": ""}, 200, "", [], {})
    known, unknown = (
        Verdict("x7.background_delay-slow", "GET /x", "d"),
        Verdict("new", "GET /x", "d"),
    )
    assert known.reason
    assert report("file", [known, unknown, Verdict("a", "GET /x", "")]) == 1
    assert "file: 1 matched, 1 differ as explained, 1 unexplained, 0 not played" in (
        capsys.readouterr().out
    )
    assert Verdict("new.case", "GET /x", "differs").reason == ""
