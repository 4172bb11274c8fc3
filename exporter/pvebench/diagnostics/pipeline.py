"""Check that samples reach Prometheus and Grafana."""

from __future__ import annotations

import http.client
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
from pvebench.files import read_secret
from pvebench.http_responses import open_url, read_body
from pvebench.metrics import state_metrics
from pvebench.model.units import MIB
from pvebench.provision.grafana import DATASOURCE

TIMESTAMP: Final = state_metrics.EXPOSITION_TIMESTAMP.exposed
NUMBER: Final = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
"""Metric with the creation time of an exposition."""
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_ANSWER_SECONDS: Final = 10.0
_ALL_SECONDS: Final = 60.0
_ANSWER_BYTES: Final = 64 * MIB
"""More than Prometheus accepts; any program may respond at the address."""


def read_exposition(exporter: str, login: Mapping[str, str]) -> tuple[float, str]:
    """Return the exporter's metrics: their creation time (UNIX seconds), and the text.

    Raises PipelineError: the exporter does not respond, or another program does.
    """
    next_step = (
        "start it with `pvebench serve`, or pass --exporter http://HOST:10620, and a login with "
        "--exporter-login-file"
    )
    text = fetch(f"{exporter}/metrics", "the exporter", next_step, headers=login)
    match = re.search(rf"^{TIMESTAMP} {NUMBER}$", text, flags=re.MULTILINE)
    if match is None:
        raise PipelineError(
            f"{exporter} is not a pvebench exporter: no metric {TIMESTAMP}",
            cause="another program or an older pvebench listens there",
            next_step="pass the address of the exporter with --exporter",
        )
    return float(match[1]), text


def newest_in_prometheus(server: str, after: float) -> float | None:
    """Return the newest exposition time in Prometheus, if later than `after` (UNIX seconds).

    Raises:
        PipelineError: Prometheus does not respond, or another program does; or labels of the
            target replace those of pvebench, which mixes nodes or configurations.
    """
    rows = _instant(server, _query(after))
    samples = _instant(server, 'topk by (__name__) (1, {__name__=~"pvebench_.+"})') if rows else []
    with _parsing(server, "Prometheus", f"{rows}{samples}"):
        names = {name for row in samples for name in row["metric"]}
        if replaced := sorted(name for name in names if name.startswith("exported_")):
            raise PipelineError(
                f"Prometheus renames labels of pvebench to {', '.join(replaced)}",
                cause="its scrape job adds labels of the same names",
                next_step="set `honor_labels: true` in the job pvebench of prometheus.yml",
            )
        return float(rows[0]["value"][1]) if rows else None


def _instant(server: str, query: str) -> Any:
    data = query_prometheus(server, f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    with _parsing(server, "Prometheus", str(data)):
        return data["result"]


def query_prometheus(server: str, path: str) -> Any:
    """Return the data of a Prometheus response. Raises PipelineError."""
    text = fetch(f"{server}{path}", "Prometheus", "start it, or pass its address with --prometheus")
    with _parsing(server, "Prometheus", text):
        return json.loads(text)["data"]


def login_header(secret: Path | None, user: str, next_step: str) -> Mapping[str, str]:
    """Return the login header of `user` with the secret of the file; empty without a file.

    Raises ConfigError: the file cannot be read, or others can read it.
    """
    if secret is None:
        return NO_HEADERS
    try:
        login = user + read_secret(secret)
    except OSError as error:
        problem = Problem(str(secret), 0, 0, f"cannot be read: {error.strerror}")
        raise ConfigError([problem], next_step=next_step) from error
    return {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}


def newest_in_grafana(server: str, after: float, login: Mapping[str, str]) -> float | None:
    """Return the same as `newest_in_prometheus`, through Grafana's query API, as panels do."""
    source = {"type": "prometheus", "uid": DATASOURCE}
    query = {
        "refId": "A",
        "datasource": source,
        "expr": _query(after),
        "instant": True,
        "range": False,
        "intervalMs": 15000,
        "maxDataPoints": 100,
    }
    body = json.dumps({"from": "now-5m", "to": "now", "queries": [query]}).encode()
    next_step = "start it, pass its address with --grafana or a login with --grafana-password-file"
    address = f"{server}/api/ds/query"
    text = fetch(address, "Grafana", next_step, body=body, headers=login)
    with _parsing(server, "Grafana", text):
        frames = json.loads(text)["results"]["A"]["frames"]
        values = [frame["data"]["values"] for frame in frames]
        return next((float(columns[1][-1]) for columns in values if len(columns) > 1), None)


def _query(after: float) -> str:
    return f"max({TIMESTAMP} > {after:.3f})"


@contextmanager
def _parsing(server: str, program: str, text: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise PipelineError(
            f"{server} is not {program}: {text[:80]!r}", next_step=f"pass the address of {program}"
        ) from error


def fetch(
    address: str,
    program: str,
    next_step: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> str:
    """Return the response of a server.

    Args:
        program: name of the server program, for messages.
        next_step: action if the server fails.

    Raises PipelineError: the server does not respond, or rejects the request.
    """
    sent = {"Content-Type": "application/json", **headers} if body else headers
    request = urllib.request.Request(address, body, dict(sent))  # noqa: S310 # the user names the servers
    try:
        with open_url(request, still=_ANSWER_SECONDS, seconds=_ALL_SECONDS) as response:
            received = read_body(response, most=_ANSWER_BYTES, seconds=_ALL_SECONDS)
    except urllib.error.HTTPError as error:
        raise PipelineError(
            f"{program} returned {error.code} {error.reason} at {address.partition('?')[0]}",
            cause="login required, missing data source, or another program",
            next_step=next_step,
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise PipelineError(
            f"{program} does not respond at {address.partition('?')[0]}: {reason}",
            next_step=next_step,
        ) from error
    return received.decode("utf-8", "replace")
