"""Snapshots before a run: what is filled and taken, and that the plan expects just that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.config import load_pack
from pvebench.drivers.storages import KINDS
from pvebench.errors import SwitchFailed
from pvebench.model.disk import Disk
from pvebench.model.run import Outcome
from pvebench.model.status import Phase
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment, Volume
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench.scheduler.plan import expand, make_plan
from pvebench.workloads import TOOLS
from pvebench_lab.simulated.simulated_hypervisor import simulated_site
from testing.packs import Recorder, matrix_of, space_of, write_pack
from testing.recording_hypervisor import RecordingHypervisor

CHAIN = """\
pack: chains
title: Chains
every: 1h
axes:
  chain: [0, 3]
fixed: {format: qcow2, bus: virtio, cache: none}
volume: {size: 64M}
measure: {ramp: 1s, runtime: 2s}
workloads:
  - fio: {rw: randwrite, bs: 4k, touch: first}
  - fio: {rw: randread, bs: 4k, touch: first}
  - fio: {rw: randwrite, bs: 4k}
"""


class World(RecordingHypervisor):
    """A simulated node that remembers each disk, fill and snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.chains: list[str] = []
        self.fails = 0

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        self.chains.append(f"attach {disk.chain}")
        return super().attach(volume, disk)

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        assert self.plugged is None, "a disk in use"
        self.chains.append(f"take {disk.chain}")
        if self.fails:
            self.fails -= 1
            raise SwitchFailed("no space")
        super().take_snapshots(volume, disk)


class Bench:
    def __init__(self) -> None:
        self.world, self.recorder = World(), Recorder()
        self.runner = Runner(simulated_site(self.world), self.recorder)

    def run(self, case: Case) -> Outcome:
        return self.runner.run(case, cycle="c", conduct=Conduct()).outcome

    @property
    def fills(self) -> int:
        return sum(phase is Phase.FILL for _, phase in self.recorder.phases)


def case(directory: Path, workload: str, chain: int = 3) -> Case:
    found = matrix_of(directory, CHAIN).cases
    return next(
        one for one in found if one.scenario.disk.chain == chain and one.workload.slug == workload
    )


FIRST, READ, AGAIN = (
    "randwrite-4k-qd1-touch-first",
    "randread-4k-qd1-touch-first",
    "randwrite-4k-qd1",
)


def test_data_lies_below_the_snapshots_and_none_above_them(tmp_path: Path) -> None:
    bench = Bench()
    assert bench.run(case(tmp_path, READ)) is Outcome.OK
    assert bench.world.chains == ["attach 0", "take 3", "attach 3"]
    assert bench.fills == 1


def test_a_second_first_write_needs_new_emptiness_but_a_read_does_not(tmp_path: Path) -> None:
    bench = Bench()
    for slug in (READ, READ, FIRST, FIRST):
        bench.run(case(tmp_path, slug))
    assert bench.world.chains == ["attach 0", "take 3", "attach 3", "take 3", "attach 3"]
    assert bench.fills == 1


def test_rewriting_needs_data_above_the_snapshots_which_stays(tmp_path: Path) -> None:
    bench = Bench()
    for slug in (AGAIN, AGAIN, FIRST, AGAIN):
        assert bench.run(case(tmp_path, slug)) is Outcome.OK
    assert bench.fills == 3  # below, above, and above again after first writes
    assert bench.world.chains.count("take 3") == 2


def test_snapshots_that_failed_are_taken_by_the_next_run(tmp_path: Path) -> None:
    bench = Bench()
    bench.world.fails = 1
    assert bench.run(case(tmp_path, FIRST)) is Outcome.FAILED
    assert bench.run(case(tmp_path, FIRST)) is Outcome.OK
    assert bench.fills == 1


def test_the_plan_expects_the_fills_that_happen(tmp_path: Path) -> None:
    bench, plan = Bench(), make_plan(matrix_of(tmp_path, CHAIN), seed=1)
    for one in plan.cases:
        assert bench.run(one) is Outcome.OK
    assert plan.fills == bench.fills == 3
    order = [one.workload.first_touch for one in plan.cases if one.scenario.disk.chain]
    assert order == [True, True, False]


def test_a_first_write_writes_at_most_the_volume(tmp_path: Path) -> None:
    first, again = case(tmp_path, FIRST), case(tmp_path, AGAIN)
    costs = [TOOLS["fio"].estimate(one.workload, 64 * MIB).bytes_written for one in (first, again)]
    assert costs[0] == 64 * MIB < costs[1]


def test_the_space_of_the_volume_and_of_its_newest_level_is_planned(tmp_path: Path) -> None:
    assert space_of(matrix_of(tmp_path, CHAIN)) == {"local": (1 + 2) * 64 * MIB}
    thick = CHAIN.replace("cache: none}", "cache: none, preallocation: falloc}")
    assert space_of(matrix_of(tmp_path, thick)) == {"local": (1 + 4) * 64 * MIB}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("format: qcow2", "format: raw"), "need qcow2"),
        (("[0, 3]", "[0, 3]\n  chain_kind: [volume, storage]"), "cannot create snapshots"),
        (("cache: none}", "cache: none, filesystem: ext4}"), "above snapshots"),
        (("cache: none}", "cache: none, backing: true}"), "linked clone"),
        (("runtime: 2s", "runtime: 2s, steady: {}"), "excludes a steady state"),
    ],
)
def test_what_has_no_chain_says_why(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    excluded = matrix_of(tmp_path, CHAIN.replace(*change)).excluded
    assert any("chain-3" in one.slug and reason in one.reason for one in excluded)


def test_without_snapshots_there_is_no_first_touch(tmp_path: Path) -> None:
    reasons = {one.slug: one.reason for one in matrix_of(tmp_path, CHAIN).excluded}
    slugs = {f"local.virtio.qcow2.none/{slug}" for slug in (FIRST, READ)}
    assert set(reasons) == slugs
    assert set(reasons.values()) == {"touch first needs a snapshot: chain 1 or more"}


def test_a_storage_without_snapshots_excludes_them(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, CHAIN))
    kind = replace(KINDS["dir"].holds, chains=frozenset())
    found = expand(pack, node="lab", storages={"local": kind})
    assert {one.scenario.disk.chain for one in found.cases} == {0}
