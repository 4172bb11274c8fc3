"""Of which shape an answer from outside must be: checked once, before anybody looks at it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

Shape = Callable[[Any], str]
"""Returns what is wrong with a value, empty if nothing is."""

_NUMBER: Final = re.compile(r"[+-]?\d{1,20}(\.\d{1,20})?\Z")
_MOST_COUNTED: Final = 2**64
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}\Z")


def anything(_: Any) -> str:
    """Take any value: nobody looks at it."""
    return ""


def _within(value: Any, most: float) -> bool:
    # Not math.isfinite: JSON has whole numbers that no float holds.
    return isinstance(value, int | float) and -most < value < most


def text(value: Any) -> str:
    """Take a string."""
    return "" if isinstance(value, str) else f"{kind_of(value)}, no text"


def number(value: Any) -> str:
    """Take what `float` turns into a finite number, a string of digits as well."""
    if _within(value, 1e300):
        return ""
    return "" if isinstance(value, str) and _NUMBER.match(value) else f"{kind_of(value)}, no number"


def whole(value: Any) -> str:
    """Take what `int` turns into a number, a string of digits as well."""
    if _within(value, 1e19):
        return ""
    good = isinstance(value, str) and _WHOLE.match(value)
    return "" if good else f"{kind_of(value)}, no whole number"


def truth(value: Any) -> str:
    """Take true or false."""
    return "" if isinstance(value, bool) else f"{kind_of(value)}, neither true nor false"


def count(value: Any) -> str:
    """Take a whole number that counts something: none below nothing, no fraction."""
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_COUNTED
    return "" if good else f"{kind_of(value)}, no count"


def fields(**wanted: Shape) -> Shape:
    """Take an object with these members; a name that ends in `_` may be missing or null."""
    members = {
        name.rstrip("_").replace("__", "-"): (shape, name.endswith("_"))
        for name, shape in wanted.items()
    }

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return f"{kind_of(value)}, no object"
        for name, (shape, optional) in members.items():
            if value.get(name) is None:
                if not optional:
                    return f"no member {name!r}"
            elif wrong := shape(value[name]):
                return f"{name!r} is {wrong}"
        return ""

    return check


def rows(shape: Shape) -> Shape:
    """Take a list of such values."""

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return f"{kind_of(value)}, no list"
        wrong = ((at, shape(one)) for at, one in enumerate(value))
        return next((f"row {at} is {why}" for at, why in wrong if why), "")

    return check


def table(shape: Shape) -> Shape:
    """Take an object of such values, whatever their names."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return f"{kind_of(value)}, no object"
        wrong = ((name, shape(one)) for name, one in value.items())
        return next((f"{name[:80]!r} is {why}" for name, why in wrong if why), "")

    return check


def kind_of(value: Any) -> str:
    """Return what a value is, for messages."""
    kinds = {dict: "an object", list: "a list", str: "a text", type(None): "nothing"}
    return kinds.get(type(value), "a number")
