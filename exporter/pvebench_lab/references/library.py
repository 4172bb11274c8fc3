"""Available reference series: shipped tables, files of the user, and imported series.

An imported series is a separate JSON file next to the database, never one of the results.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from pvebench.config.document import message_of, shown
from pvebench.errors import ConfigError, OutputUnreadable, Problem, StoreError, ToolFailed
from pvebench.files import read_text
from pvebench.model.consistency import Figures
from pvebench.model.reference_series import ReferenceRow, ReferenceSeries, ReferenceSource
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Direction
from pvebench.workloads.fio import Fio
from pvebench.workloads.fio_job import in_bytes, pack_options
from pvebench.workloads.fio_report import Report, number, read_reports
from pvebench_lab.references.columns import ColumnMapping, own_columns, read_columns

PUBLISHED: Final = (
    "bus-format-2012",
    "cache-bus-format-2017",
    "lvmcache-2019",
    "media-2018",
    "raid-2017",
    "shared-storage-2021",
)
"""Names of the shipped tables."""
_VARIED: Final = ("fault", "touch", "during", "vms", "latency_target")
"""Parameters of a workload that a job of fio alone cannot have."""
MAX_BYTES: Final = 64 * MIB
"""Maximum size of an imported file in bytes."""
_STEP: Final = (
    "run fio with --output-format=json, or write a table with columns such as rw, bs, read_iops"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Library(ReferenceSource):
    """The published tables, and series that were imported to a directory."""

    shipped = frozenset(PUBLISHED)

    def names(self, directory: Path) -> list[str]:
        imported = (path.stem for path in directory.glob("*.json"))
        return sorted({*PUBLISHED, *imported})

    def keep(self, directory: Path, series: ReferenceSeries) -> Path:
        """Write a series under its name, replacing an older one of that name; return the file.

        Raises:
            StoreError: a shipped table has this name, or the file cannot be written.
        """
        if series.name in PUBLISHED:
            raise StoreError(
                f"{series.name} is the name of a table that is shipped with pvebench",
                next_step="choose another name with --name",
            )
        path = _path(directory, series.name)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(_plain(series), indent=1) + "\n", "utf-8")
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def get(self, directory: Path, name: str) -> ReferenceSeries:
        if name in PUBLISHED:
            return published(name)
        path = _path(directory, name)
        try:
            return _from_plain(json.loads(path.read_text("utf-8")))
        except OSError as error:
            raise StoreError(
                f"no reference series {name}; available: {', '.join(self.names(directory))}",
                next_step="import one: pvebench import FILE --name NAME",
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"{path} is damaged: {error}", next_step="import it again") from error


def _path(directory: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{shown(name)!r} is not a valid name of a series",
            cause="a name has letters, digits, '.', '_', '-'; the first is a letter or digit",
            next_step="choose another name with --name",
        )
    return directory / f"{name}.json"


def _plain(series: ReferenceSeries) -> dict[str, Any]:
    data = asdict(series)
    for row in data["rows"]:
        row["values"] = [[*key, value] for key, value in row["values"].items()]
    return data


def _from_plain(data: dict[str, Any]) -> ReferenceSeries:
    rows = []
    for row in data["rows"]:
        values = {(metric, direction): value for metric, direction, value in row["values"]}
        figures = tuple(Figures(**each) for each in row.get("figures", ()))
        rows.append(ReferenceRow(**row | {"values": values, "figures": figures}))
    return ReferenceSeries(**data | {"rows": tuple(rows)})


def published(name: str) -> ReferenceSeries:
    """Return a shipped table."""
    file = resources.files("pvebench_lab.references").joinpath("published", f"{name}.json")
    return _from_plain(json.loads(file.read_text("utf-8")))


def read_file(
    path: Path, *, name: str, date: str = "", mapped: ColumnMapping | None = None
) -> ReferenceSeries:
    """Return the series in a file of the user: fio's JSON, or a CSV table.

    Args:
        date: date of the measurements; empty: taken from the file if it has one.
        mapped: mapping of its columns; None: it is fio's JSON, or its columns have names of fields.

    Raises:
        ConfigError: the file cannot be read or has an unknown format.
    """
    # Spreadsheets write a byte order mark at the start.
    text = read_text(path, most=MAX_BYTES, encoding="utf-8-sig")
    try:
        return _read(path, text, name, date, mapped)
    except ConfigError as error:
        tool = "" if mapped is not None or '"fio version"' in text else foreign(text)
        if not tool:
            raise
        raise ConfigError([Problem(str(path), 1, 1, f"this is {tool}")], next_step=_STEP) from error
    except csv.Error as error:
        raise ConfigError([Problem(str(path), 0, 0, f"invalid CSV: {error}")]) from error


def _read(
    path: Path, text: str, name: str, date: str, mapped: ColumnMapping | None
) -> ReferenceSeries:
    if '"fio version"' in text or text.lstrip().startswith("{") or path.suffix == ".json":
        return _fio_series(path, text, name, date)
    rows = read_columns(str(path), text, mapped or own_columns(str(path), text))
    return ReferenceSeries(name=name, date=date, source=str(path), rows=rows)


def _fio_series(path: Path, text: str, name: str, date: str) -> ReferenceSeries:
    try:
        reports = read_reports(text)
    except (OutputUnreadable, ToolFailed) as error:
        problem = Problem(str(path), 1, 1, error.reason)
        raise ConfigError([problem], next_step=_STEP) from error
    written = [report.written for report in reports if report.written]
    if not date and written:
        date = max(written).date().isoformat()
    rows = tuple(row for report in reports for row in fio_rows(report))
    if not any(row.values for row in rows):
        message = "no job of fio completed an operation of known direction"
        raise ConfigError([Problem(str(path), 1, 1, message)])
    numbered = tuple(replace(row, line=line) for line, row in enumerate(rows, start=1))
    return ReferenceSeries(name=name, date=date, source=str(path), rows=numbered)


def fio_rows(report: Report) -> Iterator[ReferenceRow]:
    """Yield a row per job; fio without `group_reporting` lists each of its `numjobs`."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for job in report.jobs:
        key = tuple(str(job.get(part, "")) for part in ("groupid", "hostname", "jobname"))
        groups.setdefault(key, []).append(job)
    together = Counter(group for group, *_ in groups)
    for (group, _, name), jobs in groups.items():
        yield _fio_row(name, jobs, report, alone=together[group] == 1)


