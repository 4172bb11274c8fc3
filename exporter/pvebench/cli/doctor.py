"""`pvebench doctor`: look at everything, say what to do, the most important first."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from pvebench.cli.options import PATH, json_option, read_settings, scale_option, settings_options
from pvebench.diagnostics.check import findings as find
from pvebench.diagnostics.doctor import Observation, Places, Severity, diagnose
from pvebench.diagnostics.pipeline import exported, in_grafana, in_prometheus, login_header
from pvebench.drivers.driver import Finding
from pvebench.errors import MachineError, PipelineError
from pvebench.provision.dashboards import DATASOURCE

# --- `pvebench check`: is everything here that a run needs?

_WORDS: Final = {True: "ok  ", False: "FAIL", None: "?   "}


@click.command()
@settings_options
@scale_option
@json_option
def check(as_json: bool, scale: float, **options: Any) -> None:
    """Check settings, packs, tools, space and accelerator; change nothing."""
    show_findings(list(findings_of(options, scale)), as_json=as_json)


def show_findings(findings: list[Finding], *, as_json: bool = False) -> None:
    """Print them. Raises MachineError if one is bad."""
    if as_json:
        rows = [{"check": name, "ok": good, "found": text} for name, good, text in findings]
        click.echo(json.dumps(rows, indent=2))
    else:
        for name, good, text in findings:
            click.echo(f"{_WORDS[good]}  {name}: {text}")
    bad = [name for name, good, _ in findings if good is False]
    if bad:
        raise MachineError(
            f"{len(bad)} of {len(findings)} checks failed: {', '.join(bad)}",
            next_step="mend the first that failed, then check again: others may rest on it",
        )


def findings_of(options: dict[str, Any], scale: float = 1.0) -> Iterator[Finding]:
    """Yield what is there and what is not, for settings that are read as `read_settings` does."""
    yield from find(read_settings(**options), scale)


# --- `pvebench selftest`: follow one point from the exporter to Prometheus to Grafana.

PAUSE_SECONDS: Final = 1.0


@click.command()
@click.option("--exporter", default="http://127.0.0.1:9620", show_default=True)
@click.option("--prometheus", default="http://127.0.0.1:9690", show_default=True)
@click.option("--grafana", default="http://127.0.0.1:9692", show_default=True)
@click.option(
    "--exporter-login-file",
    type=PATH,
    help="File with USER:PASSWORD, where its web configuration wants a login.",
)
@click.option(
    "--grafana-password-file",
    type=PATH,
    help="File with its admin's password, where looking needs a login.",
)
@click.option("--without-grafana", is_flag=True, help="End at Prometheus.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds to wait at each place: longer than the scrape interval.",
)
def selftest(
    exporter: str,
    prometheus: str,
    grafana: str,
    exporter_login_file: Path | None,
    grafana_password_file: Path | None,
    without_grafana: bool,
    timeout: float,
) -> None:
    """Send a point from the exporter through Prometheus to Grafana; say where it stopped.

    The exporter puts the time into every page that it makes. A page made after this command
    began must be found at each place.
    """
    exporter_login = login_header(exporter_login_file, "", "name the file of the exporter's login")
    login = login_header(
        grafana_password_file, "admin:", "name the file of Grafana's admin password"
    )
    begun = time.time()
    made, _ = exported(exporter, exporter_login)
    click.echo(f"exporter    ok: {exporter} made a page at {_clock(made)}")
    arrived = _wait(lambda: in_prometheus(prometheus, begun), timeout)
    if arrived is None:
        raise PipelineError(
            f"the exporter's page does not arrive in Prometheus at {prometheus}",
            cause="it scrapes another address, the scrape fails, or its clock is wrong",
            next_step=f"look at {prometheus}/targets; the job is pvebench",
        )
    click.echo(f"Prometheus  ok: it scraped a page of {_clock(arrived)}")
    if not without_grafana:
        shown = _wait(lambda: in_grafana(grafana, begun, login), timeout)
        if shown is None:
            raise PipelineError(
                f"Grafana at {grafana} does not get the point from its data source {DATASOURCE}",
                cause="the data source leads to another Prometheus",
                next_step="provision it from grafana/provisioning/datasources",
            )
        click.echo(f"Grafana     ok: its data source has the page of {_clock(shown)}")
    click.echo("what is measured can be seen")


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(moment))


def _wait(ask: Callable[[], float | None], timeout: float) -> float | None:
    """Ask until there is an answer; None when there is none in time."""
    deadline = time.monotonic() + timeout
    while (found := ask()) is None and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
    return found


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
    found = diagnose(settings, places, seconds=timeout)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        for one in found:
            click.echo(f"{one.sight:11}  {one.about}: {_indented(one)}")
    wrong = [one.about for one in found if one.sight is Severity.CRITICAL]
    if wrong:
        raise MachineError(
            f"{len(wrong)} of {len(found)} things are wrong: {', '.join(wrong)}",
            next_step="mend the first, then look again: others may rest on it",
        )


def _indented(one: Observation) -> str:
    return one.found.replace("\n", "\n" + " " * 13)
