"""`pvebench packs`: what can be measured. Imports no more than that needs: it is waited for."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from pvebench.cli.console import make_console
from pvebench.cli.options import PATH, complete_pack, json_option, pack_file
from pvebench.config import Pack, load_pack, shipped_packs
from pvebench.errors import ConfigError, NotWritable, Problem
from pvebench.model.units import format_size, show_seconds


@click.command()
@click.argument("directory", type=PATH, required=False)
@click.option(
    "--copy",
    "name",
    metavar="NAME",
    shell_complete=complete_pack,
    help="Write a pack that comes with pvebench into the working directory, to change it.",
)
@json_option
def packs(directory: Path | None, name: str | None, as_json: bool) -> None:
    """List the packs that come with pvebench, or those in a directory."""
    if name is not None:
        _copy(name)
        return
    found = [load_pack(path) for path in _files(directory)]
    if as_json:
        click.echo(json.dumps([_row(pack) for pack in found], indent=2))
        return
    _print(found)


def _files(directory: Path | None) -> list[Path]:
    """Return the files of a directory; without one, what each name of ours means here."""
    if directory is None:
        return [pack_file(Path(name)) for name in shipped_packs()]
    files = sorted(directory.glob("*.yaml"))
    if not files:
        message = "there are no packs (*.yaml) here; name another directory"
        raise ConfigError([Problem(str(directory), 0, 0, message)])
    return files


def _row(pack: Pack) -> dict[str, object]:
    return {
        "pack": pack.name,
        "title": pack.title,
        "tier": pack.tier,
        "file": str(pack.path),
        "source": pack.source,
        "published": pack.published,
        "every_seconds": pack.every_seconds,
        "volume_bytes": pack.volume_bytes,
        "workloads": [workload.slug for workload in pack.workloads],
    }


def _print(found: list[Pack]) -> None:
    ours = set(shipped_packs().values())
    table = Table("pack", "tier", "every", "volume", "workloads", "title and source", box=None)
    for pack in found:
        words = Text(pack.title)
        if pack.source:
            words.append(f"\n{pack.source}", style="dim")
        if pack.path not in ours:
            words.append(f"\n{pack.path}", style="dim")
        table.add_row(
            pack.name,
            pack.tier,
            show_seconds(pack.every_seconds),
            format_size(pack.volume_bytes),
            str(len(pack.workloads)),
            words,
        )
    make_console().print(table)


def _copy(name: str) -> None:
    """Write a pack of ours beside the others of this directory; nothing is written over."""
    known = shipped_packs()
    if name not in known:
        message = f"--copy: no pack called {name!r} comes with pvebench; they are "
        raise ConfigError([Problem("command line", 0, 0, message + ", ".join(known))])
    target = Path(f"{name}.yaml")
    # Its schema does not come along: its first line would lead editors nowhere.
    lines = known[name].read_text("utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("# yaml-language-server:"))
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise NotWritable(
            f"{target} is there already, and is not written over",
            next_step="change that one, or remove it first",
        ) from error
    except OSError as error:
        raise NotWritable(f"{target} cannot be written: {error.strerror}") from error
    click.echo(f"{target} goes before the pack of that name: pvebench plan --pack {name}")