def _fio_row(
    name: str, jobs: Sequence[Mapping[str, Any]], report: Report, *, alone: bool
) -> ReferenceRow:
    job_options = jobs[0].get("job options")
    options = {**report.options, **(job_options if isinstance(job_options, dict) else {})}
    texts = {key: str(value) for key, value in options.items()}
    directions = [each for each in (*Direction, "mixed") if _sum(jobs, each, "iops")]
    match, unmatched = _fio_match(texts, directions, alone=alone)
    shares = {part: number(jobs[0], f"{part}_cpu") for part in ("usr", "sys")}
    block = _block(texts.get("bs", ""))
    return ReferenceRow(
        line=0,
        place={"table": name, "rw": texts.get("rw", "")},
        match=match,
        unmatched=unmatched if directions else "no completed operation",
        values={key: value for each in directions for key, value in _fio_values(jobs, each)},
        figures=tuple(_fio_figures(jobs, each, block) for each in directions),
        cpu={part: share / 100 for part, share in shares.items() if share is not None},
    )


def _fio_match(
    texts: Mapping[str, str], directions: Sequence[str], *, alone: bool
) -> tuple[dict[str, Any], str]:
    """Return the parameters of the same workload in a pack; without one, the reason."""
    if directions == ["mixed"]:
        return {}, "its reads and writes are reported together"
    if not alone:
        return {}, "ran at the same time as other jobs"
    try:
        options = Fio.options.model_validate(pack_options(texts, direct=False))
    except ValidationError as error:
        return {}, message_of(error.errors()[0])
    except ValueError as error:
        return {}, "; ".join(str(error).splitlines())
    parameters = options.workload(ramp_seconds=0, runtime_seconds=0).parameters
    same = {name: value for name, value in parameters.items() if name not in ("version", "size")}
    return {"tool": Fio.tool, **same, **dict.fromkeys(_VARIED)}, ""


