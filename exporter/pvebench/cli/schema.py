"""`pvebench schema`: the JSON schemas of packs and settings, for editors."""

from __future__ import annotations

import click

from pvebench.config.schema import MODELS, schema_text


@click.command()
@click.argument("name", type=click.Choice(sorted(MODELS)))
def schema(name: str) -> None:
    """Print the JSON schema of packs or settings."""
    click.echo(schema_text(name), nl=False)
