"""The simulated year that the demo shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pvebench.model.disk import Bus, Cache
from pvebench.model.run import LATENCY_BOUNDS, Run
from pvebench_lab.cli.demo import NODES, simulated_runs
from pvebench_lab.simulated.demo_year import YEAR, history
from testing.demo_year import assignments

END = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def templates() -> list[Run]:
    found = []
    chosen = assignments("idle", "randwrite-4k-qd1-fsync1", "randread-4k-qd1")
    for node, assignment in zip(NODES, chosen, strict=True):
        found += simulated_runs(node, assignment, seed=1)
    return found


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
    assert len(templates) == 26 * 3


def test_the_same_seed_reports_the_same_year(templates: list[Run], year: list[Run]) -> None:
    month = replace(YEAR, days=30)
    again, other = (list(history(templates, month, end=END, seed=seed)) for seed in (1, 2))
    assert again == list(history(templates, month, end=END, seed=1))
    assert again != other


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


def test_a_stall_is_in_the_histogram_too_and_only_then(year: list[Run]) -> None:
    def beyond_a_second(older: float, younger: float) -> float:
        """Operations per run of pve2 that took more than a second."""
        runs = [
            run
            for run in year
            if run.case.scenario.node == "pve2"
            and younger < (END - run.finished).total_seconds() / 86400 < older
            and any(sample.metric == "clat_histogram" for sample in run.samples)
        ]
        slow = [
            sample.value
            for run in runs
            for sample in run.samples
            if (sample.metric, sample.part) == ("clat_histogram", LATENCY_BOUNDS[-1])
        ]
        assert runs
        return sum(slow) / len(runs)

    assert beyond_a_second(older=89, younger=63) >= 2
    assert beyond_a_second(older=120, younger=91) == 0
    assert beyond_a_second(older=61, younger=0) == 0


def test_an_idle_guest_takes_a_few_percent_of_a_core(year: list[Run]) -> None:
    def idle(run: Run) -> bool:
        return run.case.workload.tool == "idle"

    for part in ("qemu", "total"):
        cores = median(year, "host_cpu", older=120, younger=21, of=idle, part=part)
        assert 0.005 < cores < 0.05


def test_the_cpu_cost_of_an_operation_depends_on_the_bus(year: list[Run]) -> None:
    def cost(bus: Bus) -> float:
        def reads(run: Run) -> bool:
            disk = run.case.scenario.disk
            return run.case.workload.slug == "randread-4k-qd1" and disk.bus is bus

        cores = median(year, "host_cpu", older=60, younger=21, of=reads, part="qemu")
        return cores / median(year, "iops", older=60, younger=21, of=reads)

    assert 1.1 < cost(Bus.SCSI) / cost(Bus.VIRTIO) < 1.4
    # Tens of microseconds, as fio on a real KVM guest shows.
    assert 5e-6 < cost(Bus.VIRTIO) < 60e-6


def test_one_node_is_down_for_a_week(year: list[Run]) -> None:
    def days(node: str) -> set[int]:
        return {
            int((END - run.finished).total_seconds() // 86400)
            for run in year
            if run.case.scenario.node == node
        }

    down = set(range(33, 40))
    assert not days("pve3") & down
    assert set(range(60)) - days("pve3") == down
    assert days("pve1") >= down


def test_a_kernel_that_made_writes_slower_is_rolled_back(year: list[Run]) -> None:
    def writes(run: Run) -> bool:
        scenario = run.case.scenario
        slug = run.case.workload.slug
        virtio = scenario.disk.bus is Bus.VIRTIO and scenario.disk.cache is Cache.NONE
        return scenario.node == "pve4" and virtio and slug == "randwrite-4k-qd1-fsync1"

    before = median(year, "iops", older=90, younger=76, of=writes)
    during = median(year, "iops", older=74, younger=67, of=writes)
    after = median(year, "iops", older=65, younger=21, of=writes)
    assert during / before == pytest.approx(0.75, rel=0.05)
    assert after / before == pytest.approx(1, rel=0.05)


def test_random_reads_with_an_io_thread_lose_two_fifths_until_today(year: list[Run]) -> None:
    def reads(thread: bool) -> Callable[[Run], bool]:
        return lambda run: (
            run.case.workload.slug == "randread-4k-qd1"
            and run.case.scenario.storage == "ceph"
            and run.case.scenario.disk.cache is Cache.NONE
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
    assert {node: len(slugs) for node, slugs in seen.items()} == {
        "pve1": 7,
        "pve2": 9,
        "pve3": 7,
        "pve4": 8,  # after a rollback it is the earlier one again
    }
    assert all(run.environment.simulated for run in year)


def test_a_guest_waits_longer_for_a_backup_without_fleecing() -> None:
    slugs = ("randwrite-4k-qd4-during-backup", "randwrite-4k-qd4-during-backup-fleecing")
    on_directory = assignments(*slugs)[1]
    templates = simulated_runs("pve2", on_directory, seed=1)
    assert {run.case.workload.slug for run in templates} == set(slugs)
    month = list(history(templates, replace(YEAR, days=30), end=END, seed=1))

    def of(name: str, metric: str, part: str = "") -> float:
        def chosen(run: Run) -> bool:
            return run.case.workload.during == name

        return median(month, metric, older=30, younger=0, of=chosen, part=part)

    assert 0.1 <= of("backup-fleecing", "operation_gap") <= 0.3
    assert 1.0 <= of("backup", "operation_gap") <= 2.0
    quiet, during = (of("backup", "operation_p99", phase) for phase in ("before", "during"))
    assert during > 10 * quiet
