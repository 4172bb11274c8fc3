"""`pvebench grafana` and `pvebench print`: files for an existing Prometheus and Grafana."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from pvebench.cli.options import PATH, output_option, writing
from pvebench.config import load_settings
from pvebench.errors import ConfigError, Problem
from pvebench.fields import host_and_port, is_loopback
from pvebench.files import read_secret
from pvebench.provision.grafana import Grafana, choose_source, shipped_dashboards, to_import_format
from pvebench.provision.grafana import push as push_dashboards
from pvebench.provision.scrape import Targets, included, prometheus_files, scrape_job
from pvebench.web.tls_and_users import scheme_of

# --- `pvebench grafana push`: dashboards in an existing Grafana.


@click.group()
def grafana() -> None:
    """Manage Grafana dashboards."""


@grafana.command()
@click.option(
    "--url", required=True, help="Root URL of Grafana, such as https://grafana.example.org."
)
@click.option(
    "--token-file",
    type=PATH,
    required=True,
    help="File with the token of a service account with role Admin; mode 0600.",
)
@click.option(
    "--folder", default="Storage benchmark", show_default=True, help="Title for a new folder."
)
@click.option(
    "--datasource", metavar="NAME or UID", help="Prometheus data source; default: the only one."
)
@click.option("--ca-file", type=PATH, help="CA certificate, if Grafana uses a private one.")
def push(
    url: str, token_file: Path, folder: str, datasource: str | None, ca_file: Path | None
) -> None:
    """Create or update the dashboards in Grafana, and remove obsolete ones.

    It changes only dashboards that it pushed itself.
    """
    api = Grafana(url, _token(token_file), ca_file)
    if urlsplit(url).scheme == "http" and not is_loopback(urlsplit(url).hostname or ""):
        click.echo("the token is sent unencrypted; use an https URL", err=True)
    source = choose_source(api, datasource)
    click.echo(f"data source {source.name!r} ({source.uid})")
    for line in push_dashboards(api, list(shipped_dashboards().values()), source, folder):
        click.echo(line)


def _token(path: Path) -> str:
    try:
        return read_secret(path)
    except OSError as error:
        problem = Problem(str(path), 0, 0, f"cannot be read: {error.strerror}")
        step = "create a service account and a token in Grafana: Administration, Service accounts"
        raise ConfigError([problem], next_step=step) from error


_TARGET: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_WILDCARD: Final = frozenset({"0.0.0.0", "[::]", "::", "*"})  # noqa: S104 # read, not bound


@click.group(name="print")
def print_() -> None:
    """Print monitoring files, or write them to a directory."""


_output = output_option("Write files to this directory.")


@print_.command()
@click.option(
    "--config", type=PATH, envvar="PVEBENCH_CONFIG", help="Settings file with the listen address."
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of pvebench as seen from Prometheus; may be repeated.",
)
@click.option(
    "--file-sd", default="", metavar="PATH", help="Let the job read its targets from this file."
)
@click.option(
    "--http-sd", default="", metavar="URL", help="Let the job fetch its targets from this URL."
)
@_output
def prometheus(
    config: Path | None, targets: tuple[str, ...], file_sd: str, http_sd: str, output: Path | None
) -> None:
    """Print the scrape job; with --output, write scrape job, rules, alerts and a target file.

    The job is named pvebench. Rules and dashboards select by this name.
    """
    if file_sd and http_sd:
        raise click.UsageError("use either --file-sd or --http-sd")
    for target in targets:
        if not _TARGET.fullmatch(target):
            raise click.UsageError(
                f"invalid --target {target!r}; write HOST:PORT, such as bench.example.org:10620"
            )
    settings = load_settings(config)
    job_targets = Targets(
        addresses=targets or (_address(settings.listen),),
        scheme=scheme_of(settings.web_config_file),
        file_sd=file_sd,
        http_sd=http_sd,
        site=settings.site or "",
    )
    if output is None:
        click.echo(scrape_job(job_targets), nl=False)
        return
    _write(output, prometheus_files(job_targets))
    for line in included(output.absolute()):
        click.echo(line)


def _address(listen: str) -> str:
    """Return the address for Prometheus; warn if only this machine can reach it."""
    host, port = host_and_port(listen)
    if host in _WILDCARD:
        return f"{socket.gethostname()}:{port}"
    if is_loopback(host):
        click.echo(
            f"pvebench listens on {listen}, reachable from this machine only; to scrape it from "
            "another machine, set `listen` in the settings",
            err=True,
        )
    return listen


@print_.command()
@_output
@click.argument("name", required=False)
def dashboards(name: str | None, output: Path | None) -> None:
    """Print the dashboard NAME, or write all with --output, for Grafana's import dialog."""
    selected = {file: to_import_format(board) for file, board in shipped_dashboards().items()}
    if name is not None:
        file = f"{name.removesuffix('.json')}.json"
        if file not in selected:
            known = ", ".join(Path(other).stem for other in selected)
            raise click.UsageError(f"unknown dashboard {name!r}; use one of {known}")
        selected = {file: selected[file]}
    texts = {file: json.dumps(board, indent=2) + "\n" for file, board in selected.items()}
    if output is not None:
        _write(output, texts)
    elif name is not None:
        click.echo("".join(texts.values()), nl=False)
    else:
        raise click.UsageError("pass a directory with --output, or the name of a dashboard")


def _write(directory: Path, files: Mapping[str, str]) -> None:
    """Write the files, replacing existing ones; print their paths."""
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, "utf-8")
    for name in files:
        click.echo(f"wrote {directory / name}")
