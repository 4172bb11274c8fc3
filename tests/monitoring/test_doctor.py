"""`pvebench doctor` along an exporter and a real Prometheus with our rules; Grafana stands in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from testing.metrics_chain import Chain, chain
from testing.prometheus import free_port, prometheus

__all__ = ["chain"]

Captured = pytest.CaptureFixture[str]


Look = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture
def look(tmp_path: Path, capsys: Captured) -> Look:
    def look(code: int, *options: str) -> dict[str, tuple[str, str]]:
        state = ["--driver", "simulated", "--state", str(tmp_path)]
        assert run_cli(["doctor", *state, "--format=json", *options]) == code
        rows = json.loads(capsys.readouterr().out)
        return {row["about"]: (row["severity"], row["text"]) for row in rows}

    return look


def test_what_is_there_is_seen_all_along_the_way(chain: Chain, look: Look) -> None:
    found = look(3, *chain.options())
    assert {found[name][0] for name in ("service", "Prometheus", "Grafana")} == {"ok"}
    severity, text = found["alerts"]
    assert severity == "warning"
    assert "but no Alertmanager" in text
    assert found["notifications"][0] == "warning"
    assert "changes are not reported" in found["notifications"][1]
    # The simulation behind it has ended months ago by its own clock.
    assert "scheduler on lab stalled" in found["progress"][1]


def test_a_prometheus_that_does_not_scrape_and_its_grafana_are_reported(
    chain: Chain, look: Look, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with prometheus(tmp_path_factory.mktemp("other"), f"127.0.0.1:{free_port()}") as other:
        found = look(3, *chain.options(prometheus=other.address, grafana=chain.exporter))
    assert found["Prometheus"][0] == "critical"
    assert "/targets" in found["Prometheus"][1]
    assert found["Grafana"][0] == "critical"
    assert found["service"][0] == "ok"


@pytest.mark.parametrize(("honored", "severity"), [("true", "ok"), ("false", "critical")])
def test_a_target_with_a_label_node_is_reported_unless_the_job_honors_that_of_results(
    chain: Chain, look: Look, tmp_path_factory: pytest.TempPathFactory, honored: str, severity: str
) -> None:
    job = f"    honor_labels: {honored}\n"
    job += "    relabel_configs: [{target_label: node, replacement: k3s-1}]\n"
    exporter = chain.exporter.removeprefix("http://")
    with prometheus(tmp_path_factory.mktemp("labels"), exporter, scrape=job) as server:
        server.wait_for("pvebench_iops")
        options = chain.options(prometheus=server.address)
        found = look(3, *options)["Prometheus"]
    assert found[0] == severity
    assert ("honor_labels: true" in found[1]) is (severity == "critical")
    assert ("to exported_node\n" in found[1]) is (severity == "critical")


def test_who_is_not_there_or_is_someone_else_is_reported(chain: Chain, look: Look) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    found = look(3, *chain.options(prometheus=nowhere, exporter=chain.prometheus))
    assert "does not respond" in found["Prometheus"][1]
    assert "is not a pvebench exporter" in found["service"][1]
    assert found["Grafana"][0] == "ok"


def test_it_logs_in_with_the_password_of_a_file(chain: Chain, look: Look, tmp_path: Path) -> None:
    password = tmp_path / "password"
    for text, severity in (("right", "ok"), ("wrong", "critical")):
        password.write_text(f"{text}\n")
        password.chmod(0o600)
        option = ("--grafana-password-file", str(password))
        assert look(3, *chain.options(), *option)["Grafana"][0] == severity
