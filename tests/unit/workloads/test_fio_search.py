"""A workload that looks for the depth which keeps a latency, from the pack to the page."""

from __future__ import annotations

from pathlib import Path

from pvebench.model.run import Outcome
from testing.packs import SMALL, write_pack
from testing.simulations import simulate

SEARCH = SMALL.replace("iodepth: 8", "iodepth: 64, latency_target: 2ms")


def test_a_search_is_run_and_its_depth_and_rate_are_kept(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, SEARCH))
    simulation.worker.run()
    runs = [record.good for record in simulation.results.now.cases.values()]
    assert runs
    for run in runs:
        assert run is not None
        assert run.outcome in {Outcome.OK, Outcome.IMPLAUSIBLE}
        values = {sample.metric: sample.value for sample in run.samples}
        assert 1 <= values["latency_depth"] <= 64
        assert values["iops"] > 0
        # They would be of the whole search, and not of the rate that was found.
        assert not {"host_cpu", "window", "device_share"} & set(values)


def test_a_latency_that_nothing_keeps_is_a_failed_run_with_its_reason(tmp_path: Path) -> None:
    text = SEARCH.replace("2ms", "1us")
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, text))
    simulation.worker.run()
    records = list(simulation.results.now.cases.values())
    assert {record.last.outcome for record in records} == {Outcome.FAILED}
    assert "no depth meets 99%" in records[0].last.reason
