"""`pvebench gate`: may the upgrade go on to the other nodes?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from pvebench.advice.gate import Gate, GateResult, start_of
from pvebench.advice.gate_text import EXIT_CODES, gate_data, gate_lines
from pvebench.cli.options import format_option, read_settings, settings_options, show
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import ConfigError
from pvebench.store.current import Results
from pvebench.store.store import Store
from pvebench.verdicts.feed import Feed
from pvebench.verdicts.ranking import shown_definitions
from pvebench.verdicts.verdict_updates import VerdictService


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
    results = Results(store)
    cases, periods = shown_definitions(results.now), results.now.periods
    nodes = sorted({case.node for case in cases.values()})
    for name in (canary, *peers):
        if name not in nodes:
            raise ConfigError.of_options(f"no results of node {name!r}; known: {', '.join(nodes)}")
    if since is None and start_of(periods, canary) is None:
        raise ConfigError.of_options(
            f"{canary} has one environment only, so no upgrade; pass --since TIME"
        )
    verdicts = VerdictService(Feed(results), load_known_issues(*settings.known_issues)).judge()
    upgraded = Gate(canary, verdicts, cases, periods, tolerance, peers)
    return upgraded.look(None if since is None else since.replace(tzinfo=UTC).timestamp())
