from __future__ import annotations

import gzip
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from pvebench.errors import PortInUse, StoreError
from pvebench.metrics import result_collectors as metrics
from pvebench.metrics.exposition import Families, Page
from pvebench.metrics.result_collectors import Snapshot
from pvebench.metrics.state_metrics import CATALOG
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.store.live_results import PlannedCase
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.web.server import listen
from testing import http_client
from testing.captured_logs import captured_logs
from testing.faulty_node import Fault
from testing.metrics_page import page_of, snapshot_of
from testing.prometheus import free_port
from testing.simulated_site import app_of, served
from testing.simulations import Simulation, simulate


def _is_verdict(name: str) -> bool:
    words = (
        "change",
        "closed_change",
        "gate",
        "regression",
        "implausible",
        "baseline",
        "verdict",
        "performance",
    )
    return name.removeprefix("pvebench_").startswith(words)


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    simulation = simulate(tmp_path_factory.mktemp("store"))
    simulation.worker.run()
    return simulation


def names(text: str) -> set[str]:
    return {sample.name for family in parse_plain(text) for sample in family.samples}


def test_every_case_shows_its_numbers_under_the_labels_of_the_design(
    simulation: Simulation,
) -> None:
    text = page_of(simulation).render()[0].decode()
    families = {family.name: family for family in parse_plain(text)}
    iops = families["pvebench_iops"].samples
    assert len(iops) == 12
    assert set(iops[0].labels) == {
        "node",
        "storage",
        "bus",
        "cache",
        "format",
        "scenario",
        "workload",
        "direction",
    }
    assert {sample.labels["direction"] for sample in iops} == {"read", "write"}


def test_the_page_holds_every_metric_of_the_catalogue_that_this_history_can_fill(
    simulation: Simulation,
) -> None:
    shown = names(page_of(simulation).render()[0].decode())
    expected = {metric.exposed for metric in CATALOG.values()}
    # No sync workload ran, the simulated host moves no bytes, and nothing runs or is due.
    absent = {
        "pvebench_fsync_latency_percentile_seconds",
        "pvebench_host_io_bytes",
        "pvebench_host_context_switches_per_second",
        "pvebench_vm_exits_per_operation",
        "pvebench_latency_target_depth",
        "pvebench_current_run_info",
        "pvebench_next_run_timestamp_seconds",
        # No pack waited for steadiness or measured the boot; no settings were loaded.
        "pvebench_steady_seconds",
        "pvebench_steady_slope_ratio",
        "pvebench_guest_boot_seconds",
        "pvebench_config_info",
        # A simulated drive reports no wear.
        "pvebench_drive_wear_ratio",
        "pvebench_planned_year_wear_ratio",
        "pvebench_config_last_reload_successful",
        "pvebench_config_last_reload_success_timestamp_seconds",
        # Nobody has judged yet.
        *(metric.exposed for metric in CATALOG.values() if _is_verdict(metric.exposed)),
        "pvebench_scenario_rank_info",
        "pvebench_scenario_gap_ratio",
        "pvebench_scenario_gap_noise_ratio",
        # Nobody is told anything, and no settings say where the page is.
        "pvebench_web_info",
        "pvebench_notifications_queued",
        "pvebench_notifications_sent_total",
        "pvebench_notifications_dropped_total",
        "pvebench_notification_failures_total",
        "pvebench_notification_success_timestamp_seconds",
        # Nothing holds the worker, no upgrade waits, no storage has a limit, no node_exporter.
        "pvebench_scheduler_hold",
        "pvebench_environment_pending_info",
        "pvebench_environment_change_info",
        "pvebench_day_written_bytes",
        "pvebench_planned_day_write_bytes",
        "pvebench_write_budget_bytes",
        "pvebench_storage_free_bytes",
        "pvebench_storage_min_free_bytes",
        "pvebench_write_budget_used_ratio",
        "pvebench_storage_info",
        "pvebench_pve_api_requests_total",
        "pvebench_pve_tasks_total",
        "pvebench_pve_api_request_failures_total",
        "pvebench_host_pressure_ratio",
        # The pack has no workload under fault.
        "pvebench_fault_seconds",
        "pvebench_fault_dip_ratio",
        "pvebench_fault_dip_seconds",
        "pvebench_fault_recovery_seconds",
        "pvebench_fault_errors",
        # Nor one with an operation.
        "pvebench_operation_seconds",
        "pvebench_operation_gap_seconds",
        "pvebench_operation_resolution_seconds",
        "pvebench_vms_fairness_ratio",
        "pvebench_vms_slowest_iops",
        "pvebench_vms_boot_seconds",
        "pvebench_operation_latency_p99_seconds",
        "pvebench_operation_lost_operations",
        "pvebench_operation_recovery_seconds",
        "pvebench_operation_bytes",
        # The simulated device counts no bytes, has no host row, and nothing is doubtful.
        "pvebench_device_share_ratio",
        "pvebench_flush_share_ratio",
        "pvebench_guest_to_host_ratio",
        "pvebench_guest_cpu_wait_cores",
        "pvebench_run_implausible",
        # The pack keeps no distribution, runs each case once a cycle, on no server's storage.
        "pvebench_latency_seconds_bucket",
        "pvebench_pass_to_first_ratio",
        "pvebench_network_share_ratio",
        "pvebench_network_round_trip_seconds",
    }
    assert expected - shown == absent


