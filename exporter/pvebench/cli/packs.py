"""`pvebench packs`: what can be measured. Imports no more than that needs: it is waited for."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from pvebench.cli.console import make_console
from pvebench.cli.options import PATH, json_option
from pvebench.config import load_pack
from pvebench.errors import ConfigError, Problem
from pvebench.model.units import format_size, show_seconds


@click.command()
@click.argument("directory", type=PATH, default=Path("scenarios"))
@json_option
def packs(directory: Path, as_json: bool) -> None:
    """List the packs in a directory."""
    found = [load_pack(path) for path in sorted(directory.glob("*.yaml"))]
    if not found:
        message = "there are no packs (*.yaml) here; name another directory"
        raise ConfigError([Problem(str(directory), 0, 0, message)])
    rows = [
        {
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
        for pack in found
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("pack", "tier", "every", "volume", "workloads", "title and source", box=None)
    for pack in found:
        words = Text(pack.title)
        if pack.source:
            words.append(f"\n{pack.source}", style="dim")
        table.add_row(
            pack.name,
            pack.tier,
            show_seconds(pack.every_seconds),
            format_size(pack.volume_bytes),
            str(len(pack.workloads)),
            words,
        )
    make_console().print(table)
