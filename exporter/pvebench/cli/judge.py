"""`pvebench judge`: the same judgement for a history that came from elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from pvebench.analysis.figures import FIGURES
from pvebench.analysis.judge import Judge
from pvebench.cli.options import PATH
from pvebench.cli.verdict_text import form_option, show_verdicts, significant_option, strict_option
from pvebench.judging import Verdicts
from pvebench.judging.csv_file import read_csv


@click.command()
@click.argument("file", type=PATH)
@click.option(
    "--metric",
    type=click.Choice(list(FIGURES)),
    default="throughput",
    show_default=True,
    help="What the values are: it decides whether more is better.",
)
@significant_option
@strict_option
@form_option
@click.pass_context
def judge(
    context: click.Context,
    /,
    file: Path,
    metric: str,
    only_significant: bool,
    strict: bool,
    form: str,
) -> None:
    """Judge the history in a CSV file: columns time, value, and optionally environment, case."""
    report = Judge().judge(read_csv(file, FIGURES[metric]))
    show_verdicts(
        context, Verdicts(reports=(report,)), form, only_significant=only_significant, strict=strict
    )
