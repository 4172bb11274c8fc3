"""Reading reference series: the shipped tables, and CSV or fio JSON of the user's own."""

from __future__ import annotations

import csv
from importlib import resources
from pathlib import Path
from typing import Final

from pvebench.analysis.honesty import Figures
from pvebench.errors import ConfigError, OutputUnreadable, Problem, ToolFailed
from pvebench.report.columns import Mapped, read_columns
from pvebench.report.series import ReferenceRow, Series
from pvebench.report.shapes import SHAPES, columns_text
from pvebench.workloads.fio_json import number, read_report

PUBLISHED: Final[dict[str, tuple[str, str]]] = {
    "bus-format-2012": ("2012", "QEMU on Fedora 17, guest Ubuntu 12.04; bonnie++ 1.96 and dd"),
    "cache-bus-format-2017": ("2017", "Proxmox VE 4.4, i5-2520M, Intel 320 SSD; fio and ioping"),
    "lvmcache-2019": ("2019", "dm-cache on an OCZ Vertex 2 EX over a hard disk; fio 4k random"),
    "media-2018": ("2018", "Proxmox VE 5.2, two Xeon E5-2609 v3; read off charts"),
    "raid-2017": ("2017", "two laptop hard disks, single and md RAID0, Debian 8"),
    "shared-storage-2021": ("2021", "Proxmox VE 7.0, five nodes, 1 GbE; fio and sysbench fileio"),
}
"""Shipped table -> its date and source."""


def published(name: str) -> Series:
    """Return a shipped table."""
    date, source = PUBLISHED[name]
    file = resources.files("pvebench.report").joinpath("published", f"{name}.csv")
    return _series(name, date, source, name + ".csv", file.read_text("utf-8"))


def read_file(path: Path, *, name: str, date: str, mapped: Mapped | None = None) -> Series:
    """Return the series in a file of the user's: fio's JSON, or a CSV table.

    Args:
        mapped: what its columns mean; None: it is fio's JSON, or has one of the known forms.

    Raises:
        ConfigError: it cannot be read, or has no form that is known here.
    """
    text = _text(path)
    if mapped is not None:
        rows = read_columns(str(path), text, mapped)
        return Series(name=name, date=date, source=str(path), rows=rows)
    if text.lstrip().startswith("{") or path.suffix == ".json":
        return Series(name=name, date=date, source=str(path), rows=_fio_rows(path, text))
    return _series(name, date, str(path), str(path), text)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # spreadsheets put a mark in front
    except OSError as error:
        raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {error}")]) from error
    except UnicodeDecodeError as error:
        message = f"byte {error.start + 1} is not UTF-8"
        step = f"iconv -f WINDOWS-1252 -t UTF-8 {path} > new.csv, if a spreadsheet wrote it"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=step) from error


def _series(name: str, date: str, source: str, file: str, text: str) -> Series:
    reader = csv.DictReader(text.splitlines())
    columns = set(reader.fieldnames or ())
    shape = next((read for wanted, read in SHAPES if wanted <= columns), None)
    if shape is None:
        message = f"no table that is known here; its columns must include {columns_text()}"
        step = "or say what its columns mean: --column iops=HEADER --column rw=HEADER …"
        raise ConfigError([Problem(file, 1, 1, message)], next_step=step)
    rows = []
    for record in reader:
        line = reader.line_num
        try:
            rows.append(shape(line, {key: value or "" for key, value in record.items()}))
        except (ValueError, KeyError) as error:
            raise ConfigError([Problem(file, line, 1, f"cannot be read: {error}")]) from error
    return Series(name=name, date=date, source=source, rows=tuple(rows))


def _fio_rows(path: Path, text: str) -> tuple[ReferenceRow, ...]:
    try:
        report = read_report(text)
    except (OutputUnreadable, ToolFailed) as error:
        raise ConfigError([Problem(str(path), 1, 1, error.reason)]) from error
    rows = []
    for place, job in enumerate(report.jobs, start=1):
        options = job.get("job options") or {}
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
                    direction=direction, iops=iops, bandwidth=bandwidth, block_bytes=block,
                    size=number(job, direction, "io_bytes"),
                    seconds=runtime / 1000 if runtime else None, iops_step=0.5,
                )
            )  # fmt: skip
        shares = {part: number(job, f"{part}_cpu") for part in ("usr", "sys")}
        rows.append(
            ReferenceRow(
                line=place, place={"table": name, "rw": str(options.get("rw", ""))}, values=values,
                figures=tuple(figures),
                cpu={part: share / 100 for part, share in shares.items() if share is not None},
            )
        )  # fmt: skip
    return tuple(rows)


def _block(text: str) -> int | None:
    """Return fio's `bs` in bytes: k, m and g count in steps of 1024, and need no unit."""
    factors = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    text = text.strip().lower().removesuffix("b")
    factor = factors.get(text[-1:], 1)
    digits = text.rstrip("kmg")
    return int(digits) * factor if digits.isdigit() else None
