"""`pvebench print`: what a Prometheus and a Grafana need that are there already."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from pvebench.cli.options import PATH
from pvebench.config import load_settings
from pvebench.errors import ConfigError, NotWritable, Problem
from pvebench.files import read_secret
from pvebench.provision.dashboards import importable, shipped_dashboards
from pvebench.provision.grafana import Grafana, choose_source
from pvebench.provision.grafana import push as push_dashboards
from pvebench.provision.scrape import Targets, prometheus_files, scrape_job
from pvebench.service.instance import access_of

# --- `pvebench grafana push`: our dashboards in a Grafana that is there already.

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


_TARGET: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_EVERY: Final = frozenset({"0.0.0.0", "[::]", "::", "*"})  # noqa: S104 # read, not bound
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})


@click.group(name="print")
def print_() -> None:
    """Print, or write into a directory, what other programs are given."""


out_option = click.option("--out", type=PATH, help="Write files into this directory.")


@print_.command()
@click.option("--config", type=PATH, envvar="PVEBENCH_CONFIG", help="Settings: where it listens.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of pvebench as Prometheus sees it; may be repeated.",
)
@click.option("--file-sd", default="", metavar="PATH", help="Job reads its targets from this file.")
@click.option("--http-sd", default="", metavar="URL", help="Job fetches its targets from there.")
@out_option
def prometheus(
    config: Path | None, targets: tuple[str, ...], file_sd: str, http_sd: str, out: Path | None
) -> None:
    """Print the scrape job; with --out also rules, alerts and a file of targets.

    The job is named pvebench: rules and dashboards ask for that.
    """
    if file_sd and http_sd:
        raise click.UsageError("--file-sd or --http-sd, not both")
    for target in targets:
        if not _TARGET.fullmatch(target):
            raise click.UsageError(f"--target {target!r} is not such as bench.example.org:9620")
    settings = load_settings(config)
    asked = Targets(
        addresses=targets or (_address(settings.listen),),
        scheme=access_of(settings).scheme,
        file_sd=file_sd,
        http_sd=http_sd,
    )
    if out is None:
        click.echo(scrape_job(asked), nl=False)
        return
    _write(out, prometheus_files(asked))


def _address(listen: str) -> str:
    """Return where a Prometheus reaches what listens there; say what it cannot reach."""
    host, _, port = listen.rpartition(":")
    if host in _EVERY:
        return f"{socket.gethostname()}:{port}"
    if host in _LOOPBACK:
        click.echo(
            f"pvebench listens on {listen}, which only this machine reaches; for a Prometheus "
            "elsewhere set `listen` in the settings",
            err=True,
        )
    return listen


@print_.command()
@out_option
@click.argument("name", required=False)
def dashboards(name: str | None, out: Path | None) -> None:
    """Write the dashboards for Grafana's import dialogue, or print the one of that NAME."""
    every = {file: importable(one) for file, one in shipped_dashboards().items()}
    if name is not None:
        file = f"{name.removesuffix('.json')}.json"
        if file not in every:
            known = ", ".join(Path(one).stem for one in every)
            raise click.UsageError(f"there is no dashboard {name!r}; there are {known}")
        every = {file: every[file]}
    texts = {file: json.dumps(one, indent=2) + "\n" for file, one in every.items()}
    if out is not None:
        _write(out, texts)
    elif name is not None:
        click.echo("".join(texts.values()), nl=False)
    else:
        raise click.UsageError("name a directory with --out, or one dashboard")


def _write(directory: Path, files: Mapping[str, str]) -> None:
    """Write the files, over those of their names; say which."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, "utf-8")
    except OSError as error:
        raise NotWritable(f"{directory} cannot be written: {error.strerror}") from error
    for name in files:
        click.echo(str(directory / name))
