"""Import of a user's table: mapping of columns to fields and units, and its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from pvebench.errors import ConfigError, Problem
from pvebench.model.consistency import Figures
from pvebench.model.definition import DIRECTIONS
from pvebench.model.disk import Bus, Cache, Format
from pvebench.model.reference_series import ReferenceRow
from pvebench.model.units import GIB, KIB, MIB, TIB, parse_size
from pvebench_lab.references.delimited import (
    Decimal,
    DelimitedText,
    TextCell,
    TextRow,
    Unclear,
    decimal_number,
    decimal_of,
    last_digit_step,
)

T = TypeVar("T")

# Case matters: Mb/s can mean bits or bytes, and KB/s 1000 or 1024 bytes per second. Both are
# rejected; the error lists the unambiguous units.
_RATES: Final = {
    "B/s": 1.0,
    "kB/s": 1e3,
    "MB/s": 1e6,
    "GB/s": 1e9,
    "KiB/s": float(KIB),
    "MiB/s": float(MIB),
    "GiB/s": float(GIB),
    "Mbit/s": 1e6 / 8,
    "Gbit/s": 1e9 / 8,
}
_TIMES: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
_SIZES: Final = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": float(KIB),
    "MiB": float(MIB),
    "GiB": float(GIB),
    "TiB": float(TIB),
}
NUMBERS: Final[dict[str, tuple[str, Mapping[str, float]]]] = {
    "iops": ("iops", {}),
    "bandwidth": ("bandwidth", _RATES),
    "latency_mean": ("clat_mean", _TIMES),
    "latency_max": ("clat_max", _TIMES),
    "size": ("bytes", _SIZES),
    "runtime": ("runtime", _TIMES),
}
"""Field -> its metric, and unit -> factor to the base unit; empty: a plain number."""
TEXTS: Final = ("storage", "bus", "format", "cache", "tool", "rw", "scenario", "workload")
COUNTS: Final = ("iodepth", "numjobs")
SIDES: Final = ("read", "write")
FIELDS: Final = (
    "case",
    *TEXTS,
    "direction",
    "bs",
    *COUNTS,
    *NUMBERS,
    *(f"{side}_{name}" for side in SIDES for name in NUMBERS),
)
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "bus": tuple(Bus),
    "format": tuple(Format),
    "cache": tuple(Cache),
    "rw": tuple(DIRECTIONS),
}
_ALIASES: Final = {
    **dict.fromkeys(("virtioscsi", "virtioscsisingle", "virtioscsipci"), "scsi"),
    **dict.fromkeys(("virtioblk", "virtioblock", "virtioblkpci"), "virtio"),
    **dict.fromkeys(("nocache", "default", "defaultnocache"), "none"),
    "writebackunsafe": "unsafe",
    "rawdiskimageraw": "raw",
    "qemuimageformatqcow2": "qcow2",
    "vmwareimageformatvmdk": "vmdk",
    "container": "lxc",
    "readwrite": "rw",
    **{
        word + end: f"{short}{end}"
        for word, short in (("random", "rand"), ("sequential", ""), ("seq", ""))
        for end in ("read", "write", "rw", "trim")
    },
}
"""What others write, such as Proxmox VE, as letters and digits -> pvebench's word."""
_UNIT_IN_HEADER: Final = re.compile(r"(?:[\[(]\s*(?P<b>[^\])]+?)\s*[\])]|\bin (?P<w>\S+))\s*\Z")
_DIRECTIONS: Final = {"read": "read", "write": "write", "lesen": "read", "schreiben": "write"}


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Mapping of columns by the user.

    Attributes:
        columns: field -> header of its column.
        units: field -> unit, if the header does not name it.
        decimal: decimal mark; None: detected from the numbers of the file.
    """

    columns: Mapping[str, str]
    units: Mapping[str, str] = field(default_factory=dict)
    decimal: Decimal | None = None


def own_columns(file: str, text: str) -> ColumnMapping:
    """Return the mapping of columns that are named as fields, with or without a unit.

    Raises:
        ConfigError: there are none.
    """
    names = DelimitedText(file, text, []).names
    fields = {_UNIT_IN_HEADER.sub("", name).strip().casefold(): name for name in names}
    columns = {name: header for name, header in fields.items() if name in FIELDS}
    if not columns:
        message = f"unknown table format; name its columns {', '.join(FIELDS)}"
        step = "or map them: --column iops=HEADER --column rw=HEADER …"
        raise ConfigError([Problem(file, 1, 1, message)], next_step=step)
    return ColumnMapping(columns)


def read_columns(file: str, text: str, mapped: ColumnMapping) -> tuple[ReferenceRow, ...]:
    """Return the rows of a table with mapped columns.

    Raises:
        ConfigError: a cell is invalid; the error has its position.
    """
    _check(mapped)
    table = DelimitedText(file, text, list(mapped.columns.values()))
    headings = {name: table.heading(header) for name, header in mapped.columns.items()}
    records = list(table.records())
    factors = {
        name: unit_factor(file, name, cell, mapped.units.get(name, ""))
        for name, cell in headings.items()
        if plain_field(name) in NUMBERS
    }
    cells = [record.cells[headings[name].text] for record in records for name in factors]
    try:
        decimal = mapped.decimal or decimal_of((cell.text, cell) for cell in cells)
    except Unclear as error:
        raise cell_error(file, error.thing, str(error)) from error
    reader = _Reader(file, {name: cell.text for name, cell in headings.items()}, factors, decimal)
    return tuple(reader.row(record) for record in records)


def _check(mapped: ColumnMapping) -> None:
    """Reject unknown fields, and numbers without a direction."""
    fields = [*mapped.columns, *mapped.units]
    problems = [
        f"unknown field {name!r}; use one of {', '.join(FIELDS)}"
        for name in fields
        if name not in FIELDS
    ]
    problems += [
        f"--unit {name} requires --column {name}"
        for name in mapped.units
        if name in FIELDS and name not in mapped.columns
    ]
    plain = [name for name in mapped.columns if name in NUMBERS]
    if plain and not {"rw", "direction"} & set(mapped.columns):
        problems.append(
            f"{plain[0]} has no direction; also map direction or rw, or map read_{plain[0]} instead"
        )
    if not problems and not any(plain_field(name) in NUMBERS for name in mapped.columns):
        problems.append(f"no metric is mapped; map one of {', '.join(NUMBERS)}")
    if problems:
        raise ConfigError.of_options(*problems)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Conversion of rows to values with the mapped columns."""

    file: str
    headers: Mapping[str, str]
    factors: Mapping[str, float]
    decimal: Decimal

    def row(self, record: TextRow) -> ReferenceRow:
        cells = {name: record.cells[header] for name, header in self.headers.items()}
        match: dict[str, str | int | None] = {
            name: self._parsed(cell, partial(plain_word, name))
            for name, cell in cells.items()
            if name in TEXTS and cell.text
        }
        if "rw" in match:
            match.setdefault("tool", "fio")
        counts = {
            name: self._parsed(cell, parse_size)
            for name, cell in cells.items()
            if name in (*COUNTS, "bs") and cell.text
        }
        match |= counts
        values, figures = self._values(cells, counts.get("bs"))
        place: dict[str, str] = {name: cells[name].text for name in TEXTS if name in cells}
        if "case" in cells:
            place["table"] = cells["case"].text
        return ReferenceRow(
            line=record.line, place=place, match=match, values=values, figures=tuple(figures)
        )

    def _parsed(self, cell: TextCell, parse: Callable[[str], T]) -> T:
        """Return the value of a cell. Raises ConfigError with its position."""
        try:
            return parse(cell.text)
        except ValueError as error:
            raise cell_error(self.file, cell, str(error)) from error

    def _values(
        self, known: Mapping[str, TextCell], block: int | None
    ) -> tuple[dict[tuple[str, str], float], list[Figures]]:
        values: dict[tuple[str, str], float] = {}
        steps: dict[tuple[str, str], float] = {}
        for name, factor in self.factors.items():
            cell = known[name]
            value = self._parsed(cell, self._number)
            if value is None:
                continue
            key = NUMBERS[plain_field(name)][0], self._direction(name, known)
            values[key] = value * factor
            steps[key] = last_digit_step(cell.text, self.decimal) * factor
        sides = dict.fromkeys(side for _, side in values)
        return values, [_figures(side, values, steps, block) for side in sides]

    def _number(self, text: str) -> float | None:
        value = decimal_number(text, self.decimal)
        if value is not None and value < 0:
            raise ValueError(f"{text!r} is below 0, which is impossible")
        return value

    def _direction(self, name: str, known: Mapping[str, TextCell]) -> str:
        side = name.partition("_")[0]
        if side in SIDES:
            return side
        cell = known.get("direction", known.get("rw", TextCell("", 1, 1)))
        word = cell.text.casefold()
        if "direction" not in known:
            word = plain_word("rw", word)
            mixed = word in ("rw", "readwrite", "randrw")
            word = "" if mixed else word.removeprefix("rand")
        if word not in _DIRECTIONS:
            message = f"{cell.text!r} is not a direction; use read or write"
            raise cell_error(self.file, cell, message)
        return _DIRECTIONS[word]