def test_a_implausible_run_names_its_reason_and_does_not_replace_the_last_good_one(
    tmp_path: Path,
) -> None:
    simulation = simulate(tmp_path)
    simulation.worker.run()
    good = simulation.recorder.runs[-1]
    doubt = Sample("implausibility", None, 1.0, Unit.RATIO, "beats_host")
    wild = [replace(one, value=1e9) for one in good.samples if one.metric == "iops"]
    later = good.finished + timedelta(seconds=30)
    simulation.results.keep(
        replace(
            good,
            uid="doubtful",
            outcome=Outcome.IMPLAUSIBLE,
            reason="too good",
            finished=later,
            samples=(*wild, doubt),
        )
    )
    shown = page_of(simulation, now=later).render()[0].decode()
    implausibilities = [
        sample
        for family in parse_plain(shown)
        for sample in family.samples
        if sample.name == "pvebench_run_implausible"
    ]
    assert [one.labels["reason"] for one in implausibilities] == ["beats_host"]
    assert implausibilities[0].labels["scenario"] == good.case.scenario.slug
    assert " 1e+09\n" not in shown


def test_promtool_finds_nothing_to_complain_about(simulation: Simulation) -> None:
    body = page_of(simulation).render()[0]
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr.decode() + done.stdout.decode()) == (0, "")


def test_compressed_openmetrics_and_plain_say_the_same(simulation: Simulation) -> None:
    page = page_of(simulation)
    accept = "application/openmetrics-text; version=1.0.0"

    def iops(families: object) -> dict[str, float]:
        return {
            str(sorted(sample.labels.items())): sample.value
            for family in families  # type: ignore[attr-defined] # by name
            if family.name == "pvebench_iops"
            for sample in family.samples
        }

    plain = iops(parse_plain(page.render()[0].decode()))
    zipped = iops(parse_plain(gzip.decompress(page.render(compress=True)[0]).decode()))
    opened = iops(parse_open(page.render(accept=accept)[0].decode()))
    both = iops(parse_open(gzip.decompress(page.render(accept=accept, compress=True)[0]).decode()))
    assert len(plain) == 12
    assert plain == zipped == opened == both


