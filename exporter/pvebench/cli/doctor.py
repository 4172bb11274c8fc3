"""Commands that diagnose: `pvebench check`, `selftest` and `doctor`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from pvebench.cli.options import (
    PATH,
    F,
    format_option,
    read_settings,
    scale_option,
    settings_options,
    show,
    show_findings,
    together,
    verbose_option,
)
from pvebench.diagnostics.check import findings
from pvebench.diagnostics.doctor import Servers, diagnose
from pvebench.diagnostics.outgoing import Observation, Severity
from pvebench.diagnostics.pipeline import (
    login_header,
    newest_in_grafana,
    newest_in_prometheus,
    read_exposition,
)
from pvebench.errors import MachineError, PipelineError
from pvebench.provision.grafana import DATASOURCE

# --- `pvebench check`: prerequisites of a run.


@click.command()
@verbose_option
@settings_options
@scale_option
@click.option("--boot", is_flag=True, help="Also boot each guest once, in minutes, and check it.")
@format_option()
def check(form: str, scale: float, boot: bool, **options: Any) -> None:
    """Validate settings, packs, tools and disk space. Without --boot, nothing is changed."""
    say = partial(click.echo, err=True) if boot else None
    show_findings(findings(read_settings(**options), scale, boot=say), form=form)


# --- `pvebench selftest`: one sample from the exporter to Prometheus and Grafana.

PAUSE_SECONDS: Final = 1.0


_login_options = together(
    click.option(
        "--grafana-password-file",
        type=PATH,
        help="File with the admin's password, if Grafana requires a login.",
    ),
    click.option(
        "--exporter-login-file",
        type=PATH,
        help="File with USER:PASSWORD, if the exporter requires a login.",
    ),
)


def _timeout_option(help_text: str) -> Callable[[F], F]:
    seconds = click.FloatRange(min=1)
    return click.option("--timeout", type=seconds, default=60.0, show_default=True, help=help_text)


def _logins(
    exporter_login_file: Path | None, grafana_password_file: Path | None
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the login headers of the exporter and of Grafana."""
    return (
        login_header(exporter_login_file, "", "pass the login file with --exporter-login-file"),
        login_header(
            grafana_password_file, "admin:", "pass the password file with --grafana-password-file"
        ),
    )


@click.command(epilog="Example: pvebench selftest --exporter http://bench:10620 --without-grafana")
@click.option("--exporter", default="http://127.0.0.1:10620", show_default=True)
@click.option("--prometheus", default="http://127.0.0.1:9690", show_default=True)
@click.option("--grafana", default="http://127.0.0.1:9692", show_default=True)
@_login_options
@click.option("--without-grafana", is_flag=True, help="Check Prometheus only.")
@_timeout_option("Seconds to wait for each server; longer than the scrape interval.")
def selftest(
    exporter: str,
    prometheus: str,
    grafana: str,
    without_grafana: bool,
    timeout: float,
    **files: Path | None,
) -> None:
    """Check that metrics reach Prometheus and Grafana.

    Each `/metrics` response contains its creation time. Prometheus and Grafana must return a
    response created after this command started.
    """
    exporter_login, login = _logins(**files)
    started = time.time()
    exposed, _ = read_exposition(exporter, exporter_login)
    click.echo(f"exporter    ok: {exporter} returned metrics of {_clock(exposed)}")
    scraped = _wait(lambda: newest_in_prometheus(prometheus, started), timeout)
    if scraped is None:
        raise PipelineError(
            f"Prometheus at {prometheus} has no recent samples",
            cause="it scrapes another address, the scrape fails, or its clock is wrong",
            next_step=f"check the job pvebench at {prometheus}/targets",
        )
    click.echo(f"Prometheus  ok: scraped metrics of {_clock(scraped)}")
    if not without_grafana:
        displayed = _wait(lambda: newest_in_grafana(grafana, started, login), timeout)
        if displayed is None:
            raise PipelineError(
                f"Grafana at {grafana} has no recent samples in its data source {DATASOURCE}",
                cause="the data source uses another Prometheus",
                next_step="provision it from grafana/provisioning/datasources",
            )
        click.echo(f"Grafana     ok: data source has metrics of {_clock(displayed)}")
    click.echo("metrics reach every server")


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(moment))


def _wait(query: Callable[[], float | None], timeout: float) -> float | None:
    """Repeat a query until it returns a value; return None after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (value := query()) is None and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
    return value


# --- `pvebench doctor`: all observations, the most important first.


@click.command()
@settings_options
@click.option(
    "--exporter", default="", help="URL of a running pvebench; default: from the settings."
)
@click.option("--prometheus", default="", help="URL of Prometheus, such as http://127.0.0.1:9690.")
@click.option("--grafana", default="", help="URL of Grafana, such as http://127.0.0.1:9692.")
@_login_options
@_timeout_option("Seconds to wait; later answers are reported as unknown.")
@format_option()
def doctor(
    exporter: str, prometheus: str, grafana: str, timeout: float, form: str, **options: Any
) -> None:
    """Diagnose the instance and its monitoring. Nothing is changed.

    It covers everything that `check` covers, the database, leftovers, clocks, the running service,
    Prometheus, Grafana, Alertmanager and notifications. The most important comes first.
    """
    exporter_login, grafana_login = _logins(
        options.pop("exporter_login_file"), options.pop("grafana_password_file")
    )
    settings = read_settings(**options)
    servers = Servers(
        exporter=exporter.rstrip("/"),
        prometheus=prometheus.rstrip("/"),
        grafana=grafana.rstrip("/"),
        exporter_login=exporter_login,
        grafana_login=grafana_login,
    )
    observations = diagnose(settings, servers, seconds=timeout)
    show(form, lambda: [*map(asdict, observations)], lambda: map(_line, observations))
    critical = [entry.about for entry in observations if entry.severity is Severity.CRITICAL]
    if critical:
        raise MachineError(
            f"{len(critical)} of {len(observations)} observations are critical: "
            f"{', '.join(critical)}",
            next_step="fix the first and run doctor again; it may cause the others",
        )


def _line(observation: Observation) -> str:
    indented = observation.text.replace("\n", "\n" + " " * 13)
    return f"{observation.severity:11}  {observation.about}: {indented}"
