from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from pvebench.config import load_pack
from pvebench.errors import ConfigError
from pvebench.model.run import Outcome
from pvebench.model.storage_use import SpaceNeed
from pvebench.model.units import MIB
from pvebench.scheduler.plan import Matrix, Plan, expand, make_plan, select
from testing.packs import ROOT, SMALL, STORAGES, matrix_of, quick, write_pack
from testing.simulations import simulate


def full() -> Matrix:
    pack = load_pack(ROOT / "scenarios" / "cache-matrix.yaml")
    return expand(pack, node="lab", storages=STORAGES)


def test_the_quick_pack_is_six_scenarios_with_two_workloads() -> None:
    matrix = quick()[1]
    assert len(matrix.cases) == 12
    assert [(left.slug, left.reason) for left in matrix.excluded] == [
        ("local.virtio.qcow2.writeback", "excluded by the pack (format=qcow2, cache=writeback)"),
        ("local.scsi.qcow2.writeback", "excluded by the pack (format=qcow2, cache=writeback)"),
    ]


def test_the_cache_matrix_is_twenty_configurations_with_eight_workloads() -> None:
    cases = full().cases
    assert len({case.scenario.slug for case in cases}) == 20
    assert len(cases) == 160


def test_what_cannot_be_is_left_out_with_its_reason(tmp_path: Path) -> None:
    text = SMALL.replace("cache: [none]", "cache: [none, writeback]\n  aio: [native, threads]")
    matrix = matrix_of(tmp_path, text)
    assert {left.slug: left.reason for left in matrix.excluded} == {
        "local.virtio.raw.writeback.aio-native": (
            "aio=native needs O_DIRECT, which this cache mode does not use"
        ),
        "local.scsi.raw.writeback.aio-native": (
            "aio=native needs O_DIRECT, which this cache mode does not use"
        ),
    }
    assert len(matrix.cases) == 6


def test_a_slug_names_only_what_differs_from_the_defaults(tmp_path: Path) -> None:
    text = SMALL.replace("axes:", "fixed: {aio: native, iothread: true}\naxes:")
    matrix = matrix_of(tmp_path, text)
    assert matrix.cases[0].scenario.slug == "local.virtio.raw.none.aio-native.iothread-1"


def test_each_volume_and_each_scenario_stays_together_in_the_order() -> None:
    for seed in range(20):
        cases = make_plan(full(), seed=seed).cases
        volumes = [volume for volume, _ in groupby(case.scenario.volume for case in cases)]
        scenarios = [slug for slug, _ in groupby(case.scenario.slug for case in cases)]
        assert len(volumes) == len(set(volumes)) == 2
        assert len(scenarios) == len(set(scenarios)) == 20


def test_the_order_is_shuffled_by_the_seed_and_loses_nothing() -> None:
    orders = {tuple(case.slug for case in make_plan(full(), seed=seed).cases) for seed in range(20)}
    assert len(orders) == 20
    assert len({frozenset(order) for order in orders}) == 1
    again = [make_plan(full(), seed=1).cases for _ in range(2)]
    assert again[0] == again[1]


def test_equal_simulations_run_equal_orders_and_each_cycle_another(tmp_path: Path) -> None:
    """Neither random numbers of the process nor its hash seed decide about an order."""
    orders = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        simulation = simulate(tmp_path / place, cycles=3)
        simulation.worker.run()
        orders.append([run.case.slug for run in simulation.recorder.runs])
    assert orders[0] == orders[1]
    cycles = {tuple(orders[0][at : at + 12]) for at in (0, 12, 24)}
    assert len(orders[0]) == 36
    assert len(cycles) == 3


def test_over_many_seeds_each_scenario_comes_first_about_as_often() -> None:
    matrix = quick()[1]
    firsts = Counter(make_plan(matrix, seed=seed).cases[0].scenario.slug for seed in range(600))
    assert len(firsts) == 6
    assert min(firsts.values()) > 30


def test_the_most_overdue_case_pulls_its_group_to_the_front() -> None:
    matrix = full()
    late = matrix.cases[77]
    cases = make_plan(matrix, seed=5, overdue={late.key: 1000.0}).cases
    assert cases[0].scenario == late.scenario
    assert make_plan(matrix, seed=5, overdue={late.key: 1000.0}).switches == 20


def test_the_plan_counts_boots_switches_fills_time_and_bytes() -> None:
    pack, matrix = quick()
    plan = make_plan(matrix, seed=1, conduct=pack.conduct)
    assert (plan.restarts, plan.switches, plan.fills) == (1, 6, 2)
    assert 12 * 10 < plan.seconds < 12 * 20
    assert plan.bytes_written > 2 * pack.volume_bytes


def test_the_plan_counts_the_shortest_steady_phase_and_what_it_writes(tmp_path: Path) -> None:
    def plan_of(text: str) -> Plan:
        pack = load_pack(write_pack(tmp_path, text))
        return make_plan(expand(pack, node="lab", storages=STORAGES), seed=1)

    text = SMALL.replace("randread", "randwrite")
    steady = text.replace("measure:", "measure:\n  steady: {interval: 2s, window: 6}")
    plain, waiting = plan_of(text), plan_of(steady)
    assert waiting.seconds == pytest.approx(plain.seconds + 12 * len(plain.cases))
    assert waiting.bytes_written > plain.bytes_written


