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

from pvebench.cli.looking import results_of
from pvebench.cli.options import PATH, read_settings, scale_option, settings_options
from pvebench.config import Settings
from pvebench.metrics.history import STEP_SECONDS, Window, past_text
from pvebench.metrics.snapshot import snapshot_of
from pvebench.results import Results
from pvebench.service.choice import assignments, wall_slots
from pvebench.service.instance import planned_cases
from pvebench.store import StoredRun

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
