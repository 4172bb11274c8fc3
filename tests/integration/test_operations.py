"""Real QEMU: what a guest notices of a backup, a move and snapshots of its disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from integration.conftest import Lab, LabBench, scenario
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus, Format
from pvebench.model.run import Run
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import COPIES, Direction
from testing.real_outcomes import MEASURED


class Bench(LabBench):
    """Runs 4k writes, each synced, during an operation."""

    job: ClassVar = {"rw": "randwrite", "bs": "4k", "sync": True}
    ramp = 0.5
    seconds = 9.0


@pytest.fixture(scope="module")
def bench(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(Lab(tmp_path_factory.mktemp("operations"), image))
    yield bench
    bench.close()


def found(run: Run) -> dict[str, float]:
    assert run.outcome in MEASURED, run.reason + run.evidence.get("error", "")
    return {
        f"{one.metric}{one.part and f'_{one.part}'}": one.value
        for one in run.samples
        if one.metric.startswith("operation")
    }


def test_a_write_waits_for_a_slow_backup_server_but_not_with_fleecing(bench: Bench) -> None:
    plain, fleecing = (
        found(bench.run(scenario(size=16 * MIB), during=during, seconds=10, target_rate="256k"))
        for during in ("backup", "backup-fleecing")
    )
    assert plain["operation_gap"] > 2.0
    assert fleecing["operation_gap"] < plain["operation_gap"] / 2
    assert fleecing["operation_lost"] < plain["operation_lost"]
    assert "operation_time" not in plain  # 16 MiB at 256 KiB/s take a minute


RAW = scenario(size=16 * MIB)
CHAIN = scenario(Bus.SCSI, Format.QCOW2, size=16 * MIB, iothread=True, chain=2)


@pytest.mark.parametrize(
    ("tested", "during"),
    [
        *((RAW, during) for during in ("restore", "backup-fleecing", "move", "snapshot-ram")),
        *((CHAIN, during) for during in ("backup", "backup-fleecing", "move", "snapshot")),
        (RAW, "delete-snapshot"),
        (CHAIN, "delete-snapshot"),
    ],
    ids=lambda one: getattr(one, "slug", one),
)
def test_each_operation_ends_and_the_disk_is_used_again(
    bench: Bench, tested: Scenario, during: str
) -> None:
    """The next parameter uses the same volume."""
    if during == "backup-fleecing":  # see model/rules.py
        tested = replace(tested, disk=replace(tested.disk, iothread=False))
    seconds = 6 if during in ("snapshot", "delete-snapshot") else 9
    figures = found(bench.run(tested, during=during, seconds=seconds, rate_iops=50))
    if during != "snapshot-ram":  # on a busy machine, it may be canceled at the end of the window
        assert figures["operation_time"] < 6
    if during in COPIES:
        assert figures["operation_bytes"] >= tested.volume_bytes
    if during == "snapshot-ram":  # pages of one byte are not written as a whole
        assert tested.machine.memory_bytes / 16 < figures["operation_bytes"]
    names = [path.name for path in bench.lab.storage.iterdir()]
    assert (
        len(
            [
                name
                for name in names
                if name.endswith(("target", "fleece", "overlay", "memory", "archive"))
            ]
        )
        <= 2
    )


def test_a_neighbor_writes_to_a_volume_of_its_own(bench: Bench) -> None:
    """It may not end before the window on a busy machine: fio's start takes seconds."""
    run = bench.run(
        scenario(size=16 * MIB), during="neighbor", seconds=12, rate_iops=20, neighbor_iops=50
    )
    figures = found(run)
    assert 0 < figures["operation_bytes"] < 4096 * 50 * 8
    (job,) = json.loads(run.evidence["output"])["jobs"]
    assert job["write"]["iops"] == pytest.approx(20, rel=0.5)
    names = {path.name for path in bench.lab.storage.iterdir()}
    assert {"pvebench-test-test-local.raw", "pvebench-test-test-vm2-local.raw"} <= names


def test_two_vms_run_a_job_together_on_volumes_of_their_own(bench: Bench) -> None:
    run = bench.run(scenario(size=16 * MIB), seconds=4, vms=2)
    assert run.outcome in MEASURED, run.reason + run.evidence.get("error", "")
    jobs = json.loads(run.evidence["output"])["jobs"]
    assert len(jobs) == 2
    values = {(one.metric, one.direction): one.value for one in run.samples}
    total = sum(job["write"]["iops"] for job in jobs)
    assert values["iops", Direction.WRITE] == pytest.approx(total)
    assert values["vms_slowest", None] == pytest.approx(min(job["write"]["iops"] for job in jobs))
    assert 0.5 <= values["vms_fairness", None] <= 1
    assert values["vms_boot_time", None] > 0
    # QEMU's counters of both VMs: each write of either guest reached a disk.
    (reached,) = (
        one.value for one in run.samples if (one.metric, one.part) == ("qemu_operations", "write")
    )
    assert reached >= 0.5 * sum(job["write"]["total_ios"] for job in jobs)
    names = {path.name for path in bench.lab.storage.iterdir()}
    assert {"pvebench-test-test-local.raw", "pvebench-test-test-vm2-local.raw"} <= names
