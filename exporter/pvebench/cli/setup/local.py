"""The part of `pvebench setup` that measures this machine: the lab's VMs, or its own rows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from pvebench.cli.options import DEFAULT_PACK
from pvebench.cli.setup.questions import Questions, write_settings
from pvebench.config import Settings
from pvebench.errors import NotWritable
from pvebench.model.units import show_bytes

DRIVERS: Final = {"lab": "qemu", "host": "host"}
"""What is asked for -> its driver."""
_MOUNTS: Final = Path("/proc/self/mounts")
_USUAL: Final = "local"
"""Name of the storage that packs mean when they name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAnswers:
    """The options, by their names; what is not given is asked for, or found.

    Attributes:
        storages: NAME=DIRECTORY each, or a directory alone.
    """

    config: Path
    what: str
    label: str | None
    storages: tuple[str, ...]
    state: Path | None
    listen: str | None
    replace: bool


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system of a disk of this machine.

    Attributes:
        free_bytes, total_bytes: as a user without rights sees them.
    """

    point: str
    type: str
    free_bytes: int
    total_bytes: int


def set_up_here(told: LocalAnswers, ask: Questions, packs: Sequence[str]) -> None:
    """Show where volumes can lie, and write settings for one place or more."""
    for mount in mounts():
        space = f"{show_bytes(mount.free_bytes)} of {show_bytes(mount.total_bytes)} free"
        click.echo(f"  {mount.point:24} {mount.type:8} {space}")
    state = (told.state or Settings().state).absolute()
    given = told.storages or ask.names(
        "Directories to measure, on the disks that matter", [str(state / "storage")], "--storage"
    )
    storages = _storages(given)
    label = told.label or ask.text("Name of this machine in results", Settings().node, "--label")
    listen = told.listen or Settings().listen
    ask.agree(f"Write {told.config}?")
    _make_paths(storages, state)
    text = settings_text(
        DRIVERS[told.what], label, storages, state=state, listen=listen, packs=packs
    )
    write_settings(told.config, text, replace=told.replace)


def _make_paths(storages: dict[str, Path], state: Path) -> None:
    """Make the directories that are missing: a run makes none. Raises NotWritable."""
    for path in storages.values():
        if path.is_dir() or path == state / "storage":
            continue  # the latter is made by a run, as the user that it runs as
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise NotWritable(f"{path} cannot be made: {error.strerror}") from error
        click.echo(f"  made {path}")


def mounts() -> list[Mount]:
    """Return the file systems that lie on this machine's disks; none of a network is asked."""
    lines = _MOUNTS.read_text("utf-8", "replace").splitlines()
    return list({mount.point: mount for mount in map(_mount, lines) if mount}.values())


def _mount(line: str) -> Mount | None:
    source, point, kind, *_ = line.split(" ")
    point = point.replace("\\040", " ")
    if not (source.startswith("/dev/") or kind == "zfs") or not os.access(point, os.W_OK):
        return None
    try:
        room = shutil.disk_usage(point)
    except OSError:
        return None
    # A file that is mounted by itself, as containers get theirs, is no place for volumes.
    return Mount(point, kind, room.free, room.total) if Path(point).is_dir() else None


def _storages(given: Sequence[str]) -> dict[str, Path]:
    """Return name -> directory; without a name the first is `local`, others their own name.

    Where none is called `local` the first is: packs that name no storage measure that one.
    """
    found: dict[str, Path] = {}
    for text in given:
        name, separator, path = text.partition("=")
        directory = Path(path if separator else text).expanduser().absolute()
        if not separator:
            name = _USUAL if _USUAL not in found else directory.name.lower()
        if name in found:
            raise click.UsageError(f"two storages are called {name}; give them as NAME=DIRECTORY")
        found[name] = directory
    if found and _USUAL not in found:
        first = next(iter(found))
        click.echo(f"  {first} is called {_USUAL}: that is what packs measure that name no storage")
        found = {_USUAL if name == first else name: path for name, path in found.items()}
    return found


def settings_text(
    driver: str,
    label: str,
    storages: dict[str, Path],
    *,
    state: Path,
    listen: str,
    packs: Sequence[str],
) -> str:
    """Return the settings file. JSON's scalars are YAML's as well, so every text is quoted."""
    lines: Iterator[str] = iter(
        [
            "# Created by pvebench setup. Keys: pvebench schema settings, docs/configuration.md",
            f"driver: {driver}",
            f"node: {json.dumps(label)}  # label `node` of all results",
            f"state: {json.dumps(str(state))}  # results, lock, sockets",
            "# What is measured: `pvebench packs` lists them, `packs --copy NAME` changes one.",
            f"packs: {json.dumps(list(packs))}",
            "# /metrics and the pages; an address of the network lets others in.",
            f"listen: {json.dumps(listen)}",
            "storages:  # volumes named pvebench-... are made there, and removed again",
            *(
                f"  {json.dumps(name)}: {{kind: dir, path: {json.dumps(str(path))}}}"
                for name, path in storages.items()
            ),
        ]
    )
    return "\n".join(lines) + "\n"


def default_packs(given: Sequence[str]) -> list[str]:
    """Return the packs to write: as they were given, or the one to begin with."""
    return list(given) or [str(DEFAULT_PACK)]
