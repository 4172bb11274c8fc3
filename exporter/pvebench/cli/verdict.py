"""`pvebench verdict` and `pvebench judge`: what changed, by how much, how sure that is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pvebench.analysis.figures import FIGURES
from pvebench.analysis.judge import Judge
from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.cli.verdict_text import print_markdown, print_text
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import StoreError
from pvebench.judging import Feed, Keeper, Verdicts
from pvebench.judging.csv_file import read_csv
from pvebench.judging.data import verdicts_data
from pvebench.store import Store

FORMATS = ("text", "markdown", "json")

_format_option = click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
    help="markdown for a forum, json for programs.",
)  # fmt: skip
_significant_option = click.option(
    "--only-significant", is_flag=True, help="Leave out what is the same or has no verdict."
)


@click.command()
@settings_options
@click.option(
    "--since", type=click.DateTime(), help="Only changes since then (UTC); the baseline stays."
)
@click.option(
    "--env",
    "between",
    nargs=2,
    metavar="A B",
    help="Compare two environments, by digest or slug (see --format json, levels).",
)
@_significant_option
@_format_option
@click.pass_context
def verdict(
    context: click.Context, /, since: datetime | None, between: tuple[str, str] | None,
    only_significant: bool, form: str, scale: float, **options: Any,
) -> None:  # fmt: skip
    """Tell whether anything got slower, and what it comes from.

    Ends with 1 if something is confirmed slower or suspiciously faster and nobody has
    accepted it.
    """
    del scale  # of the packs, which verdicts do not depend on
    settings = read_settings(**options)
    issues = load_known_issues(*settings.known_issues)
    store = open_results(settings.state / "pvebench.db")
    try:
        chosen = frozenset(_digest(store, name) for name in between) if between else None
        verdicts = Keeper(Feed(store, environments=chosen), issues).judge()
    finally:
        store.close()
    if since is not None:
        verdicts = verdicts.since(since.replace(tzinfo=UTC).timestamp())
    _show(context, verdicts, form, only_significant=only_significant)


@click.command()
@click.argument("file", type=PATH)
@click.option(
    "--metric",
    type=click.Choice(list(FIGURES)),
    default="throughput",
    show_default=True,
    help="What the values are: it decides whether more is better.",
)
@_significant_option
@_format_option
@click.pass_context
def judge(
    context: click.Context, /, file: Path, metric: str, only_significant: bool, form: str
) -> None:
    """Judge the history in a CSV file: columns time, value, and optionally environment, case."""
    report = Judge().judge(read_csv(file, FIGURES[metric]))
    _show(context, Verdicts(reports=(report,)), form, only_significant=only_significant)


def open_results(database: Path) -> Store:
    """Return the store of an instance that has measured.

    Raises:
        StoreError: there is none.
    """
    if not database.exists():
        raise StoreError(
            f"there are no results yet: {database} does not exist",
            next_step="measure first: pvebench run, or name the state directory with --state",
        )
    return Store(database)


def _digest(store: Store, name: str) -> str:
    """Return the digest of the environment that a user means.

    Raises:
        StoreError: there is none, or more than one.
    """
    known = store.environments()
    found = [
        one["digest"] for one in known
        if name == one["slug"] or str(one["digest"]).startswith(name)
    ]  # fmt: skip
    if len(found) != 1:
        listed = ", ".join(f"{one['digest']} ({one['slug']})" for one in known)
        raise StoreError(
            f"{len(found)} environments are called {name!r}",
            next_step=f"name one of: {listed or 'there is none yet'}",
        )
    return str(found[0])


def _show(context: click.Context, verdicts: Verdicts, form: str, *, only_significant: bool) -> None:
    if form == "json":
        click.echo(json.dumps(verdicts_data(verdicts), indent=2))
    elif form == "markdown":
        print_markdown(verdicts, only_significant=only_significant)
    else:
        print_text(verdicts, only_significant=only_significant)
    context.exit(1 if verdicts.regressions else 0)
