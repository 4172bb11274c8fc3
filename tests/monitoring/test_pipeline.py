"""`pvebench selftest` along real exporter and Prometheus; Grafana is a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from testing.metrics_chain import Chain, chain
from testing.prometheus import free_port, prometheus

__all__ = ["chain"]

Captured = pytest.CaptureFixture[str]


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