def test_a_collector_that_raises_costs_only_its_own_part(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(snapshot: Snapshot, families: Families) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(
        __import__("pvebench.metrics.exposition", fromlist=["x"]).SUMMARY_COLLECTORS, "info", broken
    )
    text = page_of(simulation).render()[0].decode()
    health = {
        sample.labels["collector"]: sample.value
        for family in parse_plain(text)
        if family.name == "pvebench_collector_success"
        for sample in family.samples
    }
    assert health.pop("info") == 0
    assert set(health.values()) == {1}
    assert "pvebench_iops" in names(text)
    assert "pvebench_scenario_info" not in names(text)


def test_verdicts_of_a_judging_that_failed_are_shown_as_old(simulation: Simulation) -> None:
    page = page_of(simulation)

    def shown(verdicts: Verdicts) -> tuple[float, str]:
        page.judged(verdicts)
        found = {
            (one.name, one.labels.get("collector")): one
            for family in parse_plain(page.render()[0].decode())
            for one in family.samples
        }
        health = found["pvebench_collector_success", "verdicts"].value
        return health, found["pvebench_verdict_info", None].labels["summary"]

    assert shown(Verdicts())[0] == 1
    health, summary = shown(Verdicts(failed=True))
    assert health == 0
    assert "the latest update failed" in summary
    assert "judged yet" not in summary
    assert shown(Verdicts())[0] == 1


@pytest.mark.parametrize(
    ("fault", "traced"), [(StoreError("the database is gone"), False), (ZeroDivisionError(), True)]
)
def test_only_a_mistake_of_ours_is_logged_with_its_trace(fault: Exception, *, traced: bool) -> None:
    def broken(families: Families) -> None:
        raise fault

    with captured_logs() as logs:
        Page(lambda: None, {"database": broken}).render()  # type: ignore[arg-type, return-value] # never read
    (line,) = (line for line in logs if line.get("collector") == "database")
    assert bool(line.get("exc_info")) is traced
    assert traced or line["reason"] == "the database is gone"


def test_results_older_than_the_maximum_leave_the_page(simulation: Simulation) -> None:
    later = simulation.world.clock.now() + timedelta(days=15)
    shown = names(page_of(simulation, now=later).render()[0].decode())
    assert "pvebench_iops" not in shown
    assert "pvebench_build_info" in shown


def test_a_failed_attempt_keeps_the_last_good_value_and_is_shown_as_failed(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=2)
    for _ in range(13):
        simulation.worker.step()
    simulation.world.faults._rates[Fault.TOOL_FAILS] = 1.0
    simulation.worker.run()
    text = page_of(simulation).render()[0].decode()
    families = {family.name: family.samples for family in parse_plain(text)}
    assert len(families["pvebench_iops"]) == 12
    assert {sample.value for sample in families["pvebench_run_success"]} == {0}
    failed = [
        sample.value for sample in families["pvebench_runs"] if sample.labels["outcome"] == "failed"
    ]
    assert failed == [1.0] * 12


def test_an_empty_store_gives_a_page_without_results(tmp_path: Path) -> None:
    shown = names(page_of(simulate(tmp_path)).render()[0].decode())
    assert "pvebench_iops" not in shown
    assert {"pvebench_build_info", "pvebench_scheduler_state", "pvebench_results"} <= shown


def test_only_cases_of_the_present_packs_are_shown(simulation: Simulation) -> None:
    key, record = next(iter(simulation.results.now.cases.items()))
    planned = PlannedCase(key=key, definition=record.definition, every_seconds=60.0)
    view = replace(simulation.results.now, planned={key: planned, "untried": planned})
    shown = metrics.snapshot_of(view, now=simulation.world.clock.now(), max_age_seconds=60.0)
    assert [one.key for one in shown.records] == [key]
    planned = {name: case.every_seconds for name, case in shown.view.planned.items()}
    assert planned == {key: 60.0, "untried": 60.0}


@pytest.fixture
def server(simulation: Simulation) -> Iterator[str]:
    with served(app_of(simulation, page=page_of(simulation))) as address:
        yield address


def test_the_server_answers_metrics_health_readiness_and_the_page(server: str) -> None:
    metrics = http_client.get(f"{server}/metrics")
    assert metrics.status_code == 200
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "pvebench_iops{" in metrics.text
    assert http_client.get(f"{server}/-/healthy").status_code == 200
    assert http_client.get(f"{server}/-/ready").status_code == 200
    assert "12 of 12 cases done" in http_client.get(f"{server}/").text
    assert http_client.get(f"{server}/nothing").status_code == 404


def test_a_port_in_use_is_reported_with_the_next_step() -> None:
    with listen(f"127.0.0.1:{free_port()}") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortInUse) as caught:
            listen(address)
    comm = Path("/proc/self/comm").read_text("utf-8").strip()
    assert str(caught.value).splitlines() == [
        f"cannot listen on {address}: Address already in use",
        f"  likely cause: {comm} (process {os.getpid()}) listens on this port",
        "  next step: stop it, or set another address with --web.listen-address",
    ]


