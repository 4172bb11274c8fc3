"""`pvebench export`: the stored history for other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

import click

from pvebench.cli.choice import assignments, intervals_of
from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.config import Settings
from pvebench.errors import StoreError
from pvebench.metrics import Snapshot
from pvebench.metrics.history import STEP_SECONDS, Told, Window, past_text
from pvebench.model.wall import WallSlot
from pvebench.store import Store, StoredRun

MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
EVERYTHING: Final = 10_000_000


@click.group()
def export() -> None:
    """Write the stored history in a form that other programs read."""


@export.command()
@settings_options
@click.option("--from", "start", type=MOMENT, help="First moment, UTC; default: the first run.")
@click.option("--to", "end", type=MOMENT, help="Moment to stop before, UTC; default: now.")
@click.option(
    "--step", type=click.FloatRange(min=1), default=STEP_SECONDS, show_default=True,
    help="Seconds between samples of a held value; keep it below Prometheus' look-back.",
)  # fmt: skip
@click.option("--job", default="pvebench", show_default=True, help="Label of the scrape job.")
@click.option("--instance", help="Label of the target; default: the address of the settings.")
@click.option("--output", type=PATH, help="File to write; default: standard output.")
def openmetrics(
    start: datetime | None, end: datetime | None, step: float, job: str,
    instance: str | None, output: Path | None, scale: float, **options: Any,
) -> None:  # fmt: skip
    """Write what /metrics showed in the past, for promtool tsdb create-blocks-from openmetrics.

    Prometheus has gaps wherever it was not running; the store has none.
    """
    settings = read_settings(**options)
    database = settings.state / "pvebench.db"
    if not database.exists():
        raise StoreError(
            f"there are no results yet: {database} does not exist",
            next_step="measure first: pvebench run, or name the state directory with --state",
        )
    labels = {"job": job, "instance": instance or settings.listen}
    store = Store(database)
    try:
        window = Window(
            start=_stamp(start) if start else first_moment(store),
            end=_stamp(end) if end else datetime.now(UTC).timestamp(),
            step=step, labels=labels,
        )  # fmt: skip
        intervals = intervals_of(assignments(settings, scale=scale))
        with _opened(output) as file:
            write_past(store, intervals, settings, window, file)
    finally:
        store.close()


def write_past(
    store: Store, intervals: Mapping[str, float], settings: Settings, window: Window, file: TextIO,
    *, cases: Iterable[Sequence[StoredRun]] | None = None, told: Sequence[Told] = (),
) -> None:  # fmt: skip
    """Write a window of the store's past as OpenMetrics text.

    Args:
        cases: what `histories` gives, where it has been read already.
        told: verdicts of the past.
    """
    snapshot = Snapshot(
        now=datetime.now(UTC), records=[], environments=[], intervals=intervals,
        max_age_seconds=settings.max_age, simulated=store.simulated, wall=wall_slots(settings),
    )  # fmt: skip
    known = histories(store) if cases is None else cases
    file.writelines(past_text(known, store.environments(), snapshot, window, told=told))


def wall_slots(settings: Settings) -> list[WallSlot]:
    """Return what the settings choose for the wall."""
    return [WallSlot(**dict(slot)) for slot in settings.wall]


def histories(store: Store) -> Iterator[list[StoredRun]]:
    """Yield the runs of each case, oldest first."""
    for key in store.case_keys():
        yield store.recent(limit=EVERYTHING, case_key=key)[::-1]


def first_moment(store: Store) -> float:
    """Return when the oldest environment was first seen, UNIX seconds; 0 in an empty store."""
    return min((float(entry["first_seen"]) for entry in store.environments()), default=0.0)


def _stamp(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8") as file:
        yield file
