"""The way of a point: from the exporter's page to Prometheus to Grafana; and that of an alert."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pvebench.errors import ConfigError, PipelineError, Problem
from pvebench.files import read_body, read_secret
from pvebench.metrics import catalog
from pvebench.model.units import MIB
from pvebench.provision.dashboards import DATASOURCE

POINT: Final = catalog.EXPOSITION_TIMESTAMP.exposed
"""The time at which a page was made, in it."""
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_ANSWER_SECONDS: Final = 10.0
_ALL_SECONDS: Final = 60.0
_ANSWER_BYTES: Final = 64 * MIB
"""More than Prometheus takes of a page; whoever answers may be anybody."""


def exported(exporter: str, login: Mapping[str, str]) -> tuple[float, str]:
    """Return the time on a page of the exporter, and the page.

    Raises:
        ChainBroken: it does not answer, or is none.
    """
    next_step = "start it: pvebench serve; a login: --exporter-login-file"
    text = fetch(f"{exporter}/metrics", "the exporter", next_step, headers=login)
    match = re.search(rf"^{POINT} (\d[\d.e+]*)$", text, flags=re.MULTILINE)
    if match is None:
        raise PipelineError(
            f"what answers at {exporter} is no pvebench: its page has no {POINT}",
            cause="another program listens there, or an older pvebench",
            next_step="name the address of the exporter: --exporter",
        )
    return float(match[1]), text


def in_prometheus(server: str, begun: float) -> float | None:
    """Return the time of the newest page that Prometheus knows, if it was made after `begun`.

    Raises:
        ChainBroken: it does not answer, or is none.
    """
    rows = asked(server, f"/api/v1/query?{urllib.parse.urlencode({'query': _question(begun)})}")
    with _understood(server, "Prometheus", str(rows)):
        found = rows["result"]
        return float(found[0]["value"][1]) if found else None


def asked(server: str, path: str) -> Any:
    """Return the data of Prometheus' answer. Raises ChainBroken."""
    text = fetch(f"{server}{path}", "Prometheus", "start it, or name its address: --prometheus")
    with _understood(server, "Prometheus", text):
        return json.loads(text)["data"]


def login_header(secret: Path | None, user: str, next_step: str) -> Mapping[str, str]:
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


def in_grafana(server: str, begun: float, login: Mapping[str, str]) -> float | None:
    """Return the same as Grafana's panels get it, by its own query interface. As above raises."""
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
    text = fetch(address, "Grafana", next_step, body=body, headers=login)
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
        raise PipelineError(
            f"what answers at {server} is not {what}: {text[:80]!r}",
            next_step=f"name the address of {what}",
        ) from error


def fetch(
    address: str,
    what: str,
    next_step: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> str:
    """Return what a server answers.

    Args:
        what: the server in words. next_step: for whoever reads that it does not.

    Raises:
        ChainBroken: it does not answer, or refuses.
    """
    sent = {"Content-Type": "application/json", **headers} if body else headers
    request = urllib.request.Request(address, body, dict(sent))  # noqa: S310 # the user names the servers
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 # likewise
            said = read_body(answer, most=_ANSWER_BYTES, seconds=_ALL_SECONDS)
    except urllib.error.HTTPError as error:
        raise PipelineError(
            f"{what} answers {error.code} {error.reason} at {address.partition('?')[0]}",
            cause="a login is wanted, the data source is not there, or it is another program",
            next_step=next_step,
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise PipelineError(
            f"{what} does not answer at {address.partition('?')[0]}: {reason}", next_step=next_step
        ) from error
    return said.decode("utf-8", "replace")
