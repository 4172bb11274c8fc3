"""What a site says about its fleet: `pvebench fleet`, and the label `site` in Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.provision.scrape import Targets, scrape_job, target_file
from pvebench_fleet.fleet_log import FleetLog
from testing.stored_runs import run
from testing.stores import TemporaryStore


@pytest.fixture
def config(tmp_path: Path) -> Path:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
    store.add_run(run(0))
    store.close()
    path = tmp_path / "pvebench.yaml"
    fleet = "{url: https://hub.example.org, token_file: token}"
    path.write_text(f"site: vienna\nfleet: {fleet}\nstate: {tmp_path}\n")
    return path


def test_status_counts_what_waits(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["fleet", "status", "--config", str(config)]) == 0
    assert "not started" in capsys.readouterr().out
    store = TemporaryStore(config.parent / "pvebench.db")
    FleetLog(store.engine).begin()
    FleetLog(store.engine).note(state="connected", process="0" * 16, contact=1.0)
    store.close()
    assert run_cli(["fleet", "status", "--config", str(config), "--format", "json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert lines["sent"] == "0 of 4 lines; 4 waiting"
    assert (lines["site"], lines["state"], lines["process"]) == ("vienna", "connected", "0" * 16)


def test_resend_starts_over_with_all_that_is_stored(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["fleet", "resend", "--config", str(config)]) == 0
    assert "has not sent anything" in capsys.readouterr().out
    store = TemporaryStore(config.parent / "pvebench.db")
    FleetLog(store.engine).begin()
    *_, after = FleetLog(store.engine).batch(9)
    FleetLog(store.engine).advance(after, 1.8e9)
    store.close()
    assert run_cli(["fleet", "resend", "--config", str(config)]) == 0
    assert "4 lines will be sent" in capsys.readouterr().out
    store = TemporaryStore(config.parent / "pvebench.db")
    assert FleetLog(store.engine).position() == (0, "")
    assert (
        FleetLog(store.engine).batch(9)[2] != after
    )  # another chain: the hub takes it as another log
    store.close()


def test_prometheus_adds_the_site_to_every_sample_and_without_a_fleet_nothing() -> None:
    with_site = Targets(addresses=["a:1"], site="vienna")
    assert json.loads(target_file(with_site))[0]["labels"] == {"site": "vienna"}
    assert '        labels: {"site": "vienna"}' in scrape_job(with_site).splitlines()
    without = Targets(addresses=["a:1"])
    assert json.loads(target_file(without))[0]["labels"] == {}
    assert " labels:" not in scrape_job(without)
