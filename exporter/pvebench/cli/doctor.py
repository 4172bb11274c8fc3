"""`pvebench doctor`: look at everything, say what to do, the most important first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pvebench.cli.options import PATH, json_option, read_settings, settings_options
from pvebench.errors import MachineError
from pvebench.service.chain import login_header
from pvebench.service.examination import Places, examine
from pvebench.service.observation import Observation, Sight


@click.command()
@settings_options
@click.option("--exporter", default="", help="Address of a running pvebench, if not the settings'.")
@click.option("--prometheus", default="", help="Its address, as http://127.0.0.1:9690.")
@click.option("--grafana", default="", help="Its address, as http://127.0.0.1:9692.")
@click.option("--exporter-login-file", type=PATH, help="File with USER:PASSWORD of the exporter.")
@click.option("--grafana-password-file", type=PATH, help="File with the password of its admin.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds after which is told what is known by then.",
)
@json_option
def doctor(
    exporter: str,
    prometheus: str,
    grafana: str,
    exporter_login_file: Path | None,
    grafana_password_file: Path | None,
    timeout: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Look at everything and say what to do, in order of importance; change nothing.

    Settings and all that `check` looks at, database, leftovers, clocks, the running service, and
    the way to Prometheus, Grafana, Alertmanager and people.
    """
    settings = read_settings(**options)
    places = Places(
        exporter=exporter.rstrip("/"),
        prometheus=prometheus.rstrip("/"),
        grafana=grafana.rstrip("/"),
        exporter_login=login_header(exporter_login_file, "", "name the file of the login"),
        grafana_login=login_header(grafana_password_file, "admin:", "name the password's file"),
    )
    found = examine(settings, places, seconds=timeout)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        for one in found:
            click.echo(f"{one.sight:11}  {one.about}: {_indented(one)}")
    wrong = [one.about for one in found if one.sight is Sight.WRONG]
    if wrong:
        raise MachineError(
            f"{len(wrong)} of {len(found)} things are wrong: {', '.join(wrong)}",
            next_step="mend the first, then look again: others may rest on it",
        )


def _indented(one: Observation) -> str:
    return one.found.replace("\n", "\n" + " " * 13)
