"""Delimited text: cells with their positions, and numbers in the formats of spreadsheets.

The delimiter is detected from the header. Whether a file uses `1,234.5` or `1.234,5` is inferred
from its numbers, never guessed: `1.234` alone is ambiguous and an error. Pure.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from pvebench.errors import ConfigError, Problem

DELIMITERS: Final = ";\t,|"
MAX_ROWS: Final = 10_000
"""Maximum rows of a published table; more rows are a raw log."""


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
        file: its name, for error messages.
        required: columns that it must have.

    Attributes:
        names: headers of the columns.

    Raises:
        ConfigError: a column is missing with every delimiter.
    """

    def __init__(self, file: str, text: str, required: Sequence[str]) -> None:
        self._file = file
        self._lines = text.splitlines(keepends=True)
        # Spreadsheets need the line `sep=,` of Grafana.
        headers = (n for n, line in enumerate(self._lines) if line.strip()[:4] not in ("", "sep="))
        self._first = next(headers, 0)
        if not self._lines:
            raise self._problem("the file is empty")
        header = self._lines[self._first]
        splits = {mark: _split(header, mark) for mark in DELIMITERS}
        lacking = {
            mark: [name for name in required if _find(columns, name) is None]
            for mark, columns in splits.items()
        }
        self._delimiter = min(DELIMITERS, key=lambda mark: (len(lacking[mark]), -len(splits[mark])))
        self.names = splits[self._delimiter]
        if missing := lacking[self._delimiter]:
            message = f"no column {missing[0]!r}; the columns are {', '.join(self.names):.200}"
            raise self._problem(message)
        for name in filter(None, self.names):
            if self.names.count(name) > 1:
                raise self._problem(f"column {name[:50]!r} is there twice; rename one")

    def _problem(self, message: str) -> ConfigError:
        return ConfigError([Problem(self._file, self._first + 1, 1, message)])

    def heading(self, name: str) -> TextCell:
        """Return the header cell of a column, with the spelling of the file."""
        index = _find(self.names, name)
        if index is None:
            raise KeyError(name)
        header = self._lines[self._first]
        column = _offset(header, index, self._delimiter)
        return TextCell(self.names[index], self._first + 1, column)

    def records(self, most: int = MAX_ROWS) -> Iterator[TextRow]:
        """Yield the rows, at most `most`, without empty lines.

        Raises:
            ConfigError: a row has more or fewer cells than the header.
        """
        lines = self._lines[self._first :]
        reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        next(reader)
        last = self._first + reader.line_num
        for texts in bounded(self._file, reader, most):
            line, last = last + 1, self._first + reader.line_num
            if not any(text.strip() for text in texts):
                continue
            if len(texts) != len(self.names):
                message = f"{len(texts)} cells, but the header has {len(self.names)}"
                raise ConfigError([Problem(self._file, line, 1, message)])
            source = self._lines[line - 1] if line == last else ""
            yield TextRow(
                line,
                {
                    name: TextCell(text.strip(), line, _offset(source, index, self._delimiter))
                    for index, (name, text) in enumerate(zip(self.names, texts, strict=True))
                },
            )


def bounded(file: str, rows: Iterable[_Row], most: int = MAX_ROWS) -> Iterator[_Row]:
    """Yield the rows of a table. Raises ConfigError: there are more than `most`."""
    for count, row in enumerate(rows):
        if count == most:
            message = f"more than {most} rows; split the file or remove the oldest"
            raise ConfigError([Problem(file, 0, 0, message)])
        yield row


def _split(line: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]


def _find(columns: Sequence[str], name: str) -> int | None:
    """Return the index of a column: an exact match, otherwise a unique case-insensitive one."""
    if name in columns:
        return columns.index(name)
    folded = [column.casefold() for column in columns]
    return folded.index(name.casefold()) if folded.count(name.casefold()) == 1 else None


def _offset(line: str, index: int, delimiter: str) -> int:
    """Return the first column, from 1, of the cell `index` in a line."""
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


_NOTHING: Final = frozenset({"", "-", "–", "n/a", "na", "nan", "null", "none", "undefined"})
"""Cell texts that mean no number."""
_GROUPS: Final = re.compile(r"(?<=\d)[ \u00a0\u202f'\u2019](?=\d{3}(?!\d))")
"""Spaces and apostrophes between thousands, valid with every decimal mark."""
_POINT: Final = re.compile(
    r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[+-]?\d+)?\Z", re.IGNORECASE | re.ASCII
)
_SWAP: Final = str.maketrans(",.", ".,")
_FACTORS: Final = {"k": 1e3, "K": 1e3, "M": 1e6}
"""Suffix -> factor; fio prints for example 15.5k IOPS."""


class Unclear(ValueError):
    """A number that is invalid or ambiguous; `thing` is its cell or position."""

    def __init__(self, message: str, thing: object) -> None:
        super().__init__(message)
        self.thing = thing


def decimal_number(text: str, decimal: Decimal) -> float | None:
    """Return the number; None for a cell without a number.

    Raises:
        ValueError: not a number with that decimal mark.
    """
    plain = text.strip()
    if plain.casefold() in _NOTHING:
        return None
    factor = _FACTORS.get(plain[-1], 1.0)
    digits = _GROUPS.sub("", plain[:-1] if factor != 1.0 else plain)
    digits = digits.translate(_SWAP) if decimal is Decimal.COMMA else digits
    if not _POINT.match(digits):
        raise ValueError(f"{text!r} is not a number with a decimal {decimal}")
    value = float(digits.replace(",", "")) * factor
    if not math.isfinite(value):
        raise ValueError(f"{text[:50]!r} is too large")
    return value


def last_digit_step(text: str, decimal: Decimal) -> float:
    """Return the value of the last digit: 0.1 for `5,3`, 100 for `15.5k`."""
    plain = text.strip()
    factor = _FACTORS.get(plain[-1:], 1.0)
    _, mark, fraction = plain.rpartition("," if decimal is Decimal.COMMA else ".")
    digits = len(re.match(r"\d*", fraction)[0]) if mark else 0  # type: ignore[index] # always matches
    return float(10.0**-digits) * factor


def decimal_of(cells: Iterable[tuple[str, _Place]]) -> Decimal:
    """Return the decimal mark of all numbers of a file.

    Args:
        cells: text and position of each number.

    Raises:
        Unclear: a cell is not a number, two of them disagree, or all are ambiguous.
    """
    first: tuple[Decimal, str] | None = None
    ambiguous: tuple[str, _Place] | None = None
    for text, place in cells:
        values = _values(text)
        if not values:
            raise Unclear(f"{text!r} is not a number", place)
        if len(values) == 2:
            if len(set(values.values())) == 2 and ambiguous is None:
                ambiguous = text, place
            continue
        (mark,) = values
        first = first or (mark, text)
        if first[0] is not mark:
            message = f"{text!r} has a decimal {mark}, but {first[1]!r} has a decimal {first[0]}"
            raise Unclear(message, place)
    if first is None and ambiguous is not None:
        text, place = ambiguous
        ways = " or ".join(f"{value:g}" for value in _values(text).values())
        raise Unclear(f"{text!r} can mean {ways}; use --decimal point or --decimal comma", place)
    return first[0] if first else Decimal.POINT


def _values(text: str) -> dict[Decimal, float | None]:
    """Return the value of a cell for each decimal mark with which it is valid."""
    values = {}
    for decimal in Decimal:
        with suppress(ValueError):
            values[decimal] = decimal_number(text, decimal)
    return values
