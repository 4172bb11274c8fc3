"""Verdicts for people: the summary first, then what moved, then the table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import click
from rich.table import Table

from pvebench.analysis.findings import Finding
from pvebench.analysis.wording import sentence
from pvebench.cli.console import make_console
from pvebench.judging import Verdicts
from pvebench.judging.headline import counts_text
from pvebench.judging.rows import COLUMNS, verdict_row

HEAD: Final = ("case", *COLUMNS)
SIGNS: Final = {True: "×", False: "+"}


def print_text(verdicts: Verdicts, *, only_significant: bool) -> None:
    """Print verdicts for a terminal."""
    for line in _summary(verdicts):
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


def print_markdown(verdicts: Verdicts, *, only_significant: bool) -> None:
    """Print verdicts as Markdown, for a forum or an issue."""
    for line in _summary(verdicts):
        click.echo(f"**{line}**\n")
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
        yield f"No regression: {counts_text(verdicts) or 'nothing has been judged yet'}"


def _rows(verdicts: Verdicts, *, only_significant: bool) -> Iterator[tuple[str, ...]]:
    for verdict in verdicts.verdicts:
        if verdict.state.code != 0 or not only_significant:
            yield (verdict.history.name, *verdict_row(verdict))
