"""`pvebench status`: six lines, from the store alone and beside a running service."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.model.units import show_bytes
from pvebench.store.state_directory import WEB_FILE, StateDirectory
from testing.http_client import get
from testing.packs import QUICK
from testing.simulated_site import app_of, served
from testing.simulations import simulate
from testing.stores import TemporaryStore

Captured = pytest.CaptureFixture[str]
NAMES = ("running", "next", "results", "changed", "cost", "data")


def lines(capsys: Captured, *options: str) -> dict[str, str]:
    capsys.readouterr()
    assert run_cli(["status", *options]) == 0
    found = [line.partition(":") for line in capsys.readouterr().out.splitlines()]
    assert tuple(name for name, _, _ in found) == NAMES
    return {name: text.strip() for name, _, text in found}


def test_before_the_first_run_each_line_says_what_is_missing(
    tmp_path: Path, capsys: Captured
) -> None:
    shown = lines(capsys, "--state", str(tmp_path / "none"))
    assert shown["running"] == "nothing"
    assert "`pvebench serve`" in shown["next"]
    assert shown["results"] == "none yet"
    assert "`pvebench plan`" in shown["cost"]
    assert not (tmp_path / "none").exists()


def test_leftovers_of_a_killed_process_are_named_as_by_doctor(
    tmp_path: Path, capsys: Captured
) -> None:
    with StateDirectory(tmp_path, exclusive=True) as state:
        store = TemporaryStore(state.database, simulated=True)
        store.journal.open("simulated-vm", {"name": "lab"})
        store.close()
    left = "1 leftover of a killed process; run `pvebench cleanup`, or start pvebench"
    assert lines(capsys, "--state", str(tmp_path))["running"] == f"nothing; {left}"


def test_without_a_service_the_lines_come_from_the_store(tmp_path: Path, capsys: Captured) -> None:
    state = ["--state", str(tmp_path)]
    assert run_cli(["run", *state, "--driver", "simulated", "--pack", str(QUICK)]) == 0
    assert run_cli(["pause", *state, "--reason", "new disk"]) == 0
    shown = lines(capsys, *state)
    assert shown["next"] == "paused (new disk); continue with `pvebench resume`"
    assert shown["results"].startswith("12 runs; 12 of 12 cases ok; the latest ")
    assert shown["changed"].startswith("Inconclusive: ")
    # All that was written counts, fills included, as for write budgets.
    store = TemporaryStore(tmp_path / "pvebench.db")
    written = store.written_bytes("local", datetime.now(UTC))
    store.close()
    assert written > 0
    assert shown["cost"] == f"{show_bytes(written)} written in the last 24 hours"
    assert shown["data"].startswith(str(tmp_path / "pvebench.db"))


@pytest.mark.parametrize("elsewhere", [False, True], ids=["as set", "other --listen"])
def test_a_running_service_reports_what_it_measures(
    elsewhere: bool, tmp_path: Path, capsys: Captured
) -> None:
    simulation = simulate(tmp_path, cycles=2)
    for _ in range(3):
        simulation.worker.step()
    with StateDirectory(tmp_path, exclusive=True), served(app_of(simulation)) as address:
        config = tmp_path / "settings.yaml"
        listen = address.removeprefix("http://")
        (tmp_path / WEB_FILE).write_text(listen if elsewhere else "", "utf-8")
        config.write_text(f"listen: {'127.0.0.1:1' if elsewhere else listen}\n", "utf-8")
        options = ["--config", str(config), "--state", str(tmp_path)]
        shown = lines(capsys, *options)
        assert run_cli(["status", *options, "--format", "json"]) == 0
        assert tuple(json.loads(capsys.readouterr().out)) == NAMES
    assert shown["running"].startswith("lab is idle")
    assert "(process " in shown["running"]
    assert shown["next"] == f"{simulation.worker._queue[0].slug} on lab is due"


def test_a_process_that_does_not_answer_is_named(tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("listen: 127.0.0.1:1\n", "utf-8")
    with StateDirectory(tmp_path, exclusive=True):
        shown = lines(capsys, "--config", str(config), "--state", str(tmp_path))
    assert shown["running"].endswith("no details from http://127.0.0.1:1")
    assert shown["next"] == "unknown"


def test_page_api_and_status_name_one_time_of_the_first_verdicts(
    tmp_path: Path, capsys: Captured
) -> None:
    simulation = simulate(tmp_path, cycles=None)
    for _ in range(13):
        simulation.world.clock.sleep(simulation.worker.step())
    with StateDirectory(tmp_path, exclusive=True), served(app_of(simulation)) as address:
        config = tmp_path / "settings.yaml"
        config.write_text(f"listen: {address.removeprefix('http://')}\n", "utf-8")
        shown = lines(capsys, "--config", str(config), "--state", str(tmp_path))
        page, data = get(address).text, get(f"{address}/api/v1/status").json()
    moment = datetime.fromisoformat(data["first_verdicts"])
    assert moment > simulation.world.clock.now()
    assert f"About {moment:%H:%M} UTC (7 runs per case)" in page
    assert f"First verdicts about {moment:%Y-%m-%d %H:%M} UTC." in shown["changed"]
