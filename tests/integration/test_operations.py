"""Real QEMU: what a guest notices of a backup, a move and snapshots of its disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from integration.conftest import Lab, scenario
from integration.test_snapshot_chains import Quiet
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.guest import GuestImage
from pvebench.model.disk import Bus, Format
from pvebench.model.ports import Site
from pvebench.model.run import Run
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner import Runner
from testing.packs import tool_workload
from testing.real_outcomes import MEASURED


class Bench:
    """Runs 4k writes, each synced, during an operation."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        site = Site(
            node="lab",
            hypervisor=lab.qemu,
            probe=ProcProbe(lambda: lab.qemu.pid, lambda: lab.qemu.volume_path),
            clock=lab.clock,
            take_snapshots=lab.qemu.take_snapshots,
            operate=lab.qemu.operate,
        )
        self.runner = Runner(site, Quiet())

    def run(self, wanted: Scenario, during: str, seconds: float = 9, **more: object) -> Run:
        options = {"rw": "randwrite", "bs": "4k", "sync": True, "during": during, **more}
        workload = tool_workload("fio", options, ramp_seconds=0.5, runtime_seconds=seconds)
        case = Case(scenario=wanted, workload=workload)
        return self.runner.run(case, cycle="", conduct=Conduct(settle_seconds=0.1))


@pytest.fixture(scope="module")
def bench(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    lab = Lab(tmp_path_factory.mktemp("operations"), image)
    made = Bench(lab)
    yield made
    made.runner.close()
    assert list(lab.storage.iterdir()) == []
    assert not lab.store.journal.pending()
    lab.close()


def found(run: Run) -> dict[str, float]:
    assert run.outcome in MEASURED, run.reason + run.evidence.get("error", "")
    return {
        f"{one.metric}{one.part and f'_{one.part}'}": one.value
        for one in run.samples
        if one.metric.startswith("operation")
    }


def test_a_write_waits_for_a_slow_backup_server_but_not_with_fleecing(bench: Bench) -> None:
    plain, fleecing = (
        found(bench.run(scenario(size=16 * MIB), during, seconds=15, target_rate="256k"))
        for during in ("backup", "backup-fleecing")
    )
    assert plain["operation_gap"] > 2.0
    assert fleecing["operation_gap"] < plain["operation_gap"] / 2
    assert fleecing["operation_lost"] < plain["operation_lost"]
    assert "operation_time" not in plain  # 16 MiB at 256 KiB/s take a minute


@pytest.mark.parametrize(
    "wanted",
    [
        scenario(size=16 * MIB),
        scenario(Bus.SCSI, Format.QCOW2, size=16 * MIB, iothread=True, chain=2),
    ],
    ids=lambda wanted: wanted.slug,
)
@pytest.mark.parametrize(
    "during", ["backup", "backup-fleecing", "move", "snapshot", "delete-snapshot"]
)
def test_each_operation_ends_and_the_disk_is_used_again(
    bench: Bench, wanted: Scenario, during: str
) -> None:
    if during == "backup-fleecing":  # see model/rules.py
        wanted = replace(wanted, disk=replace(wanted.disk, iothread=False))
    for _ in range(2):
        figures = found(bench.run(wanted, during))
        assert figures["operation_time"] < 6
        copied = figures["operation_bytes"]
        if during in ("backup", "backup-fleecing", "move"):
            assert copied >= wanted.volume_bytes
    names = [path.name for path in bench.lab.storage.iterdir()]
    assert len([name for name in names if name.endswith(("target", "fleece", "overlay"))]) <= 2
