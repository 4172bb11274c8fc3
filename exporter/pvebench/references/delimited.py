"""Delimited text: cells that know their place, and numbers as people's spreadsheets write them.

The delimiter is found out from the header. Whether a file writes `1,234.5` or `1.234,5` is read
off its own numbers, never guessed: `1.234` alone may be either, and is asked about. Pure.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from pvebench.errors import ConfigError, Problem

DELIMITERS: Final = ";\t,|"
MOST_ROWS: Final = 10_000
"""Of a table that people have published; more are somebody's raw log."""


_Row = TypeVar("_Row")
_Place = TypeVar("_Place")


@dataclass(frozen=True, slots=True)
class TextCell:
    """One cell; line and column count from 1, the column in characters."""

    text: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class TextRow:
    """One row: header -> cell."""

    line: int
    cells: Mapping[str, TextCell]


class DelimitedText:
    """A table with a header line.

    Args:
        file: its name, for complaints.
        wanted: the columns that it must have.

    Raises:
        ConfigError: it lacks one of them, whatever the delimiter.
    """

    def __init__(self, file: str, text: str, wanted: Sequence[str]) -> None:
        self._file = file
        self._lines = text.splitlines(keepends=True)
        if not self._lines:
            raise ConfigError([Problem(file, 1, 1, "the file is empty")])
        splits = {mark: _split(self._lines[0], mark) for mark in DELIMITERS}
        lacking = {
            mark: [name for name in wanted if _find(columns, name) is None]
            for mark, columns in splits.items()
        }
        self._delimiter = min(DELIMITERS, key=lambda mark: (len(lacking[mark]), -len(splits[mark])))
        self._header = splits[self._delimiter]
        if missing := lacking[self._delimiter]:
            there = ", ".join(self._header)
            message = f"no column {missing[0]!r}; the columns are: {there}"
            raise ConfigError([Problem(file, 1, 1, message)])

    def heading(self, name: str) -> TextCell:
        """Return the header's cell of a wanted column, as it is spelled in the file."""
        index = _find(self._header, name)
        if index is None:
            raise KeyError(name)
        return TextCell(self._header[index], 1, _offset(self._lines[0], index, self._delimiter))

    def records(self) -> Iterator[TextRow]:
        """Yield the rows; empty lines are none.

        Raises:
            ConfigError: a row has more or fewer cells than the header.
        """
        reader = csv.reader(self._lines, delimiter=self._delimiter)
        next(reader)
        last = reader.line_num
        for texts in bounded(self._file, reader):
            line, last = last + 1, reader.line_num
            if not any(text.strip() for text in texts):
                continue
            if len(texts) != len(self._header):
                message = f"{len(texts)} cells, but the header has {len(self._header)}"
                raise ConfigError([Problem(self._file, line, 1, message)])
            source = self._lines[line - 1] if line == last else ""
            yield TextRow(
                line,
                {
                    name: TextCell(text.strip(), line, _offset(source, index, self._delimiter))
                    for index, (name, text) in enumerate(zip(self._header, texts, strict=True))
                },
            )


def bounded(file: str, rows: Iterable[_Row]) -> Iterator[_Row]:
    """Yield the rows of a table.

    Raises:
        ConfigError: there are more than MOST_ROWS.
    """
    for count, row in enumerate(rows):
        if count == MOST_ROWS:
            message = f"has more than {MOST_ROWS} rows; a reference series is a table, not a log"
            raise ConfigError([Problem(file, 0, 0, message)])
        yield row


def _split(line: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]


def _find(columns: Sequence[str], name: str) -> int | None:
    """Return where a column is: spelled alike, or else but for upper and lower case."""
    if name in columns:
        return columns.index(name)
    folded = [column.casefold() for column in columns]
    return folded.index(name.casefold()) if folded.count(name.casefold()) == 1 else None


def _offset(line: str, index: int, delimiter: str) -> int:
    """Return the column, from 1, where the cell `index` of a line begins."""
    quoted = False
    for place, character in enumerate(line):
        if index == 0:
            return place + 1
        if character == '"':
            quoted = not quoted
        elif character == delimiter and not quoted:
            index -= 1
    return len(line) + 1 if index == 0 and line else 1


class Decimal(StrEnum):
    """The mark between a number and its fraction; the other one may group thousands."""

    POINT = "point"
    COMMA = "comma"


_NOTHING: Final = frozenset({"", "-", "–", "n/a", "na", "null"})
"""How a cell says that there is no number."""
_GROUPS: Final = re.compile(r"(?<=\d)[ \u00a0\u202f'\u2019](?=\d{3}(?!\d))")
"""Spaces and apostrophes group thousands too, whatever the decimal mark."""
_POINT: Final = re.compile(
    r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[+-]?\d+)?\Z", re.IGNORECASE | re.ASCII
)
_SWAP: Final = str.maketrans(",.", ".,")
_FACTORS: Final = {"k": 1e3, "K": 1e3, "M": 1e6}
"""fio prints 15.5k operations a second."""


class Unclear(ValueError):
    """A number that cannot be read, or in two ways; `thing` is what it was found in."""

    def __init__(self, message: str, thing: object) -> None:
        super().__init__(message)
        self.thing = thing


def decimal_number(text: str, decimal: Decimal) -> float | None:
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
    value = float(digits.replace(",", "")) * factor
    if not math.isfinite(value):
        raise ValueError(f"{text[:50]!r} is beyond all numbers")
    return value


def last_digit_step(text: str, decimal: Decimal) -> float:
    """Return one unit of the last written digit: 0.1 for `5,3`, 100 for `15.5k`."""
    plain = text.strip()
    factor = _FACTORS.get(plain[-1:], 1.0)
    _, mark, fraction = plain.rpartition("," if decimal is Decimal.COMMA else ".")
    digits = len(re.match(r"\d*", fraction)[0]) if mark else 0  # type: ignore[index] # always matches
    return float(10.0**-digits) * factor


def decimal_of(cells: Iterable[tuple[str, _Place]]) -> Decimal:
    """Return the decimal mark that all numbers of a file agree on.

    Args:
        cells: each number's text, and where it was found.

    Raises:
        Unclear: one is no number, two of them disagree, or all could be meant either way.
    """
    found: tuple[Decimal, str] | None = None
    unclear: tuple[str, _Place] | None = None
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
        ways = " or ".join(f"{decimal_number(text, decimal):g}" for decimal in Decimal)
        raise Unclear(f"{text!r} may mean {ways}; say --decimal point or --decimal comma", place)
    return found[0] if found else Decimal.POINT


_NO_NUMBER: Final = "no number"


def _reading(text: str, decimal: Decimal) -> float | str | None:
    try:
        return decimal_number(text, decimal)
    except ValueError:
        return _NO_NUMBER
