"""Available reference series: shipped tables, files of the user, and imported series.

An imported series is a separate JSON file next to the database, never one of the results.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pvebench.config.document import shown
from pvebench.errors import ConfigError, OutputUnreadable, Problem, StoreError, ToolFailed
from pvebench.files import read_text
from pvebench.model.consistency import Figures
from pvebench.model.reference_series import ReferenceRow, ReferenceSeries
from pvebench.model.units import MIB, parse_size
from pvebench.workloads.fio_report import Report, number, read_report
from pvebench_lab.references.columns import ColumnMapping, read_columns
from pvebench_lab.references.delimited import bounded
from pvebench_lab.references.forms import FORMS, columns_text

PUBLISHED: Final[dict[str, tuple[str, str]]] = {
    "bus-format-2012": ("2012", "QEMU on Fedora 17, guest Ubuntu 12.04; bonnie++ 1.96 and dd"),
    "cache-bus-format-2017": ("2017", "Proxmox VE 4.4, i5-2520M, Intel 320 SSD; fio and ioping"),
    "lvmcache-2019": ("2019", "dm-cache on an OCZ Vertex 2 EX over a hard disk; fio 4k random"),
    "media-2018": ("2018", "Proxmox VE 5.2, two Xeon E5-2609 v3; read off charts"),
    "raid-2017": ("2017", "two laptop hard disks, single and md RAID0, Debian 8"),
    "shared-storage-2021": ("2021", "Proxmox VE 7.0, five nodes, 1 GbE; fio and sysbench fileio"),
}
"""Shipped table -> its date and source."""
MAX_BYTES: Final = 64 * MIB
"""Maximum size of an imported file in bytes."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ReferenceLibrary:
    """Series of this installation: the shipped ones and those in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        """Return the names of all series."""
        own = (path.stem for path in self._directory.glob("*.json"))
        return sorted({*PUBLISHED, *own})

    def keep(self, series: ReferenceSeries) -> Path:
        """Write a series under its name, replacing an older one of that name; return the file.

        Raises:
            StoreError: a shipped table has this name, or the file cannot be written.
        """
        if series.name in PUBLISHED:
            raise StoreError(
                f"{series.name} is the name of a table that is shipped with pvebench",
                next_step="choose another name with --name",
            )
        path = self._path(series.name)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(_plain(series), indent=1) + "\n", "utf-8")
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def get(self, name: str) -> ReferenceSeries:
        """Return a series by its name. Raises StoreError if it does not exist."""
        if name in PUBLISHED:
            return published(name)
        path = self._path(name)
        try:
            return _from_plain(json.loads(path.read_text("utf-8")))
        except OSError as error:
            raise StoreError(
                f"no reference series {name}; available: {', '.join(self.names())}",
                next_step="import one: pvebench import FILE --name NAME",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged: {error}", next_step="import it again") from error

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise StoreError(
                f"{shown(name)!r} is not a valid name of a series",
                cause="a name has letters, digits, '.', '_', '-'; the first is a letter or digit",
                next_step="choose another name with --name",
            )
        return self._directory / f"{name}.json"


class Library:
    """`model.reference_series.ReferenceSource` of the published tables and imported series."""

    shipped = frozenset(PUBLISHED)

    def names(self, directory: Path) -> list[str]:
        return ReferenceLibrary(directory).names()

    def get(self, directory: Path, name: str) -> ReferenceSeries:
        return ReferenceLibrary(directory).get(name)


def _plain(series: ReferenceSeries) -> dict[str, Any]:
    rows = []
    for row in series.rows:
        values = [[metric, direction, value] for (metric, direction), value in row.values.items()]
        rows.append(
            {
                "line": row.line,
                "place": dict(row.place),
                "match": dict(row.match),
                "values": values,
                "figures": [asdict(figures) for figures in row.figures],
                "cpu": dict(row.cpu),
                "cpus": row.cpus,
            }
        )
    return {"name": series.name, "date": series.date, "source": series.source, "rows": rows}


def _from_plain(data: dict[str, Any]) -> ReferenceSeries:
    rows = tuple(
        ReferenceRow(
            line=row["line"],
            place=row["place"],
            match=row["match"],
            values={(metric, direction): value for metric, direction, value in row["values"]},
            figures=tuple(Figures(**figures) for figures in row["figures"]),
            cpu=row["cpu"],
            cpus=row["cpus"],
        )
        for row in data["rows"]
    )
    return ReferenceSeries(name=data["name"], date=data["date"], source=data["source"], rows=rows)


def published(name: str) -> ReferenceSeries:
    """Return a shipped table."""
    date, source = PUBLISHED[name]
    file = resources.files("pvebench_lab.references").joinpath("published", f"{name}.csv")
    return _known_form(name, date, source, name + ".csv", file.read_text("utf-8"))


def read_file(
    path: Path, *, name: str, date: str = "", mapped: ColumnMapping | None = None
) -> ReferenceSeries:
    """Return the series in a file of the user: fio's JSON, or a CSV table.

    Args:
        date: date of the measurements; empty: taken from the file if it has one.
        mapped: mapping of its columns; None: the file is fio's JSON or has a known format.

    Raises:
        ConfigError: the file cannot be read or has an unknown format.
    """
    # Spreadsheets write a byte order mark at the start.
    text = read_text(path, most=MAX_BYTES, encoding="utf-8-sig")
    try:
        return _read(path, text, name, date, mapped)
    except csv.Error as error:
        raise ConfigError([Problem(str(path), 0, 0, f"invalid CSV: {error}")]) from error


def _read(
    path: Path, text: str, name: str, date: str, mapped: ColumnMapping | None
) -> ReferenceSeries:
    if mapped is not None:
        rows = read_columns(str(path), text, mapped)
        return ReferenceSeries(name=name, date=date, source=str(path), rows=rows)
    if text.lstrip().startswith("{") or path.suffix == ".json":
        return _fio_series(path, text, name, date)
    return _known_form(name, date, str(path), str(path), text)


def _known_form(name: str, date: str, source: str, file: str, text: str) -> ReferenceSeries:
    reader = csv.DictReader(text.splitlines(keepends=True))
    columns = set(reader.fieldnames or ())
    read_row = next((read for required, read in FORMS if required <= columns), None)
    if read_row is None:
        message = f"unknown table format; its columns must include {columns_text()}"
        step = "map its columns: --column iops=HEADER --column rw=HEADER …"
        raise ConfigError([Problem(file, 1, 1, message)], next_step=step)
    rows = []
    for record in bounded(file, reader):
        line = reader.line_num
        try:
            rows.append(read_row(line, {key: value or "" for key, value in record.items()}))
        except KeyError as error:
            raise ConfigError([Problem(file, line, 1, f"unknown value {error}")]) from error
        except ValueError as error:
            raise ConfigError([Problem(file, line, 1, f"invalid row: {error}")]) from error
    return ReferenceSeries(name=name, date=date, source=source, rows=tuple(rows))


def _fio_series(path: Path, text: str, name: str, date: str) -> ReferenceSeries:
    try:
        report = read_report(text)
    except (OutputUnreadable, ToolFailed) as error:
        raise ConfigError([Problem(str(path), 1, 1, error.reason)]) from error
    if not date and report.written:
        date = report.written.date().isoformat()
    return ReferenceSeries(name=name, date=date, source=str(path), rows=_fio_rows(report))


def _fio_rows(report: Report) -> tuple[ReferenceRow, ...]:
    rows = []
    for place, job in enumerate(report.jobs, start=1):
        job_options = job.get("job options")
        options = job_options if isinstance(job_options, dict) else {}
        name = str(job.get("jobname", ""))
        values: dict[tuple[str, str], float] = {}
        figures = []
        for direction in ("read", "write"):
            iops, bandwidth = number(job, direction, "iops"), number(job, direction, "bw_bytes")
            if not iops or bandwidth is None:
                continue
            runtime = number(job, direction, "runtime")
            values |= {("iops", direction): iops, ("bandwidth", direction): bandwidth}
            mean = number(job, direction, "clat_ns", "mean")
            values |= {} if mean is None else {("clat_mean", direction): mean / 1e9}
            block = _block(str(options.get("bs", "")))
            figures.append(
                Figures(
                    direction=direction,
                    iops=iops,
                    bandwidth=bandwidth,
                    block_bytes=block,
                    size=number(job, direction, "io_bytes"),
                    seconds=runtime / 1000 if runtime else None,
                    iops_step=0.5,
                )
            )
        shares = {part: number(job, f"{part}_cpu") for part in ("usr", "sys")}
        rows.append(
            ReferenceRow(
                line=place,
                place={"table": name, "rw": str(options.get("rw", ""))},
                values=values,
                figures=tuple(figures),
                cpu={part: share / 100 for part, share in shares.items() if share is not None},
            )
        )
    return tuple(rows)


def _block(text: str) -> int | None:
    """Return fio's `bs` in bytes; None if it has one size per direction."""
    try:
        return parse_size(text.strip().lower().removesuffix("b"))
    except ValueError:
        return None
