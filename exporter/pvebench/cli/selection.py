"""Selection of runs, packs and reference series, for `pvebench results` and `report`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from pvebench.cli.options import nearest_pack, read_settings
from pvebench.config import Settings, load_pack
from pvebench.errors import ConfigError, StoreError
from pvebench.model.reference_series import ReferenceSeries, ReferenceSource
from pvebench.plugins import Registry
from pvebench.store.records import StoredRun
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store

REFERENCES: Final = Registry[ReferenceSource](
    "references", lambda plugin: isinstance(plugin, ReferenceSource), {}
)
"""Name -> source of published and imported series."""
PUBLISHED_WORD: Final = "published"
ALL_RUNS: Final = 100_000
"""More runs than a table can reasonably have."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A pack selected by its name or its file; empty: all packs.

    Attributes:
        published: name of the published table that the pack reproduces.
        relative_to: slug of the scenario that the results are relative to.
    """

    name: str = ""
    title: str = ""
    source: str = ""
    published: str = ""
    relative_to: str = ""


def selection_settings(*, packs: tuple[Path, ...], **options: Any) -> tuple[Settings, Selection]:
    """Return the settings and the selected pack; options as of `read_settings`.

    Raises:
        ConfigError: an option is wrong, or several packs are selected.
    """
    return read_settings(packs=(), **options), _selected_pack(packs, options["config"])


def _selected_pack(packs: tuple[Path, ...], config: Path | None) -> Selection:
    """Return the pack of `--pack`: a file, a name, or the name of a measured pack."""
    if not packs:
        return Selection()
    if len(packs) > 1:
        raise ConfigError.of_options(
            "several packs selected; use --pack once, or omit it for all packs"
        )
    path = nearest_pack(packs[0], config) or packs[0]
    if path.is_file():
        pack = load_pack(path)
        return Selection(pack.name, pack.title, pack.source, pack.published, pack.relative_to)
    name = packs[0].name
    return Selection(
        name,
        published=name if any(name in source.shipped for source in REFERENCES.values()) else "",
    )


def reference_series_of(
    settings: Settings, pack: Selection, name: str | None
) -> ReferenceSeries | None:
    """Return the series named by `--reference`; `published` is the one that the pack reproduces.

    Raises:
        ConfigError: the pack reproduces none.
        StoreError: the series does not exist.
    """
    if name is None:
        return None
    if name == PUBLISHED_WORD:
        name = pack.published
        if not name:
            raise ConfigError.of_options(
                "--reference published requires --pack with a pack that reproduces a table"
            )
    directory = settings.state / "references"
    sources = [
        reference_source
        for reference_source in REFERENCES.values()
        if name in reference_source.names(directory)
    ]
    for source in sources or REFERENCES.values():
        return source.get(directory, name)
    raise StoreError(f"no reference series {name}", cause="package pvebench_lab is not installed")


reference_option = click.option(
    "--reference",
    metavar="SERIES",
    help="Reference series to show too: 'published', or the name of an imported one.",
)
relative_option = click.option(
    "--relative-to",
    metavar="SCENARIO",
    help="Divide by the results of this scenario; default: relative_to of the pack.",
)


@contextmanager
def results_of(settings: Settings, *, write: bool = False) -> Iterator[Store]:
    """Open the results, for changes while no instance uses them. Raises StoreError: there are none.

    Raises AlreadyRunning: an instance uses them, and `write` is set.
    """
    state, database = settings.state.absolute(), settings.database
    locked = write and state.exists()
    with StateDirectory(state, exclusive=True) if locked else nullcontext():
        if not database.exists():
            raise StoreError(
                f"no results yet: {database} does not exist",
                next_step="run `pvebench run` first, or pass the state directory with --state",
            )
        with closing(Store(database)) as store:
            yield store


def runs_of(store: Store, pack: Selection) -> list[StoredRun]:
    """Return the runs of the selected pack, newest first; without one, those of all packs.

    Raises:
        StoreError: the pack has no runs.
    """
    runs = store.runs(limit=ALL_RUNS, pack=pack.name or None)
    if pack.name and not runs:
        raise StoreError(
            f"no runs of pack {pack.name!r}", next_step="list available packs with `pvebench packs`"
        )
    return runs
