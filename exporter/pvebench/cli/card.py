"""`pvebench card`: the results of a storage as a picture, for a forum."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pvebench.cli.looking import results_of
from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import NotWritable, StoreError
from pvebench.judging import Feed, Keeper
from pvebench.judging.fastest import of_storage
from pvebench.report.card import make_card
from pvebench.report.card_picture import THEMES, card_png
from pvebench.results import Results


@click.command()
@settings_options
@click.option(
    "--out", type=PATH, default=Path("pvebench-card.png"), show_default=True, help="The PNG."
)
@click.option("--storage", default="", metavar="NODE/STORAGE", help="Which; default: the first.")
@click.option(
    "--theme", type=click.Choice(THEMES), default=THEMES[0], show_default=True, help="Colours."
)
@click.option("--anonymous", is_flag=True, help="Leave the names of nodes out.")
def card(out: Path, storage: str, theme: str, anonymous: bool, **options: Any) -> None:
    """Draw system, versions, four workloads and the verdict as a PNG of 1200 × 630 pixels."""
    settings = read_settings(**options)
    issues = load_known_issues(*settings.known_issues)
    with results_of(settings) as store:
        results = Results(store)
        verdicts = Keeper(Feed(results), issues).judge()
        view = results.now
    cases = {key: view.cases[key].definition for key in view.current().values()}
    storages = of_storage(cases)
    chosen = storage or next(iter(storages), "")
    if chosen not in storages:
        raise StoreError(
            f"there is no result of a storage {storage!r}",
            next_step=f"give one of {', '.join(storages) or 'none yet: measure first'}",
        )
    made = make_card(view, verdicts, datetime.now(UTC), storages[chosen], anonymous=anonymous)
    try:
        out.write_bytes(card_png(made, theme))
    except OSError as error:
        raise NotWritable(f"{out} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {out}: {made.where or 'no storage'}")
