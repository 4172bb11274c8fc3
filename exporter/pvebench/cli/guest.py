"""`pvebench guest`: build and verify the guest image."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pvebench.cli.options import PATH, format_option
from pvebench.guest.build import build_image
from pvebench.guest.image import GuestImage, default_directory, load_image
from pvebench.model.units import show_bytes


@click.group()
def guest() -> None:
    """Manage the guest image."""


directory_option = click.option(
    "--directory", type=PATH, help="Directory of the image; default: the cache directory."
)


@guest.command()
@directory_option
@click.option("--force", is_flag=True, help="Rebuild a complete image.")
def build(directory: Path | None, force: bool) -> None:
    """Build the guest image from distribution packages, without root."""
    image = build_image(directory or default_directory(), say=click.echo, force=force)
    _print(image)


@guest.command()
@directory_option
@format_option()
def show(directory: Path | None, form: str) -> None:
    """Verify the guest image and list its versions."""
    image = load_image(directory or default_directory())
    if form == "json":
        click.echo(json.dumps(dict(image.manifest), indent=2, default=dict))
    else:
        _print(image)


def _print(image: GuestImage) -> None:
    click.echo(f"guest image {image.digest[:12]} in {image.directory}")
    for path in (image.kernel, image.initramfs, image.iso):
        click.echo(f"  {path.name}  {show_bytes(path.stat().st_size)}")
    for name, version in sorted(image.versions.items()):
        click.echo(f"  {name} {version}")
