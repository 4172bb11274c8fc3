"""`pvebench setup qemu` and `setup host`: questions and settings for this machine."""

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

_MOUNTS: Final = Path("/proc/self/mounts")
_USUAL: Final = "local"
"""Default storage name of packs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAnswers:
    """Options by name; missing ones are asked for or get defaults.

    Attributes:
        what: driver, `qemu` or `host`.
        storages: NAME=DIRECTORY or a directory.
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
    """Local file system.

    Attributes:
        free_bytes, total_bytes: as an unprivileged user sees them.
    """

    point: str
    type: str
    free_bytes: int
    total_bytes: int


def set_up_here(answers: LocalAnswers, ask: Questions, packs: Sequence[str]) -> None:
    """Show file systems for volumes, and write settings for one or more directories."""
    for mount in mounts():
        space = f"{show_bytes(mount.free_bytes)} of {show_bytes(mount.total_bytes)} free"
        click.echo(f"  {mount.point:24} {mount.type:8} {space}")
    state = (answers.state or Settings().state).absolute()
    chosen = answers.storages or ask.names(
        "Directories on the disks to measure", [str(state / "storage")], "--storage"
    )
    storages = _storages(chosen)
    label = answers.label or ask.text("Name of this machine in results", Settings().node, "--label")
    listen = answers.listen or Settings().listen
    ask.agree(f"Write {answers.config}?")
    _make_paths(storages, state)
    text = settings_text(answers.what, label, storages, state=state, listen=listen, packs=packs)
    write_settings(answers.config, text, replace=answers.replace)


def _make_paths(storages: dict[str, Path], state: Path) -> None:
    """Create missing directories, since a run creates none. Raises NotWritable."""
    for path in storages.values():
        if path.is_dir() or path == state / "storage":
            continue  # a run creates the latter, as its own user
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise NotWritable(f"cannot create {path}: {error.strerror}") from error
        click.echo(f"  Created {path}")


def mounts() -> list[Mount]:
    """Return the file systems on local disks; network file systems are not queried."""
    lines = _MOUNTS.read_text("utf-8", "replace").splitlines()
    return list({mount.point: mount for mount in map(_mount, lines) if mount}.values())


def _mount(line: str) -> Mount | None:
    source, point, kind, *_ = line.split(" ")
    point = point.replace("\\040", " ")
    if not (source.startswith("/dev/") or kind == "zfs") or not os.access(point, os.W_OK):
        return None
    try:
        usage = shutil.disk_usage(point)
    except OSError:
        return None
    # A single mounted file, as in containers, cannot hold volumes.
    return Mount(point, kind, usage.free, usage.total) if Path(point).is_dir() else None


def _storages(directories: Sequence[str]) -> dict[str, Path]:
    """Return name -> directory; without a name the first is `local`, others use the directory name.

    Without a `local`, the first is renamed to it: packs without a storage measure `local`.
    """
    storages: dict[str, Path] = {}
    for text in directories:
        name, separator, path = text.partition("=")
        directory = Path(path if separator else text).expanduser().absolute()
        if not separator:
            name = _USUAL if _USUAL not in storages else directory.name.lower()
        if name in storages:
            raise click.UsageError(f"duplicate storage name {name}; use NAME=DIRECTORY")
        storages[name] = directory
    if storages and _USUAL not in storages:
        first = next(iter(storages))
        click.echo(f"  {first} is named {_USUAL}: packs without a storage measure {_USUAL}")
        storages = {_USUAL if name == first else name: path for name, path in storages.items()}
    return storages


def settings_text(
    driver: str,
    label: str,
    storages: dict[str, Path],
    *,
    state: Path,
    listen: str,
    packs: Sequence[str],
) -> str:
    """Return the settings file. JSON scalars are valid YAML, so every text is quoted."""
    lines: Iterator[str] = iter(
        [
            "# Created by pvebench setup. Keys: `pvebench schema settings`, docs/configuration.md.",
            f"driver: {driver}",
            f"node: {json.dumps(label)}  # label `node` of all results",
            f"state: {json.dumps(str(state))}  # results, lock, sockets",
            "# `pvebench packs` lists the packs; `pvebench packs --copy NAME` copies one to edit.",
            f"packs: {json.dumps(list(packs))}",
            "# Web UI and /metrics; a network address allows remote access.",
            f"listen: {json.dumps(listen)}",
            "storages:  # pvebench creates and removes volumes named pvebench-... there",
            *(
                f"  {json.dumps(name)}: {{kind: dir, path: {json.dumps(str(path))}}}"
                for name, path in storages.items()
            ),
        ]
    )
    return "\n".join(lines) + "\n"


def default_packs(packs: Sequence[str]) -> list[str]:
    """Return the packs for the settings; without any, the default pack."""
    return list(packs) or [str(DEFAULT_PACK)]
