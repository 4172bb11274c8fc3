"""`pvebench verdict` and `pvebench judge`: changes, their size and their confidence."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.judge import Judge, Material
from pvebench.cli.options import PATH, format_option, read_settings, settings_options
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import ConfigError, Problem, StoreError
from pvebench.files import read_text
from pvebench.model.judged import JUDGED, Judged
from pvebench.model.units import MIB, plain_number
from pvebench.store.current import Results
from pvebench.store.store import Store
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.change_tracker import ChangeTracker
from pvebench.verdicts.fastest_text import latest_operation_lines
from pvebench.verdicts.feed import Feed
from pvebench.verdicts.node_verdicts import Verdicts, changes_of
from pvebench.verdicts.outages import outage_text
from pvebench.verdicts.overall_state import (
    COLUMNS,
    count_line,
    exit_code,
    mark,
    progress_lines,
    verdict_row,
    verdicts_data,
)
from pvebench.verdicts.ranking import shown_definitions
from pvebench.verdicts.verdict_updates import VerdictService

# --- A history from a CSV file; errors have file:line:column.

CSV_COLUMNS: Final = ("time", "value", "environment", "case")
"""`time` and `value` are required."""
MAX_BYTES: Final = 16 * MIB
MAX_RUNS: Final = 50_000
MAX_CASES: Final = 500
MAX_ENVIRONMENTS: Final = 300
"""Limits of one file: more would take minutes; hourly runs are 8,766 per year."""
MAX_PROBLEMS: Final = 50


def read_csv(path: Path, figure: Judged) -> Material:
    """Return the histories in a file: a header, then one line per run.

    Times are ISO 8601 (default: UTC) or Unix seconds; values are positive
    numbers. A change of `environment` is an event; lines without `case` are one case.

    Raises:
        ConfigError: with every error of the file.
    """
    problems: list[Problem] = []
    cases: dict[str, list[GoodRun]] = {}
    for line, row, at in _rows(path, problems):
        point = _point(path, line, row, at, problems)
        if point is not None:
            cases.setdefault(row.get("case") or path.stem, []).append(point)
        if len(problems) >= MAX_PROBLEMS:
            break
    problems += _too_many(path, cases)
    if not problems and not cases:
        problems.append(Problem(str(path), 2, 1, "no runs after the header"))
    if problems:
        raise ConfigError(problems)
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
    counts = {
        "runs": (sum(len(points) for points in cases.values()), MAX_RUNS),
        "cases": (len(cases), MAX_CASES),
        "environments": (
            len({point.environment for points in cases.values() for point in points}),
            MAX_ENVIRONMENTS,
        ),
    }
    for what, (count, most) in counts.items():
        if count > most:
            message = f"more than {most} {what}; split the file or remove the oldest"
            yield Problem(str(path), 0, 0, message)


Row = dict[str, str]


def _rows(path: Path, problems: list[Problem]) -> Iterator[tuple[int, Row, dict[str, int]]]:
    """Yield (line, name -> text, name -> first column); the header must be valid."""
    line = 1
    text = read_text(path, most=MAX_BYTES, encoding="utf-8-sig")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        problems += _header_problems(path, header)
        if problems:
            return
        for cells in itertools.islice(reader, MAX_RUNS + 1):
            line = reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                message = f"{len(cells)} values for {len(header)} columns"
                problems.append(Problem(str(path), line, 1, message))
            starts = itertools.accumulate((len(cell) + 1 for cell in cells), initial=1)
            placed = list(zip(header, cells, starts, strict=False))
            texts = {name: cell.strip() for name, cell, _ in placed}
            yield line, texts, {name: start for name, _, start in placed}
    except csv.Error as error:
        problems.append(Problem(str(path), line + 1, 1, f"invalid CSV: {error}"))


def _header_problems(path: Path, header: list[str]) -> list[Problem]:
    unknown = [name for name in header if name not in CSV_COLUMNS]
    missing = [name for name in CSV_COLUMNS[:2] if name not in header]
    known = ", ".join(CSV_COLUMNS)
    messages = [f"unknown column {name[:50]!r}; known: {known}" for name in unknown[:MAX_PROBLEMS]]
    messages += [f"missing column {name!r}" for name in missing]
    return [Problem(str(path), 1, 1, message) for message in messages]


def _point(
    path: Path, line: int, row: Row, at: dict[str, int], problems: list[Problem]
) -> GoodRun | None:
    time, value = _time(row.get("time", "")), _value(row.get("value", ""))
    if time is None:
        text = f"{row.get('time', '')[:50]!r} is not a time: write 2026-03-01T12:00:00Z or seconds"
        problems.append(Problem(str(path), line, at.get("time", 1), text))
    if value is None:
        text = f"{row.get('value', '')[:50]!r} is not a positive number"
        problems.append(Problem(str(path), line, at.get("value", 1), text))
    if time is None or value is None:
        return None
    return GoodRun(time, row.get("environment", ""), value)


def _time(text: str) -> float | None:
    seconds = plain_number(text)
    try:
        moment = datetime.fromtimestamp(_iso(text) if seconds is None else seconds, UTC)
    except (ValueError, OverflowError, OSError):  # beyond any calendar
        return None
    return moment.timestamp()


def _iso(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _value(text: str) -> float | None:
    value = plain_number(text)
    return value if value is not None and math.isfinite(value) and value > 0 else None


# --- Output: headline, changes, table.

HEAD: Final = ("case", *COLUMNS)
REDEFINED: Final = 5
"""Maximum listed cases with a changed definition."""
MAX_SHORT: Final = 4
"""Maximum metrics that are listed without --all: those of one case."""
all_option = click.option("--all", "every", is_flag=True, help="Add a table of every metric.")


strict_option = click.option(
    "--strict", is_flag=True, help="Exit with code 10 if some results are inconclusive."
)


def show_verdicts(
    context: click.Context,
    verdicts: Verdicts,
    form: str,
    operations: Sequence[str] = (),
    *,
    every: bool,
    strict: bool,
) -> None:
    """Print verdicts and exit with `headline.exit_code`; a table of all only if it is short.

    Args:
        operations: effects of operations, printed as text and Markdown.
    """
    every = every or len(verdicts.verdicts) <= MAX_SHORT
    if form == "json":
        click.echo(json.dumps(verdicts_data(verdicts), indent=2))
    elif form == "markdown":
        _print_markdown(verdicts, operations, every=every)
    else:
        _print_text(verdicts, operations, every=every)
    context.exit(exit_code(verdicts, strict=strict))


def _print_text(verdicts: Verdicts, operations: Sequence[str], *, every: bool) -> None:
    """Print verdicts for a terminal."""
    click.echo(count_line(verdicts))
    for sign, line in _lines(verdicts):
        click.echo(f"{sign} {line}".strip())
    for line in operations:
        click.echo(f"{line}.")
    if every and verdicts.verdicts:
        click.echo()
        # Lines, not columns: in a narrow terminal, cut names would look alike.
        for name, direction, metric, word, ratio, interval, runs in _table_rows(verdicts):
            size = f", {ratio} ({interval})" if ratio else ""
            click.echo(f"{name} {f'{direction} {metric}'.strip()}: {word}{size}, runs: {runs}")
    elif verdicts.verdicts:
        click.echo("list every metric with --all")


def _print_markdown(verdicts: Verdicts, operations: Sequence[str], *, every: bool) -> None:
    """Print verdicts as Markdown, for a forum or an issue."""
    click.echo(f"**{count_line(verdicts)}**\n")
    for line in (*(line for _, line in _lines(verdicts)), *operations):
        click.echo(f"- {line}")
    if every and verdicts.verdicts:
        click.echo(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        for row in _table_rows(verdicts):
            click.echo(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |")


def _lines(verdicts: Verdicts) -> Iterator[tuple[str, str]]:
    """Yield (mark, line): new definitions, changes, outages, and what is missing until when."""
    for text in _redefined(verdicts):
        yield "", text
    for change in verdicts.changes:
        begin = datetime.fromtimestamp(change.begin, UTC)
        yield mark(change), f"{begin:%Y-%m-%d}: {sentence(change)}"
    for outage in verdicts.outages:
        yield "!", outage_text(outage)
    for line in progress_lines(verdicts):
        yield "", line


def _redefined(verdicts: Verdicts) -> Iterator[str]:
    """Yield the cases with a changed definition, newest first."""
    changes = verdicts.definition_changes
    yield from (change.text for change in changes[:REDEFINED])
    if len(changes) > REDEFINED:
        yield f"{len(changes) - REDEFINED} more cases with a changed definition (--format json)"


def _table_rows(verdicts: Verdicts) -> Iterator[tuple[str, ...]]:
    return ((verdict.history.name, *verdict_row(verdict)) for verdict in verdicts.verdicts)


# --- The commands.


@click.command()
@click.argument("file", type=PATH)
@click.option(
    "--metric",
    type=click.Choice(list(JUDGED)),
    default="throughput",
    show_default=True,
    help="Metric of the values; it defines whether higher is better.",
)
@all_option
@strict_option
@format_option("markdown")
@click.pass_context
def judge(
    context: click.Context, /, file: Path, metric: str, every: bool, strict: bool, form: str
) -> None:
    """Detect changes in a CSV history.

    Columns: time, value, and optionally environment and case.
    """
    verdicts = judged(read_csv(file, JUDGED[metric]), Judge())
    show_verdicts(context, verdicts, form, every=every, strict=strict)


def judged(material: Material, analysis: Judge) -> Verdicts:
    """Return the verdicts on histories that are not from a store."""
    report = analysis.judge(material)
    labels = {verdict.history.of: {"node": "", "storage": ""} for verdict in report.verdicts}
    verdicts = Verdicts(reports=(report,), labels=labels, changes=changes_of((report,)))
    return replace(verdicts, changes=ChangeTracker().name(verdicts))


@click.command()
@settings_options
@click.option(
    "--since", type=click.DateTime(), help="Show only later changes (UTC); baselines stay."
)
@click.option(
    "--env",
    "between",
    nargs=2,
    metavar="A B",
    help="Compare two environments, by digest or slug (see --format json, levels).",
)
@all_option
@strict_option
@format_option("markdown")
@click.pass_context
def verdict(
    context: click.Context,
    /,
    since: datetime | None,
    between: tuple[str, str] | None,
    every: bool,
    strict: bool,
    form: str,
    **options: Any,
) -> None:
    """Report regressions and their likely causes.

    Exits with code 1 if a confirmed regression or an implausible improvement is not accepted;
    with --strict, exits with code 10 if there is none but some results are inconclusive.
    """
    settings = read_settings(**options)
    with results_of(settings) as store:
        chosen = frozenset(_digest(store, name) for name in between) if between else None
        results = Results(store)
        verdicts = verdicts_of(settings, results, chosen)
    if since is not None:
        verdicts = verdicts.since(since.replace(tzinfo=UTC).timestamp())
    operations = latest_operation_lines(results.now, shown_definitions(results.now))
    show_verdicts(context, verdicts, form, operations, every=every, strict=strict)


def verdicts_of(
    settings: Settings, results: Results, environments: frozenset[str] | None = None
) -> Verdicts:
    """Return the verdicts on stored results; with `environments`, on those of both only."""
    issues = load_known_issues(*settings.known_issues)
    return VerdictService(Feed(results, environments=environments), issues).judge()


def _digest(store: Store, name: str) -> str:
    """Return the digest of an environment by digest prefix or slug.

    Raises:
        StoreError: none or several match.
    """
    known = store.environments()
    digests = [
        entry["digest"]
        for entry in known
        if name == entry["slug"] or str(entry["digest"]).startswith(name)
    ]
    if len(digests) != 1:
        listed = ", ".join(f"{entry['digest']} ({entry['slug']})" for entry in known)
        raise StoreError(
            f"{len(digests)} environments match {name!r}",
            next_step=f"choose one of: {listed or 'no environment yet'}",
        )
    return str(digests[0])
