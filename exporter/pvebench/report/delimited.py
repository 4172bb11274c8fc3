"""Delimited text as cells that know their place; the delimiter is found out from the header."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.errors import ConfigError, Problem

DELIMITERS: Final = ";\t,|"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell; line and column count from 1, the column in characters."""

    text: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Record:
    """One row: header -> cell."""

    line: int
    cells: Mapping[str, Cell]


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
        self._lines = text.splitlines()
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

    def heading(self, name: str) -> Cell:
        """Return the header's cell of a wanted column, as it is spelled in the file."""
        index = _find(self._header, name)
        if index is None:
            raise KeyError(name)
        return Cell(self._header[index], 1, _offset(self._lines[0], index, self._delimiter))

    def records(self) -> Iterator[Record]:
        """Yield the rows; empty lines are none.

        Raises:
            ConfigError: a row has more or fewer cells than the header.
        """
        reader = csv.reader(self._lines, delimiter=self._delimiter)
        next(reader)
        last = reader.line_num
        for texts in reader:
            line, last = last + 1, reader.line_num
            if not any(text.strip() for text in texts):
                continue
            if len(texts) != len(self._header):
                message = f"{len(texts)} cells, but the header has {len(self._header)}"
                raise ConfigError([Problem(self._file, line, 1, message)])
            source = self._lines[line - 1] if line == last else ""
            yield Record(
                line,
                {
                    name: Cell(text.strip(), line, _offset(source, index, self._delimiter))
                    for index, (name, text) in enumerate(zip(self._header, texts, strict=True))
                },
            )  # fmt: skip


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