def test_the_plan_has_the_space_of_all_volumes_snapshots_bases_and_vms(tmp_path: Path) -> None:
    def space_of(text: str) -> dict[str, int]:
        matrix = matrix_of(tmp_path, text)
        need = SpaceNeed(STORAGES).add(*matrix.cases).total()
        return {name: size // MIB for name, size in need.items()}

    plain = SMALL.replace("format: [raw]", "format: [qcow2]")
    assert space_of(plain) == {"local": 64}
    assert space_of(plain.replace("axes:", "axes:\n  chain: [0, 3]")) == {"local": 64 + 2 * 64}
    assert space_of(plain.replace("axes:", "axes:\n  backing: [true]")) == {"local": 2 * 64}
    assert space_of(plain.replace("iodepth: 8", "iodepth: 8, vms: 3")) == {"local": 3 * 64}


def test_selection_keeps_what_matches_and_reports_what_it_left_out() -> None:
    matrix = select(quick()[1], only=["local.scsi.*"], skip=["randread-*"])
    assert {case.slug for case in matrix.cases} == {
        "local.scsi.raw.none/randwrite-4k-qd32",
        "local.scsi.raw.writeback/randwrite-4k-qd32",
        "local.scsi.qcow2.none/randwrite-4k-qd32",
    }
    reasons = Counter(left.reason for left in matrix.excluded)
    assert (reasons["not selected"], reasons["skipped by selection"]) == (6, 3)


def test_one_scale_makes_size_and_time_smaller() -> None:
    path = ROOT / "scenarios" / "cache-matrix.yaml"
    whole, quarter = load_pack(path), load_pack(path, scale=0.25)
    assert quarter.volume_bytes * 4 == whole.volume_bytes
    assert quarter.workloads[0].runtime_seconds * 4 == whole.workloads[0].runtime_seconds


def fills_of(directory: Path, text: str) -> int:
    matrix = matrix_of(directory, text)
    return make_plan(matrix, seed=1).fills


def test_what_leaves_zeros_is_followed_by_a_fill(tmp_path: Path) -> None:
    assert fills_of(tmp_path, SMALL) == 1
    assert fills_of(tmp_path, SMALL + "  - dd: {rw: write, input: zero, direct: true}\n") >= 2
    assert fills_of(tmp_path, SMALL + "  - dd: {rw: write, direct: true}\n") == 1


def test_a_clone_that_is_trimmed_is_never_filled(tmp_path: Path) -> None:
    text = SMALL.replace("axes:", "fixed: {backing: true, discard: true}\naxes:")
    text = text.replace("format: [raw]", "format: [qcow2]")
    assert fills_of(tmp_path, text + "  - fio: {rw: randtrim, bs: 64k}\n") == 0


def test_the_default_cluster_size_has_one_name_only(tmp_path: Path) -> None:
    text = SMALL.replace("format: [raw]", "format: [qcow2]\n  cluster_size: [64k, 128k]")
    matrix = matrix_of(tmp_path, text)
    assert {case.scenario.slug for case in matrix.cases} == {
        f"local.{bus}.qcow2.none{tail}"
        for bus in ("virtio", "scsi")
        for tail in ("", ".cluster_size-128k")
    }


def test_a_list_of_values_sweeps_an_option_of_a_workload(tmp_path: Path) -> None:
    text = SMALL.replace("iodepth: 8", "iodepth: [1, 4], numjobs: [1, 2]")
    pack = load_pack(write_pack(tmp_path, text))
    assert [workload.slug for workload in pack.workloads] == [
        "randread-4k-qd1",
        "randread-4k-qd1-j2",
        "randread-4k-qd4",
        "randread-4k-qd4-j2",
    ]


def test_a_sweep_over_nothing_and_one_that_repeats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"14:42: workloads.0.fio.iodepth: empty list; add at least one value"
    ):
        load_pack(write_pack(tmp_path, SMALL.replace("iodepth: 8", "iodepth: []")))
    with pytest.raises(ConfigError, match="same workload as entry 1"):
        load_pack(write_pack(tmp_path, SMALL.replace("iodepth: 8", "iodepth: [4, 4]")))


def test_a_volume_that_is_filled_otherwise_is_another_history(tmp_path: Path) -> None:
    once, twice = (
        matrix_of(tmp_path, text).cases[0]
        for text in (SMALL, SMALL.replace("size: 64M", "size: 64M\n  fill: 2"))
    )
    assert once.key != twice.key
    assert once.scenario.layout.content != twice.scenario.layout.content


def test_two_passes_of_filling_are_made_and_counted(tmp_path: Path) -> None:
    text = SMALL.replace("size: 64M", "size: 64M\n  fill: 2")
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, text))
    simulation.worker.run()
    assert {run.outcome for run in simulation.recorder.runs} == {Outcome.OK}
    plan = make_plan(
        expand(load_pack(tmp_path / "pack.yaml"), node="lab", storages=STORAGES), seed=1
    )
    assert plan.bytes_written == 2 * 64 * MIB
