"""Shapes of external responses: what passes, and the one problem of what does not."""

from __future__ import annotations

from typing import Any

import pytest

from pvebench.drivers.responses import (
    CAPTURED,
    Shape,
    anything,
    completed,
    count,
    fields,
    number,
    rows,
    table,
    text,
    truth,
    whole,
)
from pvebench.errors import OutputUnreadable

DISK = fields(name=text, size_=number, io__thread_=truth)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (anything, None),
        (text, ""),
        (number, 1.5),
        (number, "-12.5"),
        (number, True),
        (whole, "+7"),
        (count, 0),
        (count, 2**64 - 1),
        (DISK, {"name": "a", "size": None, "other": []}),
        (DISK, {"name": "a", "io-thread": False}),
        (rows(DISK), []),
        (rows(name=text), [{"name": "a"}, {"name": "b"}]),
        (table(number), {"a": 1, "": "2"}),
        (rows(fields()), [{}]),
    ],
)
def test_a_value_of_the_shape_has_no_problem(shape: Shape, value: Any) -> None:
    assert shape(value) == ""


@pytest.mark.parametrize(
    ("shape", "value", "problem"),
    [
        (text, 7, "a number, not a string"),
        (truth, 0, "a number, not a boolean"),
        (count, True, "a number, not a count"),
        (count, 2**64, "a number, not a count"),
        (count, -1, "a number, not a count"),
        (number, float("inf"), "a number, not a number"),
        (number, 10**400, "a number, not a number"),
        (number, "7\n", "a string, not a number"),
        (whole, "7.5", "a string, not an integer"),
        (whole, "\u0663", "a string, not an integer"),
        (DISK, None, "nothing, not an object"),
        (DISK, {}, "no member 'name'"),
        (DISK, {"name": None}, "no member 'name'"),
        (DISK, {"name": "a", "size": "x", "io-thread": 1}, "'size': a string, not a number"),
        (rows(DISK), {}, "an object, not a list"),
        (rows(DISK), [{"name": "a"}, []], "row 1: a list, not an object"),
        (rows(DISK), [None], "row 0: nothing, not an object"),
        (fields(disks=rows(DISK)), {"disks": [{"name": 7}]}, "'disks': row 0: 'name': a number"),
        (table(rows(text)), {"x" * 90: [7]}, f"{'x' * 80!r}: row 0: a number, not a string"),
    ],
)
def test_the_first_problem_is_named_with_its_place(shape: Shape, value: Any, problem: str) -> None:
    assert shape(value).startswith(problem)


def as_bytes(text: str) -> bytes:
    return text.encode("latin-1")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"exitcode": 0}, 0),
        ({"exitcode": 3}, 3),
        ({"signal": 9}, 137),
        ({"signal": -1073741819}, 0xC0000005),
        ({"signal": -1}, 0xFFFFFFFF),
    ],
)
def test_an_end_of_a_program_has_the_exit_code_of_linux_or_windows(
    status: dict[str, int], code: int
) -> None:
    assert completed(status, "x", as_bytes).exit_code == code


@pytest.mark.parametrize(
    "status",
    [
        {"exitcode": 0, "out-truncated": True},
        {"exitcode": 0, "err-truncated": 1},
        {"exitcode": 0, "out-data": "x" * CAPTURED, "out-truncated": False},
    ],
)
def test_truncated_output_is_an_error_whatever_the_agent_says_of_it(
    status: dict[str, object],
) -> None:
    with pytest.raises(OutputUnreadable, match="truncated the output of x"):
        completed(status, "x", as_bytes)
