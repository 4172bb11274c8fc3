"""What `pvebench results` and `pvebench report` share: which runs, beside which series."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from pvebench.cli.options import nearest_pack, read_settings
from pvebench.config import Settings, load_pack
from pvebench.errors import ConfigError, Problem, StoreError
from pvebench.references.library import PUBLISHED, ReferenceLibrary
from pvebench.references.reference_series import ReferenceSeries
from pvebench.store import Store, StoredRun

# --- The console: as wide as the terminal, and as wide as the text where there is none.

_PIPE_WIDTH = 1000


def make_console() -> Console:
    """Return the console of stdout. A pipe gets whole lines: grep and logs want them so.

    Titles and names are printed as they are: what stands in brackets is no markup of ours.
    """
    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, width=_PIPE_WIDTH)


PUBLISHED_WORD: Final = "published"
ALL_RUNS: Final = 100_000
"""More than anybody puts into one table."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A pack chosen by its name or its file; empty: all packs.

    Attributes:
        published: name of the table that its file says it reproduces.
        relative_to: slug of the scenario that its results are shown relative to.
    """

    name: str = ""
    title: str = ""
    source: str = ""
    published: str = ""
    relative_to: str = ""


def selection_settings(*, packs: tuple[Path, ...], **options: Any) -> tuple[Settings, Selection]:
    """Return the settings, and the pack that is chosen; options as of `read_settings`.

    Raises:
        ConfigError: an option is wrong, or more than one pack is given.
    """
    return read_settings(packs=(), **options), _chosen_pack(packs, options["config"])


def _chosen_pack(packs: tuple[Path, ...], config: Path | None) -> Selection:
    """Return the pack of `--pack`: a file, a name, or only the name of one that was measured."""
    if not packs:
        return Selection()
    if len(packs) > 1:
        message = "results are shown of one pack, or of all; give --pack once"
        raise ConfigError([Problem("command line", 0, 0, message)])
    given = packs[0]
    path = nearest_pack(given, config) or given
    if path.is_file():
        pack = load_pack(path)
        return Selection(pack.name, pack.title, pack.source, pack.published, pack.relative_to)
    name = given.name
    return Selection(name, published=name if name in PUBLISHED else "")


def reference_series_of(
    settings: Settings, pack: Selection, name: str | None
) -> ReferenceSeries | None:
    """Return the series named by `--reference`; `published`: the one that the pack reproduces.

    Raises:
        ConfigError: the pack reproduces none.
        StoreError: there is no such series.
    """
    if name is None:
        return None
    if name == PUBLISHED_WORD:
        name = pack.published
        if not name:
            message = "--reference published needs --pack with a pack that reproduces a table"
            raise ConfigError([Problem("command line", 0, 0, message)])
    return ReferenceLibrary(settings.state / "references").get(name)


relative_option = click.option(
    "--relative-to",
    metavar="SCENARIO",
    help="Divide by the results of this scenario; default: the one that the pack names.",
)


@contextmanager
def results_of(settings: Settings) -> Iterator[Store]:
    """Open the results for reading. Raises StoreError if there are none."""
    database = settings.state / "pvebench.db"
    if not database.exists():
        raise StoreError(
            f"there are no results yet: {database} does not exist",
            next_step="measure first: pvebench run, or name the state directory with --state",
        )
    store = Store(database)
    try:
        yield store
    finally:
        store.close()


def runs_of(store: Store, pack: Selection) -> list[StoredRun]:
    """Return the runs of the pack that is chosen, newest first; of all if none is.

    Raises:
        StoreError: it has none.
    """
    runs = store.runs(limit=ALL_RUNS, pack=pack.name or None)
    if pack.name and not runs:
        raise StoreError(
            f"there is no run of a pack {pack.name!r}",
            next_step="`pvebench packs` lists those that can be measured",
        )
    return runs
