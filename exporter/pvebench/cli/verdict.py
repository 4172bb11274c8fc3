"""`pvebench verdict`: changes, their size and their confidence. `pvebench baseline`: decisions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from pvebench.analysis.verdict import Verdict
from pvebench.cli.options import format_option, read_settings, settings_options, together
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import StoreError
from pvebench.model.units import show_day
from pvebench.store.changes import Decision, DecisionKind, KnownChange
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.fastest_text import latest_operation_lines
from pvebench.verdicts.judge_input import KnownChanges
from pvebench.verdicts.node_verdicts import Verdicts, outage_text
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

# --- Output: headline, changes, table.

HEAD: Final = ("case", *COLUMNS)
REDEFINED: Final = 5
"""Maximum listed cases with a changed definition."""
MAX_SHORT: Final = 4
"""Maximum metrics that are listed without --all: those of one case."""
Lines = Callable[[Verdict], Iterable[str]]
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
    below: Lines = lambda _: (),
) -> None:
    """Print verdicts and exit with `overall_state.exit_code`; a table of all only if it is short.

    Args:
        operations: effects of operations, printed as text and Markdown.
        below: lines below the text of each metric.
    """
    every = every or len(verdicts.verdicts) <= MAX_SHORT
    if form == "json":
        click.echo(json.dumps(verdicts_data(verdicts), indent=2))
    elif form == "markdown":
        _print_markdown(verdicts, operations, every=every)
    else:
        _print_text(verdicts, operations, below, every=every)
    context.exit(exit_code(verdicts, strict=strict))


def _print_text(
    verdicts: Verdicts, operations: Sequence[str], below: Lines, *, every: bool
) -> None:
    """Print verdicts for a terminal."""
    click.echo(count_line(verdicts))
    for sign, line in _lines(verdicts):
        click.echo(f"{sign} {line}".strip())
    for line in operations:
        click.echo(f"{line}.")
    if every and verdicts.verdicts:
        click.echo()
        # Lines, not columns: in a narrow terminal, cut names would look alike.
        for judged in verdicts.verdicts:
            direction, metric, word, ratio, interval, runs = verdict_row(judged)
            size = f", {ratio} ({interval})" if ratio else ""
            name = f"{judged.history.name} {f'{direction} {metric}'.strip()}"
            click.echo("\n".join([f"{name}: {word}{size}, runs: {runs}", *below(judged)]))
    elif verdicts.verdicts:
        click.echo("list every metric with --all")


def _print_markdown(verdicts: Verdicts, operations: Sequence[str], *, every: bool) -> None:
    """Print verdicts as Markdown, for a forum or an issue."""
    click.echo(f"**{count_line(verdicts)}**\n")
    for line in (*(line for _, line in _lines(verdicts)), *operations):
        click.echo(f"- {line}")
    if every and verdicts.verdicts:
        click.echo(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        for judged in verdicts.verdicts:
            row = (judged.history.name, *verdict_row(judged))
            click.echo(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |")


def _lines(verdicts: Verdicts) -> Iterator[tuple[str, str]]:
    """Yield (mark, line): new definitions, changes, outages, and what is missing until when."""
    for text in _redefined(verdicts):
        yield "", text
    for change in verdicts.changes:
        yield mark(change), f"{show_day(change.begin)}: {sentence(change)}"
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


# --- The command.


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
        results = LiveResults(store)
        verdicts = verdicts_of(settings, results, chosen)
    if since is not None:
        verdicts = verdicts.since(since.replace(tzinfo=UTC).timestamp())
    operations = latest_operation_lines(results.now, shown_definitions(results.now))
    show_verdicts(context, verdicts, form, operations, every=every, strict=strict)


def verdicts_of(
    settings: Settings, results: LiveResults, environments: frozenset[str] | None = None
) -> Verdicts:
    """Return the verdicts on stored results; with `environments`, on those of both only."""
    issues = load_known_issues(*settings.known_issues)
    kept = None if environments else Recorded(results.store.changes)
    return VerdictService(results, issues, environments=environments, kept=kept).judge()


class Recorded:
    """Changes as an instance recorded them, so that a command shows their IDs; it adds none."""

    def __init__(self, changes: KnownChanges) -> None:
        self.all = changes.all

    def keep(self, known: Iterable[KnownChange], forget: Iterable[str] = ()) -> None:
        """Store nothing."""


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


# --- `pvebench baseline`: decisions to accept a level or to ignore earlier runs.


@click.group()
def baseline() -> None:
    """Manage baselines. An upgrade does not change a baseline; these commands do."""


_decision_options = together(
    click.option("--reason", required=True, help="Reason, stored and shown with the change."),
    click.option("--all", "every", is_flag=True, help="All cases."),
    click.option(
        "--only",
        "cases",
        metavar="GLOB",
        help="Cases with a matching scenario, workload or scenario/workload.",
    ),
    settings_options,
)


@baseline.command()
@_decision_options
def accept(**options: Any) -> None:
    """Accept the current level. Known changes stop alerting and stay visible."""
    _decide("accept", **options)


@baseline.command()
@_decision_options
def reset(**options: Any) -> None:
    """Ignore earlier runs. The history of the cases starts again with the next run."""
    _decide("reset", **options)


@baseline.command(name="list")
@settings_options
def show(**options: Any) -> None:
    """List decisions."""
    with results_of(read_settings(**options)) as store:
        decisions = store.decisions.all()
    for decision in decisions:
        click.echo(
            f"{decision.made:%Y-%m-%d %H:%M} UTC  {decision.kind} {decision.cases} "
            f"(runs until {decision.until:%Y-%m-%d %H:%M} UTC): {decision.reason}"
        )
    if not decisions:
        click.echo("no decisions")


def _decide(
    kind: DecisionKind, *, cases: str | None, every: bool, reason: str, **options: Any
) -> None:
    """Store a decision about the runs so far.

    Raises:
        UsageError: neither some cases nor all are chosen, or both.
        StoreError: there is no run, or no case matches.
    """
    if every is (cases is not None):
        raise click.UsageError("choose cases with --only GLOB, or all cases with --all")
    cases = cases or "*"
    with results_of(read_settings(**options)) as store:
        newest = store.runs(limit=1)
        if not newest:
            raise StoreError("no runs yet", next_step="run `pvebench run` first")
        decision = Decision(
            made=datetime.now(UTC), kind=kind, cases=cases, until=newest[0].finished, reason=reason
        )
        definitions = [record.definition for record in store.cases().values()]
        count = sum(decision.concerns(entry.scenario, entry.workload) for entry in definitions)
        if not count:
            raise StoreError(
                f"no case matches {cases!r}", next_step="list the cases with `pvebench verdict`"
            )
        store.decisions.add(decision)
    effects = {"accept": "accepted the current level", "reset": "ignoring earlier runs"}
    click.echo(f"{effects[kind]} of {count} case{'s' if count > 1 else ''}")
