"""What an error tells whoever reads it, whatever raised it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pvebench
from pvebench import errors
from pvebench.errors import (
    ConfigError,
    DriverError,
    Interrupted,
    PvebenchError,
    SwitchFailed,
    command_text,
)

PLACES = (ConfigError,)
"""Tell file, line and column: the next step is to go there."""


def raised() -> Iterator[tuple[str, type[PvebenchError], set[str]]]:
    """Give each `raise` of ours: its place, its class, what it says beside what happened."""
    for path in sorted(Path(pvebench.__file__).parents[1].rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                kind = getattr(errors, getattr(node.exc.func, "id", ""), None)
                if isinstance(kind, type) and issubclass(kind, PvebenchError):
                    said = {keyword.arg or "" for keyword in node.exc.keywords}
                    yield f"{path.name}:{node.lineno}", kind, said


def test_no_error_is_without_a_next_step() -> None:
    mute = [
        place
        for place, kind, said in raised()
        if not issubclass(kind, (*PLACES, Interrupted))
        and not (kind.default_next_step or {"cause", "next_step"} & said)
    ]
    assert mute == []


def test_the_check_above_sees_every_room() -> None:
    assert len(list(raised())) > 150


def test_an_error_of_which_no_more_is_known_reports_what_it_usually_is() -> None:
    assert str(SwitchFailed("scsi1 stays")).splitlines()[1:] == [
        f"  likely cause: {SwitchFailed.default_cause}",
        f"  next step: {SwitchFailed.default_next_step}",
    ]


def test_words_of_others_in_an_error_cannot_steer_a_terminal() -> None:
    """What is no graphic character is obeyed by one (ECMA-48); a line break is ours."""
    said = "two\nlines \x1b[2J\x07\u202e\x9b31m"
    error = SwitchFailed(said, cause=said, next_step=said, evidence=said)
    assert str(error).replace("\n", "").isprintable()
    assert error.happened == "two\nlines  [2J   31m"
    assert error.args == (error.happened,)
    assert error.evidence == said, "what was said is kept as it was"


@pytest.mark.parametrize("known", ["cause", "next_step"])
def test_what_is_usual_is_never_mixed_with_what_is_known(known: str) -> None:
    text = str(SwitchFailed("scsi1 stays", **{known: "this"}))
    assert "this" in text
    assert SwitchFailed.default_cause not in text
    assert SwitchFailed.default_next_step not in text


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            "no action needed; pvebench checks the state and never repeats the request",
            "run the command again",
        ),
        (
            "no action needed; pvebench retries later. If the lock is stale, run qm unlock 9",
            "run the command again. If the lock is stale, run qm unlock 9",
        ),
        (
            "pvebench reconnects; if this persists, check host",
            "run the command again; if this persists, check host",
        ),
        ("run `pvebench check`, then check the host log", "check the host log"),
        ("run `pvebench setup`", "run `pvebench setup`"),
    ],
)
def test_a_command_that_ends_promises_no_retry_and_does_not_advise_itself(
    step: str, text: str
) -> None:
    error = DriverError("happened", next_step=step)
    assert command_text(str(error), "check") == f"happened\n  next step: {text}"
