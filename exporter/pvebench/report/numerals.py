"""Numbers as people's spreadsheets write them: `1,234.5` here, `1.234,5` there. Pure.

Which of the two a file means is read off its own numbers, never guessed: `1.234` alone may be
either, and is asked about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")


class Decimal(StrEnum):
    """The mark between a number and its fraction; the other one may group thousands."""

    POINT = "point"
    COMMA = "comma"


_NOTHING: Final = frozenset({"", "-", "–", "n/a", "na", "null"})
"""How a cell says that there is no number."""
_GROUPS: Final = re.compile(r"(?<=\d)[ \u00a0\u202f'\u2019](?=\d{3}(?!\d))")
"""Spaces and apostrophes group thousands too, whatever the decimal mark."""
_POINT: Final = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[+-]?\d+)?\Z", re.IGNORECASE)
_SWAP: Final = str.maketrans(",.", ".,")
_FACTORS: Final = {"k": 1e3, "K": 1e3, "M": 1e6}
"""fio prints 15.5k operations a second."""


class Unclear(ValueError):
    """A number that cannot be read, or in two ways; `thing` is what it was found in."""

    def __init__(self, message: str, thing: object) -> None:
        super().__init__(message)
        self.thing = thing


def number(text: str, decimal: Decimal) -> float | None:
    """Return the number; None for a cell that says that there is none.

    Raises:
        ValueError: it is no number with that decimal mark.
    """
    plain = text.strip()
    if plain.casefold() in _NOTHING:
        return None
    factor = _FACTORS.get(plain[-1], 1.0)
    digits = _GROUPS.sub("", plain[:-1] if factor != 1.0 else plain)
    digits = digits.translate(_SWAP) if decimal is Decimal.COMMA else digits
    if not _POINT.match(digits):
        raise ValueError(f"{text!r} is no number with a decimal {decimal}")
    return float(digits.replace(",", "")) * factor


def step(text: str, decimal: Decimal) -> float:
    """Return one unit of the last written digit: 0.1 for `5,3`, 100 for `15.5k`."""
    plain = text.strip()
    factor = _FACTORS.get(plain[-1:], 1.0)
    _, mark, fraction = plain.rpartition("," if decimal is Decimal.COMMA else ".")
    digits = len(re.match(r"\d*", fraction)[0]) if mark else 0  # type: ignore[index] # always matches
    return float(10.0**-digits) * factor


def decimal_of(cells: Iterable[tuple[str, T]]) -> Decimal:
    """Return the decimal mark that all numbers of a file agree on.

    Args:
        cells: each number's text, and where it was found.

    Raises:
        Unclear: one is no number, two of them disagree, or all could be meant either way.
    """
    found: tuple[Decimal, str] | None = None
    unclear: tuple[str, T] | None = None
    for text, place in cells:
        readings = {decimal: _reading(text, decimal) for decimal in Decimal}
        possible = {key: value for key, value in readings.items() if value != _NO_NUMBER}
        if not possible:
            raise Unclear(f"{text!r} is no number", place)
        if len(possible) == 2:
            if len(set(possible.values())) == 2 and unclear is None:
                unclear = text, place
            continue
        (mark,) = possible
        if found is not None and found[0] is not mark:
            message = f"{text!r} has a decimal {mark}, {found[1]!r} before it a decimal {found[0]}"
            raise Unclear(message, place)
        found = found or (mark, text)
    if found is None and unclear is not None:
        text, place = unclear
        ways = " or ".join(f"{number(text, decimal):g}" for decimal in Decimal)
        raise Unclear(f"{text!r} may mean {ways}; say --decimal point or --decimal comma", place)
    return found[0] if found else Decimal.POINT


_NO_NUMBER: Final = "no number"


def _reading(text: str, decimal: Decimal) -> float | str | None:
    try:
        return number(text, decimal)
    except ValueError:
        return _NO_NUMBER
