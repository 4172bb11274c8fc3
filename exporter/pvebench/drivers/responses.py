"""Validation of external responses, before they are used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

Shape = Callable[[Any], str]
"""Returns the problem of a value; empty: valid."""

_NUMBER: Final = re.compile(r"[+-]?\d{1,20}(\.\d{1,20})?\Z")
_MOST_COUNTED: Final = 2**64
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}\Z")


def anything(_: Any) -> str:
    """Accept any value, because it is not used."""
    return ""


def _within(value: Any, most: float) -> bool:
    # Not math.isfinite: JSON has integers that exceed a float's range.
    return isinstance(value, int | float) and -most < value < most


def text(value: Any) -> str:
    """Accept a string."""
    return "" if isinstance(value, str) else f"{kind_of(value)}, not a string"


def number(value: Any) -> str:
    """Accept what `float` converts to a finite number, including strings of digits."""
    if _within(value, 1e300):
        return ""
    return (
        "" if isinstance(value, str) and _NUMBER.match(value) else f"{kind_of(value)}, not a number"
    )


def whole(value: Any) -> str:
    """Accept what `int` converts to a number, including strings of digits."""
    if _within(value, 1e19):
        return ""
    valid = isinstance(value, str) and _WHOLE.match(value)
    return "" if valid else f"{kind_of(value)}, not an integer"


def truth(value: Any) -> str:
    """Accept true or false."""
    return "" if isinstance(value, bool) else f"{kind_of(value)}, not a boolean"


def count(value: Any) -> str:
    """Accept a count: an integer that is not negative."""
    valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_COUNTED
    return "" if valid else f"{kind_of(value)}, not a count"


def fields(**shapes: Shape) -> Shape:
    """Accept an object with these members; one whose name ends in `_` may be missing or null."""
    members = {
        name.rstrip("_").replace("__", "-"): (shape, name.endswith("_"))
        for name, shape in shapes.items()
    }

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return f"{kind_of(value)}, not an object"
        for name, (shape, optional) in members.items():
            if value.get(name) is None:
                if not optional:
                    return f"no member {name!r}"
            elif problem := shape(value[name]):
                return f"{name!r}: {problem}"
        return ""

    return check


def rows(shape: Shape) -> Shape:
    """Accept a list of such values."""

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return f"{kind_of(value)}, not a list"
        problems = ((at, shape(row)) for at, row in enumerate(value))
        return next((f"row {at}: {problem}" for at, problem in problems if problem), "")

    return check


def table(shape: Shape) -> Shape:
    """Accept an object with such values, under any name."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return f"{kind_of(value)}, not an object"
        problems = ((name, shape(member)) for name, member in value.items())
        return next((f"{name[:80]!r}: {problem}" for name, problem in problems if problem), "")

    return check


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, for messages."""
    kinds = {dict: "an object", list: "a list", str: "a string", type(None): "nothing"}
    return kinds.get(type(value), "a number")
