"""`pvebench export`: the stored history for other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

import click

from pvebench.cli.options import PATH, read_settings, scale_option, settings_options
from pvebench.cli.selection import (
    reference_series_of,
    relative_option,
    results_of,
    runs_of,
    selection_settings,
)
from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import NotWritable, StoreError
from pvebench.metrics.openmetrics import STEP_SECONDS, Window, past_text
from pvebench.metrics.snapshot import snapshot_of
from pvebench.report.card import THEMES, card_png, make_card
from pvebench.report.html import Subject, report_html
from pvebench.service.instance import planned_cases
from pvebench.service.selection import assignments, wall_slots
from pvebench.store import StoredRun
from pvebench.store.current import Results
from pvebench.verdicts import Feed, VerdictService
from pvebench.verdicts.ranking import of_storage

# --- `pvebench card`: the results of a storage as a picture, for a forum.


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
        verdicts = VerdictService(Feed(results), issues).judge()
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


# --- `pvebench report`: one HTML file to keep, to send, to open without network.


@click.command()
@settings_options
@click.option(
    "--output",
    type=PATH,
    default=Path("pvebench-report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--reference",
    metavar="SERIES",
    help="Show a reference series beside: 'published', or the name of an imported one.",
)
@relative_option
def report(output: Path, reference: str | None, relative_to: str | None, **options: Any) -> None:
    """Write all results, or those of one --pack, as one self-contained HTML file."""
    settings, pack = selection_settings(**options)
    series = reference_series_of(settings, pack, reference)
    with results_of(settings) as store:
        runs = runs_of(store, pack)
        subject = Subject(
            title=pack.title or (f"Pack {pack.name}" if pack.name else "All results"),
            source=pack.source,
            node=settings.node,
            now=datetime.now(UTC),
            simulated=store.simulated,
            environments=tuple(store.environments()),
        )
    try:
        over = relative_to or pack.relative_to
        output.write_text(report_html(subject, runs, series, over), "utf-8")
    except OSError as error:
        raise NotWritable(f"{output} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {output}: {len(runs)} runs")


MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
EVERYTHING: Final = 10_000_000


@click.group()
def export() -> None:
    """Write the stored history in a form that other programs read."""


@export.command()
@settings_options
@scale_option
@click.option("--from", "start", type=MOMENT, help="First moment, UTC; default: the first run.")
@click.option("--to", "end", type=MOMENT, help="Moment to stop before, UTC; default: now.")
@click.option(
    "--step",
    type=click.FloatRange(min=1),
    default=STEP_SECONDS,
    show_default=True,
    help="Seconds between samples of a held value; keep it below Prometheus' look-back.",
)
@click.option("--job", default="pvebench", show_default=True, help="Label of the scrape job.")
@click.option("--instance", help="Label of the target; default: the address of the settings.")
@click.option("--output", type=PATH, help="File to write; default: standard output.")
def openmetrics(
    start: datetime | None,
    end: datetime | None,
    step: float,
    job: str,
    instance: str | None,
    output: Path | None,
    scale: float,
    **options: Any,
) -> None:
    """Write what /metrics showed in the past, for promtool tsdb create-blocks-from openmetrics.

    Prometheus has gaps wherever it was not running; the store has none.
    """
    settings = read_settings(**options)
    labels = {"job": job, "instance": instance or settings.listen}
    with results_of(settings) as store:
        results = Results(store, planned_cases(assignments(settings, scale=scale)))
        window = Window(
            start=_stamp(start) if start else first_moment(results),
            end=_stamp(end) if end else datetime.now(UTC).timestamp(),
            step=step,
            labels=labels,
        )
        with _opened(output) as file:
            write_past(results, settings, window, file)


def write_past(
    results: Results,
    settings: Settings,
    window: Window,
    file: TextIO,
    *,
    cases: Iterable[Sequence[StoredRun]] | None = None,
) -> None:
    """Write a window of the past as OpenMetrics text.

    Args:
        cases: what `histories` gives, where it has been read already.
    """
    view = results.now
    present = snapshot_of(
        view, now=datetime.now(UTC), max_age_seconds=settings.max_age, wall=wall_slots(settings)
    )
    # The past has more nodes than the present packs may name.
    snapshot = replace(present, episodes=view.episodes)
    known = histories(results) if cases is None else cases
    current = frozenset(view.current().values())
    file.writelines(past_text(known, snapshot, window, current=current))


def histories(results: Results) -> Iterator[list[StoredRun]]:
    """Yield the runs of each case, oldest first."""
    for key in results.now.cases:
        yield results.store.runs(limit=EVERYTHING, case_key=key)[::-1]


def first_moment(results: Results) -> float:
    """Return when the first run started, UNIX seconds; 0 if there is none."""
    starts = (record.first_started for record in results.now.cases.values())
    return min((start.timestamp() for start in starts), default=0.0)


def _stamp(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8") as file:
        yield file
