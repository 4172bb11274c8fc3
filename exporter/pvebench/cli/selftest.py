"""`pvebench selftest`: follow one point from the exporter to Prometheus to Grafana."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from pvebench.cli.options import PATH
from pvebench.errors import ChainBroken
from pvebench.monitoring.dashboards import DATASOURCE
from pvebench.service.chain import exported, in_grafana, in_prometheus, login_header

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
        raise ChainBroken(
            f"the exporter's page does not arrive in Prometheus at {prometheus}",
            cause="it scrapes another address, the scrape fails, or its clock is wrong",
            next_step=f"look at {prometheus}/targets; the job is pvebench",
        )
    click.echo(f"Prometheus  ok: it scraped a page of {_clock(arrived)}")
    if not without_grafana:
        shown = _wait(lambda: in_grafana(grafana, begun, login), timeout)
        if shown is None:
            raise ChainBroken(
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
