"""Commands that diagnose: `pvebench check` and `doctor`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from pvebench.cli.options import (
    PATH,
    format_option,
    read_settings,
    scale_option,
    settings_options,
    show,
    show_findings,
    verbose_option,
)
from pvebench.diagnostics.check import findings
from pvebench.diagnostics.doctor import Servers, diagnose
from pvebench.diagnostics.outgoing import Observation, Severity
from pvebench.diagnostics.pipeline import login_header
from pvebench.errors import MachineError

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


# --- `pvebench doctor`: all observations, the most important first.


@click.command()
@settings_options
@click.option(
    "--exporter", default="", help="URL of a running pvebench; default: from the settings."
)
@click.option("--prometheus", default="", help="URL of Prometheus, such as http://127.0.0.1:9690.")
@click.option("--grafana", default="", help="URL of Grafana, such as http://127.0.0.1:9692.")
@click.option(
    "--grafana-password-file",
    type=PATH,
    help="File with the admin's password, if Grafana requires a login.",
)
@click.option(
    "--exporter-login-file",
    type=PATH,
    help="File with USER:PASSWORD, if the exporter requires a login.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds to wait; later answers are reported as unknown.",
)
@format_option()
def doctor(
    exporter: str,
    prometheus: str,
    grafana: str,
    exporter_login_file: Path | None,
    grafana_password_file: Path | None,
    timeout: float,
    form: str,
    **options: Any,
) -> None:
    """Diagnose the instance and its monitoring. Nothing is changed.

    It covers everything that `check` covers, the database, leftovers, clocks, the running service,
    Prometheus, Grafana, Alertmanager and notifications. The most important comes first.
    """
    settings = read_settings(**options)
    servers = Servers(
        exporter=exporter.rstrip("/"),
        prometheus=prometheus.rstrip("/"),
        grafana=grafana.rstrip("/"),
        exporter_login=login_header(
            exporter_login_file, "", "pass the login file with --exporter-login-file"
        ),
        grafana_login=login_header(
            grafana_password_file, "admin:", "pass the password file with --grafana-password-file"
        ),
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