def _fio_values(
    jobs: Sequence[Mapping[str, Any]], direction: str
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the numbers of jobs that ran together; fio 2 has KiB/s and microseconds."""
    jobs = [job for job in jobs if number(job, direction, "iops")]
    rates = [number(job, direction, "iops") or 0.0 for job in jobs]
    yield ("iops", direction), sum(rates)
    yield ("bandwidth", direction), _fio_bandwidth(jobs, direction)
    means = [
        (number(job, direction, "clat_ns", "mean") or 0) / 1e9
        or (number(job, direction, "clat", "mean") or 0) / 1e6
        for job in jobs
    ]
    if all(means):  # gtod_reduce writes 0
        weighted = sum(mean * rate for mean, rate in zip(means, rates, strict=True))
        yield ("clat_mean", direction), weighted / sum(rates)


def _fio_bandwidth(jobs: Sequence[Mapping[str, Any]], direction: str) -> float:
    return _sum(jobs, direction, "bw_bytes") or KIB * _sum(jobs, direction, "bw")


def _fio_figures(jobs: Sequence[Mapping[str, Any]], direction: str, block: int | None) -> Figures:
    runtime = max(number(job, direction, "runtime") or 0.0 for job in jobs)
    exact = _sum(jobs, direction, "bw_bytes")
    return Figures(
        direction=direction,
        iops=_sum(jobs, direction, "iops"),
        bandwidth=_fio_bandwidth(jobs, direction),
        block_bytes=block,
        # fio 2 writes KiB in io_bytes.
        size=_sum(jobs, direction, "io_bytes")
        * (1 if number(jobs[0], direction, "io_kbytes") or exact else KIB),
        seconds=runtime / 1000 if runtime else None,
        iops_step=0.5,
        bandwidth_step=0.0 if exact else KIB * len(jobs),
    )


def _sum(jobs: Sequence[Mapping[str, Any]], direction: str, key: str) -> float:
    return sum(number(job, direction, key) or 0.0 for job in jobs)


def _block(text: str) -> int | None:
    """Return fio's `bs` in bytes; None if it has one size per direction."""
    try:
        return int(in_bytes(text))
    except ValueError:
        return None


# --- Output of tools that is neither a history nor a table of storage results.

_START: Final = 100_000
"""Characters of a file that are searched."""
_FLAGS: Final = re.MULTILINE | re.IGNORECASE
_SIGNS: Final = {
    "fio's terse output": r"^[2-5];fio-\d|^[^;\n]*;fio-\d",
    "fio's text output": r"^ *(read|write|trim) *: *(IOPS=|io=)|\(groupid=\d+, jobs=|^fio-\d",
    "a log of fio": r"\A\d+, *\d+, *[012], *\d+(, *\d+)*$",
    "messages of fio": r"\Afio: |verify failed at file",
    "output of diskspd": r"^Command Line: .*diskspd|\AInput parameters:",
    "output of pgbench": r"^tps = [\d.]+|^progress: [\d.]+ s, [\d.]+ tps|^latency average = ",
    "output of sysbench": r"^sysbench \d",
    "output of HammerDB": r"HammerDB CLI",
    "output of vdbench": r"\bVdbench\b",
    "output of hyperfine": r'\A\s*\{\s*"results":\s*\[\s*\{\s*"command"|\Acommand,mean,stddev',
    "output of JMH": r'"jmhVersion"|^Benchmark +(\(.*\) +)?Mode +Cnt',
    "output of pytest-benchmark": r'"machine_info"',
    "output of Google Benchmark": r'"cpu_scaling_enabled"|"run_type": "iteration"',
    "output of BenchmarkDotNet": r"BenchmarkDotNet",
    "output of a benchmark of Rust": r"\bbench: +[\d,.]+ | time: +\[[\d.]+ ",
    "output of a benchmark of Go": r"^Benchmark\S+\s+\d+\s+[\d.]+ ns/op",
    "XML or HTML, such as of diskspd": r"\A\s*<",
}


def foreign(text: str) -> str:
    """Return which tool's output a text is that could not be read; empty: unknown."""
    start = text[:_START]
    signs = _SIGNS.items()
    return next((name for name, sign in signs if re.search(sign, start, _FLAGS)), "")