def _figures(
    side: str,
    values: Mapping[tuple[str, str], float],
    steps: Mapping[tuple[str, str], float],
    block: int | None,
) -> Figures:
    return Figures(
        direction=side,
        iops=values.get(("iops", side)),
        bandwidth=values.get(("bandwidth", side)),
        block_bytes=block,
        size=values.get(("bytes", side)),
        seconds=values.get(("runtime", side)),
        iops_step=steps.get(("iops", side), 0.0),
        bandwidth_step=steps.get(("bandwidth", side), 0.0),
        seconds_step=steps.get(("runtime", side), 0.0),
        latency_mean=values.get(("clat_mean", side)),
        latency_max=values.get(("clat_max", side)),
        latency_step=max(steps.get((f"clat_{name}", side), 0.0) for name in ("mean", "max")),
    )


def plain_word(name: str, text: str) -> str:
    """Return an option's value in pvebench's words; others may write `VirtIO SCSI` or `QCOW2`.

    Raises:
        ValueError: the option has no such value.
    """
    if name not in _WORDS:
        return text
    letters = re.sub("[^a-z0-9]", "", text.casefold())
    word = _ALIASES.get(letters, letters)
    if word not in _WORDS[name]:
        raise ValueError(f"{text!r} is not one of {', '.join(_WORDS[name])}")
    return word


def plain_field(name: str) -> str:
    """Return a field without its side: `iops` of `read_iops`."""
    side, _, rest = name.partition("_")
    return rest if side in SIDES else name


def unit_factor(file: str, name: str, heading: TextCell, explicit: str) -> float:
    """Return the factor from the column's unit, explicit or in its header, to the base unit."""
    units = NUMBERS[plain_field(name)][1]
    if not units:
        return 1.0
    match = _UNIT_IN_HEADER.search(heading.text)
    unit = explicit or ((match["b"] or match["w"]) if match else "")
    if not unit:
        example = "MB/s" if units is _RATES else "ms" if units is _TIMES else "MiB"
        message = f"{heading.text!r} has no unit; add it: --unit {name}={example}"
        raise cell_error(file, heading, message)
    if unit not in units:
        message = f"{unit!r} is not a unit of {name}; use one of {', '.join(units)}"
        raise cell_error(file, heading, message)
    return units[unit]


def cell_error(file: str, place: object, message: str) -> ConfigError:
    """Return the error for a cell of the file; for the header if `place` is not a cell."""
    line, column = (place.line, place.column) if isinstance(place, TextCell) else (1, 1)
    return ConfigError([Problem(file, line, column, message)])
