"""`pvebench verdict`: what changed, by how much, how sure that is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from pvebench.cli.looking import results_of
from pvebench.cli.options import read_settings, settings_options
from pvebench.cli.verdict_text import form_option, show_verdicts, significant_option, strict_option
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import StoreError
from pvebench.judging import Feed, Keeper
from pvebench.results import Results
from pvebench.store import Store


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
@significant_option
@strict_option
@form_option
@click.pass_context
def verdict(
    context: click.Context,
    /,
    since: datetime | None,
    between: tuple[str, str] | None,
    only_significant: bool,
    strict: bool,
    form: str,
    **options: Any,
) -> None:
    """Tell whether anything got slower, and what it comes from.

    Ends with 1 if something is confirmed slower or suspiciously faster and nobody has
    accepted it; with --strict with 10 where nothing did, but of some it cannot be told.
    """
    settings = read_settings(**options)
    issues = load_known_issues(*settings.known_issues)
    with results_of(settings) as store:
        chosen = frozenset(_digest(store, name) for name in between) if between else None
        verdicts = Keeper(Feed(Results(store), environments=chosen), issues).judge()
    if since is not None:
        verdicts = verdicts.since(since.replace(tzinfo=UTC).timestamp())
    show_verdicts(context, verdicts, form, only_significant=only_significant, strict=strict)


def _digest(store: Store, name: str) -> str:
    """Return the digest of the environment that a user means.

    Raises:
        StoreError: there is none, or more than one.
    """
    known = store.environments()
    found = [
        one["digest"] for one in known if name == one["slug"] or str(one["digest"]).startswith(name)
    ]
    if len(found) != 1:
        listed = ", ".join(f"{one['digest']} ({one['slug']})" for one in known)
        raise StoreError(
            f"{len(found)} environments are called {name!r}",
            next_step=f"name one of: {listed or 'there is none yet'}",
        )
    return str(found[0])
