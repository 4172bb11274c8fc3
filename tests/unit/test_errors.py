"""What an error tells whoever reads it, whatever raised it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pvebench
from pvebench import errors
from pvebench.errors import ConfigError, Interrupted, PvebenchError, SwitchFailed

PLACES = (ConfigError,)
"""Tell file, line and column: the next step is to go there."""


def raised() -> Iterator[tuple[str, type[PvebenchError], set[str]]]:
    """Give each `raise` of ours: its place, its class, what it says beside what happened."""
    for path in sorted(Path(pvebench.__file__).parent.rglob("*.py")):
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
        and not (kind.usual_next_step or {"cause", "next_step"} & said)
    ]
    assert mute == []


def test_the_check_above_sees_every_room() -> None:
    assert len(list(raised())) > 150


def test_an_error_of_which_no_more_is_known_tells_what_it_usually_is() -> None:
    assert str(SwitchFailed("scsi1 stays")).splitlines()[1:] == [
        f"  likely cause: {SwitchFailed.usual_cause}",
        f"  next step: {SwitchFailed.usual_next_step}",
    ]


@pytest.mark.parametrize("known", ["cause", "next_step"])
def test_what_is_usual_is_never_mixed_with_what_is_known(known: str) -> None:
    text = str(SwitchFailed("scsi1 stays", **{known: "this"}))
    assert "this" in text
    assert SwitchFailed.usual_cause not in text
    assert SwitchFailed.usual_next_step not in text
