"""Results on the console: a run is neither called better nor worse than it is."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pvebench.cli.progress import Progress, conclude, result_text
from pvebench.errors import CycleIncomplete
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.workload import Direction
from testing.stored_runs import run as stored

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([Outcome.OK] * 3, "3 of 3 cases ok"),
        ([Outcome.OK, Outcome.NOISY, Outcome.NOISY], "1 of 3 cases ok, 2 noisy"),
        ([Outcome.NOT_STEADY, Outcome.NOISY], "0 of 2 cases ok, 1 noisy, 1 not_steady"),
    ],
)
def test_a_noisy_case_is_not_called_ok_at_the_end(
    outcomes: Sequence[Outcome], said: str, capsys: Captured
) -> None:
    """Its result counts, so the command ends well: seen in a container where ten of twelve were."""
    conclude(outcomes, Path())
    assert capsys.readouterr().out.splitlines()[0] == said


def test_a_case_without_a_result_ends_the_command_with_its_outcome(capsys: Captured) -> None:
    with pytest.raises(
        CycleIncomplete, match=r"1 of 3 cases have no publishable result \(failed\)"
    ) as raised:
        conclude([Outcome.OK, Outcome.NOISY, Outcome.FAILED], Path("/srv/state"))
    assert "`pvebench results --not-ok --state /srv/state`" in raised.value.next_step
    assert capsys.readouterr().out.startswith("1 of 3 cases ok, 1 noisy, 1 failed\n")


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome.OK, "read 900 IOPS"),
        (Outcome.NOISY, "read 900 IOPS: the reason"),
        (Outcome.IMPLAUSIBLE, "the reason"),
        (Outcome.FAILED, "the reason"),
    ],
)
def test_a_run_that_is_not_ok_shows_why_and_only_numbers_that_are_published(
    outcome: Outcome, text: str
) -> None:
    samples = (Sample("iops", Direction.READ, 900.0, Unit.IOPS),)
    reason = "" if outcome is Outcome.OK else "the reason"
    ended = replace(stored(0), samples=samples, outcome=outcome, reason=reason)
    assert result_text(ended) == text


def test_a_terminal_has_both_with_v(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    terminal = Progress(console, list, logged=True)
    assert (terminal.live, terminal.lines) == (True, True)
    piped = Console(file=io.StringIO())
    assert [Progress(piped, list, logged=logged).lines for logged in (True, False)] == [False, True]
