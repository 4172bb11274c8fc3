"""The API: shapes, units, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from starlette.routing import Route

from pvebench.model.run import Outcome
from testing import http_client
from testing.faulty_node import Fault
from testing.packs import ROOT
from testing.simulated_site import app_of, served
from testing.simulations import Simulation, simulate


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Two good cycles, then one failed run and eleven cases that still wait."""
    simulation = simulate(tmp_path_factory.mktemp("api"), cycles=3)
    for _ in range(2 * 13 + 1):
        simulation.worker.step()
    simulation.world.faults._rates[Fault.TOOL_FAILS] = 1.0
    simulation.worker.step()
    return simulation


@pytest.fixture(scope="module")
def address(measured: Simulation) -> Iterator[str]:
    with served(app_of(measured)) as where:
        yield f"{where}/api/v1"


def get(address: str, path: str) -> dict[str, object]:
    answer = http_client.get(address + path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    data: dict[str, object] = answer.json()
    return data


def test_status_reports_each_worker_its_cycle_and_what_is_next(
    address: str, measured: Simulation
) -> None:
    data = get(address, "/status")
    assert data["simulated"] is True
    assert datetime.fromisoformat(str(data["now"])).tzinfo == UTC
    (worker,) = data["workers"]
    assert (worker["node"], worker["state"], worker["case"]) == ("lab", "idle", None)
    assert (worker["cycle"]["done"], worker["cycle"]["planned"]) == (1, 12)
    assert worker["fault"] == "fio ended with status 1: simulated: the tool failed"
    queue = measured.worker._queue
    assert [case["case_key"] for case in worker["upcoming"]] == [case.key for case in queue[:5]]
    starts = [case["expected_start"] for case in worker["upcoming"]]
    assert starts == sorted(starts)
    assert starts[-1] < worker["cycle"]["expected_end"]


def test_results_give_the_latest_value_of_each_case_with_labels_unit_age_and_spread(
    address: str, measured: Simulation
) -> None:
    results = get(address, "/results")["results"]
    assert len(results) == 12
    by_key = {result["case_key"]: result for result in results}
    for key in measured.store.cases():
        record, result = measured.store.cases().get(key), by_key[key]
        assert record is not None
        assert record.good is not None
        assert result["labels"] == record.good.definition.labels
        assert (result["run"], result["last_run"]) == (record.good.number, record.last.number)
        assert (result["outcome"], result["reason"]) == (record.last.outcome, record.last.reason)
        iops = measured.level(key)
        (value,) = result["values"]
        assert (value["metric"], value["unit"], value["value"]) == ("iops", "iops", iops)
        assert 0 < value["spread_ratio"] < 0.5
        assert value["spread_runs"] == 2
        age = (measured.world.clock.now() - record.good.finished).total_seconds()
        assert result["age_seconds"] == pytest.approx(age, abs=0.1)
        assert (result["interval_seconds"], result["in_packs"]) == (300.0, True)
    assert {result["outcome"] for result in results} == {"ok", "failed"}


def test_a_case_comes_with_its_definition_samples_history_and_runs(
    address: str, measured: Simulation
) -> None:
    key = next(iter(measured.store.cases()))
    data = get(address, f"/cases/{key}")
    record = measured.store.cases().get(key)
    assert record is not None
    assert data["definition"] == record.definition.as_data()
    assert len(data["samples"]) == len(record.good.samples) > 10
    assert [point["direction"] for point in data["history"]] == [
        record.definition.directions[0]
    ] * 2
    assert data["history"][0]["finished"] < data["history"][1]["finished"]
    assert set(data["environments"]) == {point["environment"] for point in data["history"]}
    assert [run["run"] for run in data["runs"]] == [
        run.number for run in measured.store.runs(case_key=key)
    ]


def test_runs_are_newest_first_and_can_be_chosen(address: str, measured: Simulation) -> None:
    runs = get(address, "/runs")["runs"]
    assert [run["run"] for run in runs] == sorted((run["run"] for run in runs), reverse=True)
    assert len(runs) == 25
    assert [run["outcome"] for run in get(address, "/runs?outcome=failed")["runs"]] == ["failed"]
    assert len(get(address, "/runs?limit=3")["runs"]) == 3
    key = next(iter(measured.store.cases()))
    mine = get(address, f"/runs?case={key}&outcome=ok&limit=500")["runs"]
    assert {run["case_key"] for run in mine} == {key}
    assert len(mine) == 2


def test_a_run_comes_with_its_evidence_and_environment(address: str, measured: Simulation) -> None:
    data = get(address, "/runs/1")
    assert data["evidence"] == measured.store.evidence(1)
    assert next(iter(data["evidence"])) == "effective"
    assert data["environment_facts"]["accel"] == "simulated"
    assert {"metric", "direction", "part", "value", "unit"} == set(data["samples"][0])
    assert datetime.fromisoformat(data["finished"]).tzinfo == UTC


@pytest.mark.parametrize(
    ("query", "happened"),
    [
        ("/runs?limit=0", "invalid limit='0'"),
        ("/runs?limit=501", "invalid limit='501'"),
        ("/runs?limit=ten", "invalid limit='ten'"),
        ("/runs?limit=-1", "invalid limit='-1'"),
        ("/runs?limit=٣", "invalid limit='٣'"),
        ("/runs?limit=1000000000000000000000", "invalid limit='1000000000000000000000'"),
        ("/runs?limit=", "invalid limit=''"),
        ("/runs?outcome=good", "unknown outcome 'good'"),
        ("/runs?size=3", "unknown parameter 'size'"),
        ("/runs?limit=1&limit=2", "repeated parameter"),
        ("/results?limit=1", "unknown parameter 'limit'"),
    ],
)
def test_a_bad_parameter_is_refused_with_what_is_possible(
    address: str, query: str, happened: str
) -> None:
    answer = http_client.get(address + query)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["happened"] == happened
    assert error["next_step"]


@pytest.mark.parametrize("path", ["/nothing", "/runs/99999", "/runs/x", "/cases/no/such/case"])
def test_what_is_not_there_is_a_404_with_a_next_step(address: str, path: str) -> None:
    answer = http_client.get(address + path)
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"happened", "next_step"}


def test_other_methods_are_refused_as_json(address: str) -> None:
    answer = http_client.post(f"{address}/runs", json={})
    assert answer.status_code == 405
    assert answer.json()["error"]["happened"] == "method POST not allowed"


def test_large_answers_are_compressed_for_those_who_can_read_that(address: str) -> None:
    answer = http_client.get(f"{address}/results", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    plain = http_client.get(f"{address}/results", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json()["results"] == answer.json()["results"]


def test_the_documentation_names_every_address_and_parameter(measured: Simulation) -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    named = set(re.findall(r"^## `(/api/v1/[^`]*)`", text, re.MULTILINE))
    there = {
        route.path.replace("{case_key:path}", "<case_key>").replace("{number}", "<number>")
        for route in app_of(measured).routes
        if isinstance(route, Route) and route.path.startswith("/api/")
    }
    assert named == there
    assert all(f"`{outcome}`" in text for outcome in Outcome)
