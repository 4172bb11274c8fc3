"""`pvebench judge`: changes in the results of other benchmarks."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.judge import Judge, Material
from pvebench.cli.options import PATH, format_option, writing
from pvebench.cli.verdict import all_option, show_verdicts, strict_option
from pvebench.errors import ConfigError, OutputUnreadable, Problem, ToolFailed
from pvebench.files import read_text
from pvebench.model import run_metrics
from pvebench.model.figure import VerdictFigure
from pvebench.model.run_metrics import JUDGED
from pvebench.model.units import DAY, MIB, plain_number
from pvebench.verdicts.change_tracker import ChangeTracker
from pvebench.verdicts.node_verdicts import Verdicts, changes_of
from pvebench.workloads.fio_report import read_reports
from pvebench_lab.cli.history_plot import plot, sparkline
from pvebench_lab.cli.import_ import decimal_option, named
from pvebench_lab.references.columns import cell_error
from pvebench_lab.references.delimited import (
    Decimal,
    DelimitedText,
    TextCell,
    Unclear,
    decimal_number,
    decimal_of,
)
from pvebench_lab.references.library import fio_rows, foreign

MAX_BYTES: Final = 16 * MIB
MAX_RUNS: Final = 50_000
MAX_CASES: Final = 500
MAX_ENVIRONMENTS: Final = 300
"""Limits of one file: more would take minutes; hourly runs are 8,766 per year."""
MAX_PROBLEMS: Final = 50
VALUES: Final = (1e-18, 1e18)
"""Smallest and largest value; ratios of others would not be finite."""
_LATEST: Final = 32_503_680_000.0
"""UNIX seconds of the year 3000."""
_UNITS: Final = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))
"""Limit of a time -> its units per second: s, ms, µs or ns since 1970."""
_OPTIONAL: Final = ("environment", "case")
_RATES: Final = ("benchmarkjs", "customBiggerIsBetter", "pytest")
"""Tools of github-action-benchmark that report rates; all others report times or sizes."""


class _Result(NamedTuple):
    """A result as in the file."""

    time: TextCell
    value: TextCell
    case: str
    environment: str


def read_history(path: Path, figure: VerdictFigure, decimal: Decimal | None = None) -> Material:
    """Return the histories in a file, and report values of 0 or none, which are left out.

    It is a table with the columns `time`, `value` and optionally `environment` and `case`, or with
    a column per case; results of fio; or those of github-action-benchmark.

    Raises:
        ConfigError: with every error of the file.
    """
    problems: list[Problem] = []
    cases: dict[str, list[GoodRun]] = {}
    text = read_text(path, most=MAX_BYTES, encoding="utf-8-sig")
    results = _results(path, text, figure, problems)
    decimal = decimal or _decimal(path, results, semicolons=";" in text.partition("\n")[0])
    empty: list[int] = []
    for result in results:
        point = _point(path, result, decimal, problems)
        if point is None:
            empty.append(result.time.line)
        else:
            cases.setdefault(result.case or path.stem, []).append(point)
        if len(problems) >= MAX_PROBLEMS:
            break
    if empty:
        click.echo(
            f"{path}: left out, no value or 0: lines {named([*dict.fromkeys(empty)])}", err=True
        )
    latest = max((point.time for points in cases.values() for point in points), default=0.0)
    if latest > datetime.now(UTC).timestamp() + DAY:
        shown = f"{datetime.fromtimestamp(latest, UTC):%Y-%m-%d}"
        click.echo(f"{path}: results of the future, up to {shown}; check the times", err=True)
    problems += _too_many(path, cases)
    if not problems and not cases:
        message = "no run has a value" if results else "no runs after the header"
        problems.append(Problem(str(path), 2, 1, message))
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.line))
    return _material(cases, figure)


def _material(cases: Mapping[str, Iterable[GoodRun]], figure: VerdictFigure) -> Material:
    histories = [
        CaseHistory(
            case=name,
            of=name,
            name=name,
            figure=figure,
            labels={},
            points=GoodRuns(sorted(points, key=lambda point: point.time)),
        )
        for name, points in cases.items()
    ]
    timeline = sorted({(p.time, p.environment) for history in histories for p in history.points})
    facts = {name: {"environment": name} for _, name in timeline}
    return Material(node="", histories=histories, timeline=timeline, facts=facts)


def _too_many(path: Path, cases: dict[str, list[GoodRun]]) -> Iterator[Problem]:
    environments = {point.environment for points in cases.values() for point in points}
    counts = {
        "runs": (sum(len(points) for points in cases.values()), MAX_RUNS),
        "cases": (len(cases), MAX_CASES),
        "environments": (len(environments), MAX_ENVIRONMENTS),
    }
    for what, (count, most) in counts.items():
        if count > most:
            message = f"more than {most} {what}; split the file or remove the oldest"
            yield Problem(str(path), 0, 0, message)


def _results(
    path: Path, text: str, figure: VerdictFigure, problems: list[Problem]
) -> list[_Result]:
    """Return the results in a file, up to the first line that cannot be read."""
    results: list[_Result] = []
    try:
        read = (
            _of_fio if '"fio version"' in text else _of_commits if "{" in text[:99] else _of_table
        )
        results.extend(read(path, text, figure))
    except ConfigError as error:
        problems += error.problems
    except csv.Error as error:
        problems.append(Problem(str(path), len(results) + 2, 1, f"invalid CSV: {error}"))
    except (OutputUnreadable, ToolFailed) as error:
        problems.append(Problem(str(path), 1, 1, error.reason))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = "neither fio's JSON nor data.js of github-action-benchmark; write a table"
        problems.append(Problem(str(path), 1, 1, f"{message} with the columns time and value"))
    if not results and '"fio version"' not in text and (tool := foreign(text)):
        message = f"this is {tool}; write a table with the columns time and value, a line per run"
        problems[:] = [Problem(str(path), 1, 1, message)]
    return results


def _check_direction(path: Path, what: str, figure: VerdictFigure, *, rates: bool) -> None:
    """Raise ConfigError for rates that would be judged as times, or times as rates."""
    if rates is not figure.more_is_better:
        metric = "throughput" if rates else run_metrics.OPERATION_TIME.name
        message = f"{what}: {'more' if rates else 'less'} is better, unlike {figure.name}"
        raise ConfigError([Problem(str(path), 1, 1, f"{message}; select --metric {metric}")])


def _of_table(path: Path, text: str, _: VerdictFigure) -> Iterator[_Result]:
    table = DelimitedText(str(path), text, ["time"])
    names = _value_columns(path, table)
    for row in table.records(MAX_RUNS + 1):
        cells = {name.casefold(): cell for name, cell in row.cells.items()}
        case, environment = (cells[n].text if n in cells else "" for n in ("case", "environment"))
        for name in names:
            series = "" if name.casefold() == "value" else name
            yield _Result(cells["time"], row.cells[name], case or series, environment)


def _value_columns(path: Path, table: DelimitedText) -> list[str]:
    """Return the columns with values: `value`, or one of each case, as Grafana writes them."""
    names = [name for name in table.names if name.casefold() not in ("time", *_OPTIONAL)]
    others = [name for name in names if name.casefold() != "value"]
    if names and len(others) in (0, len(names)):
        return names
    message = f"unknown column {others[0][:50]!r}" if others else "missing column 'value'"
    step = "name the columns time, value, environment and case"
    raise ConfigError([Problem(str(path), 1, 1, f"{message}; {step}")])


def _of_commits(path: Path, text: str, figure: VerdictFigure) -> Iterator[_Result]:
    """Yield the results in data.js of github-action-benchmark; a commit is no environment."""
    data = json.loads(text[text.index("{") :].rstrip().removesuffix(";"))
    runs = [run for suite in data["entries"].values() for run in suite]
    for line, run in enumerate(runs, start=1):
        if tool := str(run.get("tool", "")):
            _check_direction(path, f"tool {tool}", figure, rates=tool in _RATES)
        for result in run["benches"]:
            time, value = (TextCell(str(text), line, 1) for text in (run["date"], result["value"]))
            yield _Result(time, value, str(result["name"]), "")


def _of_fio(path: Path, text: str, figure: VerdictFigure) -> Iterator[_Result]:
    """Yield the I/O per second of each job and direction; of a job without any, no value."""
    _check_direction(path, "fio's I/O per second", figure, rates=True)
    for line, report in enumerate(read_reports(text), start=1):
        if report.written is None:
            message = f"report {line} has no time; add `timestamp`, in UNIX seconds"
            raise ConfigError([Problem(str(path), 1, 1, message)])
        time = TextCell(str(report.written.timestamp()), line, 1)
        for row in fio_rows(report):
            if not row.values:
                yield _Result(time, TextCell("", line, 1), row.place["table"], "")
            for (metric, direction), value in row.values.items():
                if metric == "iops":
                    case = f"{row.place['table']} {direction}"
                    yield _Result(time, TextCell(str(value), line, 1), case, "")


def _decimal(path: Path, results: list[_Result], *, semicolons: bool) -> Decimal:
    """Return the decimal mark of the values. Raises ConfigError if it is ambiguous."""
    digits, marks = "0123456789", ",." if semicolons else ","
    values = [each.value for each in results if {*marks} & {*each.value.text}]
    try:
        numbers = [(cell.text, cell) for cell in values if cell.text[0] in digits]
        return decimal_of(numbers) if numbers else Decimal.POINT
    except Unclear as error:
        raise cell_error(str(path), error.thing, str(error)) from error


def _point(
    path: Path, result: _Result, decimal: Decimal, problems: list[Problem]
) -> GoodRun | None:
    """Return a run, None without a value; add what is wrong with it to `problems`."""
    time, text, value = _time(result.time.text), result.value.text, 0.0
    if time is None:
        shown = f"{result.time.text[:50]!r} is not a time: write 2026-03-01T12:00:00Z or seconds"
        problems.append(Problem(str(path), result.time.line, result.time.column, shown))
    fault = f"{text[:50]!r} is not from {VALUES[0]:g} to {VALUES[1]:g}"
    try:
        value = decimal_number(text[:99], decimal) or 0.0
    except ValueError as error:
        fault, value = f"{error}; write the number only", -1.0
    if value and not VALUES[0] <= value <= VALUES[1]:
        problems.append(Problem(str(path), result.value.line, result.value.column, fault))
    return GoodRun(time or 0.0, result.environment, value) if value else None


def _time(text: str) -> float | None:
    number = plain_number(text)
    try:
        if number is None:
            moment = datetime.fromisoformat(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        else:
            seconds = number / next(unit for limit, unit in _UNITS if number < limit)
    except (ValueError, OverflowError, StopIteration):  # beyond any calendar
        return None
    return seconds if 0 <= seconds < _LATEST else None


@click.command()
@click.argument("file", type=PATH)
@click.option(
    "--metric",
    type=click.Choice(list(JUDGED)),
    default="throughput",
    show_default=True,
    help="Metric of the values; it defines whether higher is better.",
)
@decimal_option
@click.option(
    "--plot",
    "picture",
    type=PATH,
    metavar="FILE.svg",
    help="Also draw the history, with each step and why it does not count, if so.",
)
@all_option
@strict_option
@format_option("markdown")
@click.pass_context
def judge(
    context: click.Context,
    /,
    file: Path,
    metric: str,
    decimal: str | None,
    picture: Path | None,
    form: str,
    **options: Any,
) -> None:
    """Detect changes in the history of another benchmark.

    A CSV file with columns time, value, and optionally environment and case, or a column per case;
    JSON reports of fio; or data.js of github-action-benchmark.
    """
    history = read_history(file, JUDGED[metric], Decimal(decimal) if decimal else None)
    verdicts = judged(history, Judge())
    if picture is not None:
        with writing(picture):
            picture.write_bytes(plot(verdicts.verdicts))
        click.echo(f"wrote {picture}", err=True)
    show_verdicts(context, verdicts, form, below=sparkline, **options)


def judged(material: Material, analysis: Judge) -> Verdicts:
    """Return the verdicts on histories that are not from a store."""
    report = analysis.judge(material)
    labels = {verdict.history.of: {"node": "", "storage": ""} for verdict in report.verdicts}
    verdicts = Verdicts(reports=(report,), labels=labels, changes=changes_of((report,)))
    return replace(verdicts, changes=ChangeTracker().name(verdicts))
