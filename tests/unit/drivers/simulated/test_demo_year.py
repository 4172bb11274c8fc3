"""The simulated year that the demo shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from pvebench.cli.demo import NODES, simulated_runs
from pvebench.drivers.simulated.demo_year import YEAR, history
from pvebench.model.run import Run
from testing.demo_year import assignments

END = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def templates() -> list[Run]:
    found = []
    for node, assignment in zip(NODES, assignments(), strict=True):
        found += simulated_runs(node, assignment, seed=1)
    wanted = ("idle", "randwrite-4k-qd1-fsync1", "randread-4k-qd1")
    return [run for run in found if run.case.workload.slug in wanted]


@pytest.fixture(scope="module")
def year(templates: list[Run]) -> list[Run]:
    return list(history(templates, YEAR, end=END, seed=1))


def median(
    year: list[Run],
    metric: str,
    *,
    older: float,
    younger: float,
    of: Callable[[Run], bool],
    part: str = "",
) -> float:
    return statistics.median(
        sample.value
        for run in year
        if of(run) and younger < (END - run.finished).total_seconds() / 86400 < older
        for sample in run.samples
        if (sample.metric, sample.part) == (metric, part)
    )


def test_every_case_of_the_demo_has_a_good_simulated_run(templates: list[Run]) -> None:
    assert len(templates) == 16 * 3


def test_the_same_seed_reports_the_same_year(templates: list[Run], year: list[Run]) -> None:
    again = list(history(templates, YEAR, end=END, seed=1))
    assert again == year
    assert list(history(templates, YEAR, end=END, seed=2)) != year


def test_runs_come_oldest_first_and_each_only_once(year: list[Run]) -> None:
    moments = [run.finished for run in year]
    assert moments == sorted(moments)
    assert len({run.uid for run in year}) == len(year)


def test_syncs_on_zfs_are_suddenly_too_fast_and_then_repaired(year: list[Run]) -> None:
    def of_zfs(run: Run) -> bool:
        scenario = run.case.scenario
        return scenario.storage == "local-zfs" and "fsync" in run.case.workload.slug

    before = median(year, "iops", older=300, younger=241, of=of_zfs)
    during = median(year, "iops", older=239, younger=213, of=of_zfs)
    after = median(year, "iops", older=211, younger=181, of=of_zfs)
    assert during / before == pytest.approx(6, rel=0.1)
    assert after / before == pytest.approx(1, rel=0.05)


def test_an_idle_guest_costs_more_cpu_after_a_qemu_update(year: list[Run]) -> None:
    def idle(run: Run) -> bool:
        return run.case.workload.tool == "idle"

    before = median(year, "host_cpu", older=240, younger=181, of=idle, part="qemu")
    during = median(year, "host_cpu", older=179, younger=131, of=idle, part="qemu")
    assert during / before == pytest.approx(3.5, rel=0.1)


def test_one_kernel_stalls_for_seconds_on_one_node(year: list[Run]) -> None:
    for node, stalls in (("pve1", False), ("pve2", True)):
        longest = median(
            year,
            "clat_max",
            older=89,
            younger=63,
            of=lambda run, node=node: run.case.scenario.node == node,
        )
        assert (longest > 2) is stalls


def test_random_reads_with_an_io_thread_lose_two_fifths_until_today(year: list[Run]) -> None:
    def reads(thread: bool) -> Callable[[Run], bool]:
        return lambda run: (
            run.case.workload.slug == "randread-4k-qd1"
            and run.case.scenario.disk.iothread is thread
        )

    for thread, ratio in ((True, 0.6), (False, 1.0)):
        before = median(year, "iops", older=60, younger=21, of=reads(thread))
        after = median(year, "iops", older=19, younger=0, of=reads(thread))
        assert after / before == pytest.approx(ratio, rel=0.1)


def test_the_environment_changes_with_each_upgrade_of_its_node(year: list[Run]) -> None:
    seen = {
        node: {run.environment.slug for run in year if run.environment.node == node}
        for node in NODES
    }
    assert {node: len(slugs) for node, slugs in seen.items()} == {"pve1": 7, "pve2": 9}
    assert all(run.environment.simulated for run in year)
