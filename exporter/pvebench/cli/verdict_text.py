"""How verdicts are shown. For people: the summary first, then what moved, then the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import click
from rich.table import Table

from pvebench.analysis.together.findings import Finding
from pvebench.analysis.verdict import VerdictState
from pvebench.analysis.words import sentence
from pvebench.cli.console import make_console
from pvebench.judging import Verdicts
from pvebench.judging.data import verdicts_data
from pvebench.judging.headline import calm, counts_text
from pvebench.judging.rows import COLUMNS, verdict_row

HEAD: Final = ("case", *COLUMNS)
SIGNS: Final = {True: "×", False: "+"}
REDEFINED: Final = 5
"""Cases with another definition that are named."""
CANNOT_TELL: Final = 10
"""Exit status with `--strict`; those below are of errors."""
FORMATS: Final = ("text", "markdown", "json")

form_option = click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="markdown for a forum, json for programs.",
)
significant_option = click.option(
    "--only-significant", is_flag=True, help="Leave out what is the same or has no verdict."
)


strict_option = click.option(
    "--strict", is_flag=True, help="End with 10 if nothing got slower, but not all can be told."
)


def show_verdicts(
    context: click.Context, verdicts: Verdicts, form: str, *, only_significant: bool, strict: bool
) -> None:
    """Print verdicts in the form asked for; end with 1 if anything got slower.

    Where nothing did: with `CANNOT_TELL` if that is asked for and not known of everything.
    """
    if form == "json":
        click.echo(json.dumps(verdicts_data(verdicts), indent=2))
    elif form == "markdown":
        _print_markdown(verdicts, only_significant=only_significant)
    else:
        _print_text(verdicts, only_significant=only_significant)
    unknown = not verdicts.verdicts or VerdictState.CANNOT_TELL in verdicts.counts()
    context.exit(1 if verdicts.regressions else CANNOT_TELL if strict and unknown else 0)


def _print_text(verdicts: Verdicts, *, only_significant: bool) -> None:
    """Print verdicts for a terminal."""
    for line in (*_summary(verdicts), *_redefined(verdicts)):
        click.echo(line)
    standing = verdicts.regressions
    for finding in verdicts.findings:
        over = finding.accepted or (finding.regression and finding not in standing)
        click.echo(f"{'-' if over else SIGNS[finding.regression]} {_dated(finding)}")
    rows = list(_rows(verdicts, only_significant=only_significant))
    if rows:
        table = Table(*HEAD, box=None)
        for row in rows:
            table.add_row(*row)
        click.echo()
        make_console().print(table)


def _print_markdown(verdicts: Verdicts, *, only_significant: bool) -> None:
    """Print verdicts as Markdown, for a forum or an issue."""
    for line in _summary(verdicts):
        click.echo(f"**{line}**\n")
    for line in _redefined(verdicts):
        click.echo(f"- {line}")
    for finding in verdicts.findings:
        click.echo(f"- {_dated(finding)}")
    rows = list(_rows(verdicts, only_significant=only_significant))
    if rows:
        click.echo(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        for row in rows:
            click.echo(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |")


def _dated(finding: Finding) -> str:
    """Return a change with its day, as one tells a story."""
    return f"{datetime.fromtimestamp(finding.time, UTC):%Y-%m-%d}: {sentence(finding)}"


def _summary(verdicts: Verdicts) -> Iterator[str]:
    count = len(verdicts.regressions)
    if count:
        yield f"{count} regression{'s' if count > 1 else ''}: {counts_text(verdicts)}"
    else:
        yield calm(verdicts)


def _redefined(verdicts: Verdicts) -> Iterator[str]:
    """Yield which cases mean something else than before, of many the newest changes only."""
    changes = verdicts.definition_changes
    yield from (change.text for change in changes[:REDEFINED])
    if len(changes) > REDEFINED:
        yield f"and {len(changes) - REDEFINED} more cases mean something else (all: --format json)"


def _rows(verdicts: Verdicts, *, only_significant: bool) -> Iterator[tuple[str, ...]]:
    for verdict in verdicts.verdicts:
        if verdict.state.code != 0 or not only_significant:
            yield (verdict.history.name, *verdict_row(verdict))
