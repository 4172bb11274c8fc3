"""`pvebench grafana push`: our dashboards in a Grafana that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from pvebench.cli.options import PATH
from pvebench.errors import ConfigError, Problem
from pvebench.files import read_secret
from pvebench.monitoring.dashboards import shipped_dashboards
from pvebench.monitoring.grafana import Grafana
from pvebench.monitoring.push import choose_source
from pvebench.monitoring.push import push as push_dashboards

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@click.group()
def grafana() -> None:
    """Dashboards for a Grafana that is there already."""


@grafana.command()
@click.option("--url", required=True, help="Grafana's root, such as https://grafana.example.org.")
@click.option(
    "--token-file",
    type=PATH,
    required=True,
    help="File with the token of a service account of role Admin; mode 0600.",
)
@click.option(
    "--folder", default="Storage benchmark", show_default=True, help="Title of a new folder."
)
@click.option(
    "--datasource", metavar="NAME or UID", help="Prometheus of Grafana; default: the only one."
)
@click.option("--ca-file", type=PATH, help="Authority of its certificate, if it is a private one.")
def push(
    url: str, token_file: Path, folder: str, datasource: str | None, ca_file: Path | None
) -> None:
    """Make a folder with our dashboards, change those that were pushed, remove what is obsolete.

    What somebody else made is never touched.
    """
    api = Grafana(url, _token(token_file), ca_file)
    if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in LOOPBACK:
        click.echo("the token goes over the network as it is: https would hide it", err=True)
    source = choose_source(api, datasource)
    click.echo(f"data source {source.name!r} ({source.uid})")
    for line in push_dashboards(api, list(shipped_dashboards().values()), source, folder):
        click.echo(line)


def _token(path: Path) -> str:
    try:
        return read_secret(path)
    except OSError as error:
        problem = Problem(str(path), 0, 0, f"cannot be read: {error.strerror}")
        step = "make a service account and a token in Grafana: Administration, Service accounts"
        raise ConfigError([problem], next_step=step) from error
