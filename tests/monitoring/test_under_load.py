"""The row of operations under load, in a real Prometheus with simulated runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pvebench.drivers.clocks import SimulatedClock
from pvebench.model.workload import Conduct
from pvebench.runner.runner import Runner
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench_lab.cli.demo import SHOWN
from pvebench_lab.cli.past_metrics import Period, first_moment, write_past
from pvebench_lab.simulated.simulated_hypervisor import SimulatedHypervisor, simulated_site
from testing.boards import STANDS_IN, chosen, dashboards, panels, substitute
from testing.packs import SMALL, Recorder, matrix_of
from testing.prometheus import Prometheus, backfill, prometheus
from testing.stores import TemporaryStore

PACK = (
    SMALL.replace("[virtio, scsi]", "[scsi]").replace("2s", "30s")
    + "  - fio: {rw: randwrite, bs: 4k, during: [backup, snapshot]}\n"
    + "  - fio: {rw: randread, bs: 4k, vms: 2}\n"
)


def filled(directory: Path) -> Store:
    store = TemporaryStore(directory / "pvebench.db", simulated=True)
    store.begin_cycle("c", node="lab", pack="small", tier="full", planned=4)
    clock = SimulatedClock(datetime.now(UTC) - timedelta(hours=2))
    site = simulated_site(SimulatedHypervisor(node="lab", seed=1, clock=clock))
    runner = Runner(site, Recorder())
    for case in matrix_of(directory, PACK).cases:
        store.add_run(runner.run(case, cycle="c", conduct=Conduct()))
    runner.close()
    return store


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("under-load")
    store, past = filled(directory), directory / "past.om"
    results = LiveResults(store)
    labels = {"job": "pvebench", "instance": "one"}
    start = first_moment(results)
    window = Period(start=start, end=start + 3600, step=300.0, labels=labels)
    with past.open("w", encoding="utf-8") as file:
        write_past(results, SHOWN, window, file)
    backfill(past, directory / "data")
    with prometheus(directory, None, "--query.lookback-delta=490m") as server:
        server.wait_for("pvebench_operation_gap_seconds")
        yield server
    store.close()


def test_every_panel_shows_the_operations_and_the_vms(server: Prometheus) -> None:
    (board,) = (one for one in dashboards() if one["uid"] == "pvebench-operations")
    (row,) = (one for one in panels(board) if one["title"].startswith("Under load"))
    values = chosen(server, board, every=True)
    silent = {
        (panel["title"], target["refId"])
        for panel in row["panels"]
        for target in panel["targets"]
        if target["refId"] != STANDS_IN and not server.query(substitute(target["expr"], values))
    }
    assert len(row["panels"]) == 6
    assert silent == set()


def test_a_row_names_the_workload_and_links_to_its_case(server: Prometheus) -> None:
    (board,) = (one for one in dashboards() if one["uid"] == "pvebench-operations")
    values = chosen(server, board, every=True)
    (table,) = (one for one in panels(board) if one["title"] == "Effect of each operation")
    found = server.query(substitute(table["targets"][0]["expr"], values))
    rows = {entry["metric"]["workload"]: entry["metric"] for entry in found}
    assert set(rows) == {"randwrite-4k-qd1-during-backup", "randwrite-4k-qd1-during-snapshot"}
    assert {entry["description"] for entry in rows.values()} == {
        "4k random write, depth 1, during a backup",
        "4k random write, depth 1, during a snapshot",
    }
