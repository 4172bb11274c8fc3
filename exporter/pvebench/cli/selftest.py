"""`pvebench selftest`: follow one point from the exporter to Prometheus to Grafana."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click

from pvebench.cli.options import PATH
from pvebench.errors import ChainBroken, ConfigError, Problem
from pvebench.files import read_secret
from pvebench.metrics import catalog
from pvebench.monitoring.dashboards import DATASOURCE

POINT: Final = catalog.PAGE_TIMESTAMP.exposed
PAUSE_SECONDS: Final = 1.0
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


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
    exporter_login = _login(exporter_login_file, "", "name the file of the exporter's login")
    login = _login(grafana_password_file, "admin:", "name the file of Grafana's admin password")
    begun = time.time()
    made = _exported(exporter, exporter_login)
    click.echo(f"exporter    ok: {exporter} made a page at {_clock(made)}")
    arrived = _wait(lambda: _in_prometheus(prometheus, begun), timeout)
    if arrived is None:
        raise ChainBroken(
            f"the exporter's page does not arrive in Prometheus at {prometheus}",
            cause="it scrapes another address, the scrape fails, or its clock is wrong",
            next_step=f"look at {prometheus}/targets; the job is pvebench",
        )
    click.echo(f"Prometheus  ok: it scraped a page of {_clock(arrived)}")
    if not without_grafana:
        shown = _wait(lambda: _in_grafana(grafana, begun, login), timeout)
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


def _exported(exporter: str, login: Mapping[str, str]) -> float:
    """Return the time on a page of the exporter.

    Raises:
        ChainBroken: it does not answer, or is none.
    """
    next_step = "start it: pvebench serve; a login: --exporter-login-file"
    text = _fetch(f"{exporter}/metrics", "the exporter", next_step, headers=login)
    match = re.search(rf"^{POINT} (\S+)$", text, flags=re.MULTILINE)
    if match is None:
        raise ChainBroken(
            f"what answers at {exporter} is no pvebench: its page has no {POINT}",
            cause="another program listens there, or an older pvebench",
            next_step="name the address of the exporter: --exporter",
        )
    return float(match[1])


def _in_prometheus(server: str, begun: float) -> float | None:
    """Return the newest point that Prometheus knows, if it is younger than this test."""
    query = urllib.parse.urlencode({"query": _question(begun)})
    next_step = "start it, or name its address: --prometheus"
    text = _fetch(f"{server}/api/v1/query?{query}", "Prometheus", next_step)
    with _understood(server, "Prometheus", text):
        found = json.loads(text)["data"]["result"]
        return float(found[0]["value"][1]) if found else None


def _login(secret: Path | None, user: str, next_step: str) -> Mapping[str, str]:
    """Return the header that logs `user` in with what the file has; none without a file.

    Raises:
        ConfigError: the file cannot be read, or others can read it.
    """
    if secret is None:
        return NO_HEADERS
    try:
        login = user + read_secret(secret)
    except OSError as error:
        problem = Problem(str(secret), 0, 0, f"cannot be read: {error.strerror}")
        raise ConfigError([problem], next_step=next_step) from error
    return {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}


def _in_grafana(server: str, begun: float, login: Mapping[str, str]) -> float | None:
    """Return the same as Grafana's panels get it: by its own query interface."""
    source = {"type": "prometheus", "uid": DATASOURCE}
    query = {
        "refId": "A",
        "datasource": source,
        "expr": _question(begun),
        "instant": True,
        "range": False,
        "intervalMs": 15000,
        "maxDataPoints": 100,
    }
    body = json.dumps({"from": "now-5m", "to": "now", "queries": [query]}).encode()
    next_step = "start it, or name its address: --grafana; a login: --grafana-password-file"
    address = f"{server}/api/ds/query"
    text = _fetch(address, "Grafana", next_step, body=body, headers=login)
    with _understood(server, "Grafana", text):
        frames = json.loads(text)["results"]["A"]["frames"]
        values = [frame["data"]["values"] for frame in frames]
        return next((float(columns[1][-1]) for columns in values if len(columns) > 1), None)


def _question(begun: float) -> str:
    return f"max({POINT} > {begun:.3f})"


@contextmanager
def _understood(server: str, what: str, text: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ChainBroken(
            f"what answers at {server} is not {what}: {text[:80]!r}",
            next_step=f"name the address of {what}",
        ) from error


def _fetch(
    address: str,
    what: str,
    next_step: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> str:
    sent = {"Content-Type": "application/json", **headers} if body else headers
    request = urllib.request.Request(address, body, dict(sent))  # noqa: S310 # the user names the servers
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 # likewise
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        raise ChainBroken(
            f"{what} answers {error.code} {error.reason} at {address.partition('?')[0]}",
            cause="a login is wanted, the data source is not there, or it is another program",
            next_step=next_step,
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ChainBroken(
            f"{what} does not answer at {address.partition('?')[0]}: {reason}", next_step=next_step
        ) from error
    return text


def _wait(ask: Callable[[], float | None], timeout: float) -> float | None:
    """Ask until there is an answer; None when there is none in time."""
    deadline = time.monotonic() + timeout
    while (found := ask()) is None and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
    return found
