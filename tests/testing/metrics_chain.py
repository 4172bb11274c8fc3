"""The way of a point: exporter, a real Prometheus, and a stand-in for Grafana."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from testing import http_client
from testing.metrics_page import page_of
from testing.prometheus import prometheus
from testing.simulated_site import app_of, served
from testing.simulations import simulate


@dataclass
class Chain:
    exporter: str
    prometheus: str
    grafana: str

    def options(self, **other: str) -> list[str]:
        places = {"exporter": self.exporter, "prometheus": self.prometheus, "grafana": self.grafana}
        return [
            part for name, address in (places | other).items() for part in (f"--{name}", address)
        ]


def grafana(prometheus_address: str) -> Starlette:
    """Return Grafana's query interface, which asks Prometheus; its answer is of Grafana 9.4.

    Like the real one it shows things without a login, and refuses a wrong one.
    """
    login = f"Basic {b64encode(b'admin:right').decode()}"

    async def query(request: Request) -> Response:
        if request.headers.get("Authorization", login) != login:
            return JSONResponse({"message": "Unauthorized"}, status_code=401)
        (asked,) = (await request.json())["queries"]
        if asked["datasource"]["uid"] != "pvebench-prometheus":
            return JSONResponse({"message": "data source not found"}, status_code=404)
        answer = http_client.get(
            f"{prometheus_address}/api/v1/query", params={"query": asked["expr"]}
        ).json()
        values = [
            [[at * 1000], [float(value)]]
            for at, value in (entry["value"] for entry in answer["data"]["result"])
        ]
        frames = [{"schema": {}, "data": {"values": columns}} for columns in values]
        return JSONResponse({"results": {"A": {"status": 200, "frames": frames}}})

    return Starlette(routes=[Route("/api/ds/query", query, methods=["POST"])])


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    directory = tmp_path_factory.mktemp("chain")
    simulation = simulate(directory)
    simulation.worker.run()
    with served(app_of(simulation, page=page_of(simulation))) as exporter:
        started = prometheus(directory, exporter.removeprefix("http://"), seconds=2)
        with started as server, served(grafana(server.address)) as front:
            server.wait_for("pvebench_iops")
            yield Chain(exporter, server.address, front)