def test_a_changed_case_is_shown_again_and_the_others_stay_as_they_were(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=2)
    for _ in range(13):
        simulation.worker.step()

    page = Page(lambda: snapshot_of(simulation), {}, now=simulation.world.clock.now)
    page.refresh()
    before = values_of(page, "pvebench_run_timestamp_seconds")
    for _ in range(2):
        simulation.worker.step()
    run = simulation.recorder.runs[-1]
    page.refresh(run.case.key)
    after = values_of(page, "pvebench_run_timestamp_seconds")
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {(run.case.scenario.slug, run.case.workload.slug)}
    assert gzip.decompress(page.render(compress=True)[0]).count(b"# TYPE pvebench_iops ") == 1


def values_of(page: Page, name: str) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["scenario"], sample.labels["workload"]): sample.value
        for family in parse_plain(page.render()[0].decode())
        if family.name == name
        for sample in family.samples
    }


def test_a_result_leaves_the_page_when_it_becomes_too_old_without_any_new_one(
    simulation: Simulation,
) -> None:
    snapshot = snapshot_of(simulation)
    time = [snapshot.now]
    page = Page(lambda: snapshot, {}, now=lambda: time[0])
    page.refresh()
    assert "pvebench_iops" in names(page.render()[0].decode())
    time[0] += timedelta(days=15)
    assert "pvebench_iops" not in names(page.render()[0].decode())


def test_one_case_that_cannot_be_shown_is_reported_and_costs_only_itself(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = __import__("pvebench.metrics.exposition", fromlist=["x"])
    real = module.CASE_COLLECTORS["results"]
    spoilt = next(iter(simulation.results.now.cases))

    def broken(snapshot: Snapshot, families: Families) -> None:
        if snapshot.records[0].last.case_key == spoilt:
            raise ZeroDivisionError
        real(snapshot, families)

    monkeypatch.setitem(module.CASE_COLLECTORS, "results", broken)
    text = page_of(simulation).render()[0].decode()
    found = {family.name: family.samples for family in parse_plain(text)}
    health = {one.labels["collector"]: one.value for one in found["pvebench_collector_success"]}
    assert health["results"] == 0
    assert len(found["pvebench_iops"]) == 11


def test_a_case_that_means_something_else_now_is_reported_by_its_next_result(
    simulation: Simulation,
) -> None:
    snapshot = snapshot_of(simulation)
    shown = [snapshot]
    page = Page(lambda: shown[-1], {}, now=lambda: snapshot.now)
    page.refresh()
    *others, first = snapshot.records  # of several cases of one workload the last is heard
    last = replace(first.last, definition=replace(first.definition, title="Told anew"))
    shown.append(replace(snapshot, records=[*others, replace(first, last=last)]))
    assert 'title="Told anew"' not in page.render()[0].decode()
    page.refresh(first.key)
    assert 'title="Told anew"' in page.render()[0].decode()


def test_an_older_reading_never_replaces_a_newer_one(simulation: Simulation) -> None:
    newest = snapshot_of(simulation)
    totals = replace(newest.view.totals, runs=1)
    older = replace(newest, view=replace(newest.view, totals=totals))
    begun, go_on = threading.Event(), threading.Event()

    def source() -> Snapshot:
        if threading.current_thread().name == "slow":
            begun.set()
            go_on.wait(10)
            return older
        return newest

    page = Page(source, {}, now=lambda: newest.now)
    slow = threading.Thread(target=page.refresh, name="slow")
    quick = threading.Thread(target=page.refresh)
    slow.start()
    assert begun.wait(10)
    quick.start()
    quick.join(0.2)  # it has to wait for the older reading
    go_on.set()
    slow.join()
    quick.join()
    assert f"pvebench_results {float(newest.view.totals.runs)}" in page.render()[0].decode()
