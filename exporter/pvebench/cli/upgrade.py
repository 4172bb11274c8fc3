"""`pvebench upgrade` and `gate`: before an update, and after it on the first node."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import click

from pvebench.advice.gate import EXIT_CODES, Gate, GateResult, gate_data, gate_lines, start_of
from pvebench.advice.outlook import Outlook, outlook, outlook_data, outlook_lines
from pvebench.advice.packages import read_versions
from pvebench.cli.options import format_option, read_settings, settings_options, show
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import ConfigError, Problem
from pvebench.files import MAX_BYTES, read_text
from pvebench.sanitize import one_line
from pvebench.store.live_results import LiveResults, View
from pvebench.store.store import Store
from pvebench.verdicts.ranking import shown_definitions
from pvebench.verdicts.verdict_updates import VerdictService

# --- `pvebench upgrade`: known issues of an update, and the baseline to judge it.

_FORMAT = "NAME=VERSION,… or FILE"


@click.command(epilog="Example: apt list --upgradable | pvebench upgrade --to -")
@settings_options
@click.option(
    "--to",
    "target",
    required=True,
    metavar=_FORMAT,
    help="Versions of the update; a file or - has output of apt, dpkg, pveversion or the API.",
)
@click.option(
    "--from",
    "running",
    metavar=_FORMAT,
    help="Running versions, in addition to those of the latest results.",
)
@format_option()
def upgrade(target: str, running: str | None, form: str, **options: Any) -> None:
    """List known issues of an update, before you install it.

    Issues of configurations in use come first. The last lines state what the baseline can show
    after the update, and how long to measure before it.
    """
    settings = read_settings(**options)
    changes = _versions(target, "--to")
    known = _versions(running, "--from") if running else {}
    outlooks = _outlooks(settings, changes, known)
    lines = chain.from_iterable(map(outlook_lines, outlooks))
    show(form, lambda: [*map(outlook_data, outlooks)], lambda: lines)


def _versions(given: str, option: str) -> dict[str, str]:
    """Return fact -> version; list the lines in no known form."""
    versions, unread = read_versions(_text(given), option=option)
    for line in unread:
        click.echo(f"{option}: line not understood: {one_line(line)}", err=True)
    return versions


def _text(given: str) -> str:
    """Return the content of the file that an option names, or the option's value."""
    if given == "-":
        return sys.stdin.read(MAX_BYTES)
    if "=" in given or (" " in given and not Path(given).exists()):
        return given
    try:
        return read_text(Path(given), encoding="latin-1")
    except ConfigError as error:
        message = f"{error.problems[0].message}; write NAME=VERSION, or the name of a file"
        raise ConfigError([Problem(given, 0, 0, message)]) from error


def _outlooks(
    settings: Settings, changes: Mapping[str, str], known: Mapping[str, str]
) -> list[Outlook]:
    issues = load_known_issues(*settings.known_issues)
    has_results = settings.database.exists()
    with results_of(settings) if has_results else nullcontext() as store:
        results = LiveResults(store) if store else None
        view = results.now if results else View()
        nodes = {period.node: period.facts for period in view.periods} or {settings.node: {}}
        return [
            outlook(node, {**facts, **known}, changes, issues, view, _counts(results, view, node))
            for node, facts in sorted(nodes.items())
        ]


def _counts(results: LiveResults | None, view: View, node: str) -> Mapping[str, int]:
    """Return case key -> good runs in the node's current environment."""
    counts = results.period_runs(node) if results else None
    if counts is not None:
        return counts
    return {key: record.good_runs for key, record in view.cases.items()}


# --- `pvebench gate`: may the upgrade go on to the other nodes?


def _ratio(_: click.Context, __: click.Parameter, text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise click.BadParameter(f"{text!r} is no share between 0 and 100%; write it as 5%")
    return value


@click.command(epilog="Example: pvebench gate --canary pve2 --tolerance 3%")
@settings_options
@click.option("--canary", required=True, metavar="NODE", help="Upgraded node.")
@click.option(
    "--tolerance",
    default="5%",
    show_default=True,
    callback=_ratio,
    help="Largest acceptable loss of throughput.",
)
@click.option("--peer", "peers", multiple=True, metavar="NODE", help="Node to compare with.")
@click.option(
    "--since", type=click.DateTime(), help="Time of the upgrade (UTC); default: by the results."
)
@format_option()
@click.pass_context
def gate(
    context: click.Context,
    /,
    canary: str,
    tolerance: float,
    peers: tuple[str, ...],
    since: datetime | None,
    form: str,
    **options: Any,
) -> None:
    """Decide whether an upgraded node is as fast as before.

    Exits with code 0 to go on, 1 to stop, 10 if undecided. You can repeat it after every run.
    """
    settings, now = read_settings(**options), datetime.now(UTC)
    with results_of(settings) as store:
        result = _look(settings, store, canary, tolerance, peers, since)
    show(form, lambda: gate_data(result, now), lambda: gate_lines(result, now))
    context.exit(EXIT_CODES[result.decision])


def _look(
    settings: Settings,
    store: Store,
    canary: str,
    tolerance: float,
    peers: tuple[str, ...],
    since: datetime | None,
) -> GateResult:
    results = LiveResults(store)
    cases, periods = shown_definitions(results.now), results.now.periods
    nodes = sorted({case.node for case in cases.values()})
    for name in (canary, *peers):
        if name not in nodes:
            raise ConfigError.of_options(f"no results of node {name!r}; known: {', '.join(nodes)}")
    if since is None and start_of(periods, canary) is None:
        raise ConfigError.of_options(
            f"{canary} has one environment only, so no upgrade; pass --since TIME"
        )
    verdicts = VerdictService(results, load_known_issues(*settings.known_issues)).judge()
    upgraded = Gate(canary, verdicts, cases, periods, tolerance, peers)
    return upgraded.look(None if since is None else since.replace(tzinfo=UTC).timestamp())
