"""Real QEMU: snapshots below the test disk, as QEMU and qemu-img see them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import Lab, LabBench, scenario
from pvebench.guest.image import GuestImage
from pvebench.model.disk import Bus, Cache, ChainKind, Disk, Format
from pvebench.model.run import Outcome
from pvebench.model.scenario import Scenario
from pvebench.model.units import KIB, MIB
from testing.real_outcomes import MEASURED


class Bench(LabBench):
    """Looks at the disk's files, too."""

    seconds = 0.5

    def file(self, tested: Scenario) -> Path:
        return self.lab.storage / f"pvebench-test-test-{tested.volume}"

    def allocated(self, tested: Scenario) -> int:
        """Return the bytes of data in the newest level, by qemu-img map."""
        command = ["qemu-img", "map", "-U", "--output=json", str(self.file(tested))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        own = [one for one in json.loads(done.stdout) if one["depth"] == 0 and one["data"]]
        return sum(one["length"] for one in own)

    def release(self) -> None:
        """Detach the disk, so that its metadata is written; the runner knows."""
        self.runner._setup.mark_unverified()
        self.runner._setup._recover()


@pytest.fixture(scope="module")
def bench(image: GuestImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(Lab(tmp_path_factory.mktemp("chains"), image))
    yield bench
    bench.close()


def chain(depth: int, bus: Bus = Bus.VIRTIO, **options: object) -> Scenario:
    return scenario(bus, Format.QCOW2, size=16 * MIB, chain=depth, **options)


@pytest.mark.parametrize(
    ("tested", "touch"),
    [
        (chain(1), "first"),
        (chain(1), "rewrite"),
        (chain(8, Bus.SCSI, iothread=True), "rewrite"),
        (chain(3, cache=Cache.WRITEBACK), "first"),
        (chain(3, overlay_cluster=64 * KIB), "rewrite"),
        (chain(3, cluster_size=2 * MIB, extended_l2=True), "first"),
        (chain(3, chain_kind=ChainKind.INTERNAL), "first"),
        (chain(3, Bus.SATA, iops=5000), "rewrite"),
    ],
    ids=lambda value: getattr(value, "slug", value),
)
def test_a_chain_is_made_read_back_and_measured(bench: Bench, tested: Scenario, touch: str) -> None:
    run = bench.run(tested, touch=touch)
    assert run.outcome in MEASURED, run.reason
    assert json.loads(run.evidence["effective"])["chain"] == str(tested.disk.chain)


def test_a_first_write_writes_each_block_once_to_the_newest_level(bench: Bench) -> None:
    tested = chain(3)
    run = bench.run(tested, touch="first")
    assert run.outcome in MEASURED, run.reason
    written = bench.lab.qemu.counters().write_bytes
    bench.release()
    assert written > 0
    assert bench.allocated(tested) == written


def test_rewriting_finds_all_data_in_the_newest_level(bench: Bench) -> None:
    tested = chain(3)
    assert bench.run(tested).outcome in MEASURED
    bench.release()
    assert bench.allocated(tested) == tested.volume_bytes


def test_another_depth_than_requested_is_invalid(bench: Bench) -> None:
    tested = chain(2)
    storage = bench.lab.storages["local"]
    real = storage.below

    def fewer(volume: object, disk: Disk) -> list[dict[str, object]]:
        return real(volume, disk)[:1]  # type: ignore[arg-type] # as the storage's own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "below", fewer)
        run = bench.run(tested)
    assert run.outcome is Outcome.INVALID
    assert "chain: requested 2, found" in run.reason
