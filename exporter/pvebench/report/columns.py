"""Reading a table of the user's own by a mapping: which column means what, in which unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pvebench.analysis.honesty import Figures
from pvebench.errors import ConfigError, Problem
from pvebench.model.units import parse_size
from pvebench.report.delimited import Cell, DelimitedText, Record
from pvebench.report.fields import (
    COUNTS,
    FIELDS,
    NUMBERS,
    SIDES,
    TEXTS,
    complaint,
    plain_field,
    unit_factor,
)
from pvebench.report.numerals import Decimal, Unclear, decimal_of, number, step
from pvebench.report.series import ReferenceRow

_DIRECTIONS: Final = {"read": "read", "write": "write", "lesen": "read", "schreiben": "write"}


@dataclass(frozen=True, slots=True)
class Mapped:
    """What the user says of the columns.

    Attributes:
        columns: field -> header of its column.
        units: field -> unit, where the header does not name it.
        decimal: None: as the numbers of the file show.
    """

    columns: Mapping[str, str]
    units: Mapping[str, str] = field(default_factory=dict)
    decimal: Decimal | None = None


def read_columns(file: str, text: str, mapped: Mapped) -> tuple[ReferenceRow, ...]:
    """Return the rows of a table whose columns the user has named.

    Raises:
        ConfigError: with the place of what cannot be read.
    """
    _check(mapped)
    table = DelimitedText(file, text, list(mapped.columns.values()))
    headings = {name: table.heading(header) for name, header in mapped.columns.items()}
    records = list(table.records())
    factors = {
        name: unit_factor(file, name, cell, mapped.units.get(name, ""))
        for name, cell in headings.items() if plain_field(name) in NUMBERS
    }  # fmt: skip
    given = [record.cells[headings[name].text] for record in records for name in factors]
    try:
        decimal = mapped.decimal or decimal_of((cell.text, cell) for cell in given)
    except Unclear as error:
        raise complaint(file, error.thing, str(error)) from error
    reader = _Reader(file, {name: cell.text for name, cell in headings.items()}, factors, decimal)
    return tuple(reader.row(record) for record in records)


def _check(mapped: Mapped) -> None:
    """Refuse fields that there are not, and numbers of which nobody says which way they go."""
    fields = [*mapped.columns, *mapped.units]
    problems = [
        f"there is no field {name!r}; fields are: {', '.join(FIELDS)}"
        for name in fields if name not in FIELDS
    ]  # fmt: skip
    problems += [f"--unit {name}: no such --column" for name in mapped.units
                 if name in FIELDS and name not in mapped.columns]  # fmt: skip
    plain = [name for name in mapped.columns if name in NUMBERS]
    if plain and not {"rw", "direction"} & set(mapped.columns):
        problems.append(
            f"which way does {plain[0]} go? Map direction or rw too, or read_{plain[0]} instead"
        )
    if not problems and not any(plain_field(name) in NUMBERS for name in mapped.columns):
        problems.append(f"no number is mapped; map one of {', '.join(NUMBERS)}")
    if problems:
        raise ConfigError([Problem("command line", 0, 0, text) for text in problems])


@dataclass(frozen=True, slots=True)
class _Reader:
    """Rows to values, with everything that is known of the columns."""

    file: str
    headers: Mapping[str, str]
    factors: Mapping[str, float]
    decimal: Decimal

    def row(self, record: Record) -> ReferenceRow:
        known = {name: record.cells[header] for name, header in self.headers.items()}
        match: dict[str, str | int] = {
            name: known[name].text for name in TEXTS if name in known and known[name].text
        }
        if "rw" in match:
            match.setdefault("tool", "fio")
        counts = {name: self._whole(known[name]) for name in (*COUNTS, "bs") if name in known}
        match |= {name: count for name, count in counts.items() if count is not None}
        values, figures = self._values(known, counts.get("bs"))
        place: dict[str, str] = {name: known[name].text for name in TEXTS if name in known}
        if "case" in known:
            place["table"] = known["case"].text
        return ReferenceRow(
            line=record.line, place=place, match=match, values=values, figures=tuple(figures)
        )

    def _whole(self, cell: Cell) -> int | None:
        if not cell.text:
            return None
        try:
            return parse_size(cell.text)
        except ValueError as error:
            raise complaint(self.file, cell, str(error)) from error

    def _values(
        self, known: Mapping[str, Cell], block: int | None
    ) -> tuple[dict[tuple[str, str], float], list[Figures]]:
        values: dict[tuple[str, str], float] = {}
        steps: dict[tuple[str, str], float] = {}
        for name, factor in self.factors.items():
            cell = known[name]
            value = self._number(cell)
            if value is None:
                continue
            key = NUMBERS[plain_field(name)][0], self._direction(name, known)
            values[key] = value * factor
            steps[key] = step(cell.text, self.decimal) * factor
        sides = dict.fromkeys(side for _, side in values)
        return values, [_figures(side, values, steps, block) for side in sides]

    def _number(self, cell: Cell) -> float | None:
        try:
            return number(cell.text, self.decimal)
        except ValueError as error:
            raise complaint(self.file, cell, str(error)) from error

    def _direction(self, name: str, known: Mapping[str, Cell]) -> str:
        side = name.partition("_")[0]
        if side in SIDES:
            return side
        cell = known.get("direction", known.get("rw", Cell("", 1, 1)))
        word = cell.text.casefold()
        if "direction" not in known:
            mixed = word in ("rw", "readwrite", "randrw")
            word = "" if mixed else word.removeprefix("rand")
        if word not in _DIRECTIONS:
            message = f"{cell.text!r} does not say which way: read or write"
            raise complaint(self.file, cell, message)
        return _DIRECTIONS[word]


def _figures(
    side: str, values: Mapping[tuple[str, str], float], steps: Mapping[tuple[str, str], float],
    block: int | None,
) -> Figures:  # fmt: skip
    return Figures(
        direction=side,
        iops=values.get(("iops", side)), bandwidth=values.get(("bandwidth", side)),
        block_bytes=block, size=values.get(("bytes", side)), seconds=values.get(("runtime", side)),
        iops_step=steps.get(("iops", side), 0.0),
        bandwidth_step=steps.get(("bandwidth", side), 0.0),
        seconds_step=steps.get(("runtime", side), 0.0),
    )  # fmt: skip
