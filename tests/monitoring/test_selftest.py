"""`pvebench selftest` along real exporter and Prometheus; Grafana is a stand-in."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pvebench.cli.main import run_cli
from testing import http_client
from testing.packs import simulate
from testing.prometheus import free_port, prometheus
from testing.simulated_site import app_of, served
from unit.metrics.test_exposition import page_of

Captured = pytest.CaptureFixture[str]


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


def test_a_point_goes_all_the_way(chain: Chain, capsys: Captured) -> None:
    assert run_cli(["selftest", *chain.options()]) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == [
        "exporter",
        "Prometheus",
        "Grafana",
        "metrics",
    ]


def test_it_stops_at_an_exporter_that_is_not_there(chain: Chain, capsys: Captured) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert run_cli(["selftest", *chain.options(exporter=nowhere)]) == 3
    assert f"the exporter does not respond at {nowhere}" in capsys.readouterr().err


def test_it_stops_where_something_else_answers(chain: Chain, capsys: Captured) -> None:
    options = chain.options(exporter=chain.prometheus)
    assert run_cli(["selftest", *options]) == 3
    assert "is not a pvebench exporter" in capsys.readouterr().err


def test_it_stops_at_a_prometheus_that_does_not_scrape(
    chain: Chain, tmp_path_factory: pytest.TempPathFactory, capsys: Captured
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with prometheus(tmp_path_factory.mktemp("other"), nobody) as other:
        options = chain.options(prometheus=other.address)
        assert run_cli(["selftest", *options, "--timeout", "2"]) == 3
    printed = capsys.readouterr()
    assert "exporter    ok" in printed.out
    assert "has no recent samples" in printed.err


def test_it_stops_at_something_else_than_grafana(chain: Chain, capsys: Captured) -> None:
    options = chain.options(grafana=chain.exporter)
    assert run_cli(["selftest", *options]) == 3
    printed = capsys.readouterr()
    assert "Prometheus  ok" in printed.out
    assert "Grafana returned 404" in printed.err
    assert "--grafana" in printed.err


def test_it_can_end_at_prometheus(chain: Chain, capsys: Captured) -> None:
    options = chain.options(grafana="http://127.0.0.1:1")
    assert run_cli(["selftest", *options, "--without-grafana"]) == 0
    assert "Grafana" not in capsys.readouterr().out


def test_it_logs_in_with_the_password_of_a_file(chain: Chain, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("right\n")
    password.chmod(0o600)
    option = ["--grafana-password-file", str(password)]
    assert run_cli(["selftest", *chain.options(), *option]) == 0
    password.write_text("wrong\n")
    assert run_cli(["selftest", *chain.options(), *option]) == 3


def test_a_password_file_that_is_not_there_is_named(chain: Chain, capsys: Captured) -> None:
    option = ["--grafana-password-file", "nowhere/password"]
    assert run_cli(["selftest", *chain.options(), *option]) == 2
    assert "nowhere/password" in capsys.readouterr().err
