"""Several VMs that run a workload at the same time, in simulated time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.config import load_pack
from pvebench.errors import ConfigError, HypervisorGone
from pvebench.model.figure import Source
from pvebench.model.guest import Completed, Guest
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.run_metrics import of_source
from pvebench.model.storage_use import SpaceNeed
from pvebench.model.units import MIB
from pvebench.model.volume import BlockCounters
from pvebench.model.workload import Conduct, Direction
from pvebench.runner import companions
from pvebench.runner.companions import fairness, of_all
from pvebench.runner.measure import read_logs
from pvebench.runner.runner import Runner
from pvebench.scheduler.plan import expand, make_plan
from pvebench.workloads import TOOLS, Job
from pvebench_lab.simulated.simulated_hypervisor import BOOT_SECONDS, SimulatedGuest, simulated_site
from testing.faulty_node import Fault, Faults, FaultyHypervisor
from testing.packs import SMALL, STORAGES, Recorder, matrix_of, tool_refusal, write_pack
from testing.recording_hypervisor import RecordingHypervisor

MANY = SMALL.replace("[virtio, scsi]", "[virtio]").replace(
    "iodepth: 8}", "iodepth: 8, vms: [1, 4]}"
)
ONE, FOUR = "randread-4k-qd8", "randread-4k-qd8-vms4"


class Bench:
    def __init__(self, directory: Path) -> None:
        self.world = RecordingHypervisor()
        self.runner = Runner(simulated_site(self.world), Recorder())
        self.cases = {case.workload.slug: case for case in matrix_of(directory, MANY).cases}

    def run(self, slug: str) -> Run:
        return self.runner.run(self.cases[slug], cycle="c", conduct=Conduct())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def value(run: Run, metric: str, direction: Direction | None = None) -> float:
    found = [s.value for s in run.samples if (s.metric, s.direction) == (metric, direction)]
    assert len(found) == 1, metric
    return found[0]


def test_the_rate_is_the_sum_of_all_and_the_histogram_has_all_operations(bench: Bench) -> None:
    one, four = bench.run(ONE), bench.run(FOUR)
    assert four.outcome is Outcome.OK, four.reason + four.evidence.get("error", "")
    iops = [value(run, "iops", Direction.READ) for run in (one, four)]
    assert iops[1] == pytest.approx(4 * iops[0], rel=0.2)
    jobs = json.loads(four.evidence["output"])["jobs"]
    assert [job["read"]["iops"] for job in jobs] != [jobs[0]["read"]["iops"]] * 4
    assert iops[1] == pytest.approx(sum(job["read"]["iops"] for job in jobs))
    counted = sum(s.value for s in four.samples if s.metric == "clat_histogram" and s.part != "sum")
    assert counted == pytest.approx(value(four, "operations", Direction.READ), rel=0.01)


def test_fairness_slowest_vm_and_boot_storm_are_figures_of_the_run(bench: Bench) -> None:
    run = bench.run(FOUR)
    jobs = json.loads(run.evidence["output"])["jobs"]
    rates = [job["read"]["iops"] for job in jobs]
    assert value(run, "vms_slowest") == pytest.approx(min(rates))
    assert value(run, "vms_fairness") == pytest.approx(fairness(rates))
    own = {sample.metric for sample in run.samples if sample.metric.startswith("vms_")}
    assert own == {name for name in of_source(Source.HOST) if name.startswith("vms_")}
    assert value(run, "vms_boot_time") == pytest.approx(BOOT_SECONDS)  # together, not in turn


def test_a_further_vm_that_stands_still_makes_the_run_noisy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MANY.replace("runtime: 2s", "runtime: 10s").replace("[1, 4]", "2")

    def stalls_after_three_seconds(guest: Guest, job: Job) -> dict[str, str]:
        logs = read_logs(guest, job)
        return {name: "".join(log.splitlines(keepends=True)[:3]) for name, log in logs.items()}

    steady = Bench(tmp_path)
    steady.cases = {case.workload.slug: case for case in matrix_of(tmp_path, text).cases}
    assert steady.run("randread-4k-qd8-vms2").outcome is Outcome.OK
    monkeypatch.setattr(companions, "read_logs", stalls_after_three_seconds)
    run = steady.run("randread-4k-qd8-vms2")
    assert (run.outcome, run.reason[:18]) == (Outcome.NOISY, "interval variation")
    assert value(run, "vms_variation") > 1
    both = [line for line in run.evidence["fio_iops.log"].splitlines() if line]
    assert len(both) == 10 + 3
    assert 0.2 < value(run, "iops_variation", Direction.READ) < 0.6


def test_figures_of_the_benchmark_vm_alone_are_none_of_all() -> None:
    """Exits of one VM per operation of all VMs would be too few; so would its pressure."""
    parts = [("host_cpu", "total"), ("host_pressure", "io_some"), ("host_bytes", "device_write")]
    alone = [
        ("host_bytes", "process_write"),
        ("host_cpu", "vcpu"),
        ("host_pressure", "vm_io_some"),
        ("vm_exits", ""),
    ]
    alone.append(("guest_cpu_wait", ""))
    samples = [Sample(name, None, 1.0, Unit.CORES, part) for name, part in [*parts, *alone]]
    assert [(one.metric, one.part) for one in of_all(samples)] == parts


@pytest.mark.parametrize(
    ("rates", "index"), [([5.0, 5.0], 1.0), ([8.0, 0.0], 0.5), ([4.0, 1.0, 1.0], 2 / 3), ([0.0], 1)]
)
def test_jains_index_is_one_for_equals_and_its_reciprocal_number_for_one_alone(
    rates: list[float], index: float
) -> None:
    assert fairness(rates) == pytest.approx(index)


def test_each_vm_has_a_volume_that_stays_and_ends_with_the_run(bench: Bench) -> None:
    for _ in range(2):
        bench.run(FOUR)
        assert bench.world.reality.vms == {"lab"}
        assert len(bench.world.reality.volumes) == 4
    fills = [step for step in bench.world.steps if step == "fill"]
    bench.runner.close()
    assert bench.world.reality.vms == bench.world.reality.volumes == set()
    assert len(fills) <= 1


@pytest.mark.parametrize(("cached", "outcome"), [(0, Outcome.OK), (1 << 26, Outcome.INVALID)])
def test_the_page_cache_has_no_volume_of_a_further_vm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cached: int, outcome: Outcome
) -> None:
    """Each fill leaves the volume there in some cache modes: it would be read from memory."""
    dropped: list[str] = []

    def drop(hypervisor: FaultyHypervisor, _: object) -> int:
        dropped.append(hypervisor._instance)
        return cached if hypervisor._instance == "vm4." else 0

    monkeypatch.setattr(FaultyHypervisor, "drop_caches", drop)
    assert bench.run(FOUR).outcome is outcome
    assert dropped == ["", "vm2.", "vm3.", "vm4."]


@pytest.mark.parametrize("fault", [Fault.BOOT_HANGS, Fault.ATTACH_FAILS, Fault.TOOL_FAILS])
def test_a_further_vm_that_fails_fails_the_run_and_leaves_no_vm(bench: Bench, fault: Fault) -> None:
    bench.run(ONE)
    bench.world.faults = Faults(1, {fault: 1.0})
    run = bench.run(FOUR)
    assert run.outcome is Outcome.FAILED
    bench.world.faults._rates.clear()
    assert not {name for name in bench.world.reality.vms if "vm" in name}
    again = bench.run(FOUR)
    assert again.outcome is Outcome.OK, again.reason


def test_a_further_vm_whose_counters_cannot_be_read_is_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = FaultyHypervisor.counters

    def fail(hypervisor: FaultyHypervisor) -> BlockCounters:
        if "vm" in hypervisor._instance:
            raise HypervisorGone("QEMU does not report scsi1")
        return counters(hypervisor)

    monkeypatch.setattr(FaultyHypervisor, "counters", fail)
    run = bench.run(FOUR)
    assert (run.outcome, run.reason) == (Outcome.FAILED, "QEMU does not report scsi1")
    assert not {name for name in bench.world.reality.vms if "vm" in name}


def test_a_further_vm_that_cannot_be_removed_leaves_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(FOUR)
    shutdown = FaultyHypervisor.shutdown

    def fail(hypervisor: FaultyHypervisor) -> None:
        if hypervisor._instance.endswith("vm3."):
            raise HypervisorGone("vm3 does not answer")
        shutdown(hypervisor)

    monkeypatch.setattr(FaultyHypervisor, "shutdown", fail)
    with pytest.raises(HypervisorGone, match="vm3"):
        bench.runner.close()
    assert len(bench.world.reality.volumes) == 1


def test_the_plan_has_boots_fills_bytes_and_space_of_all_vms(tmp_path: Path) -> None:
    cases = matrix_of(tmp_path, MANY).cases
    plans = [make_plan(matrix_of(tmp_path, MANY.replace("[1, 4]", n)), seed=1) for n in ("1", "4")]
    assert plans[1].restarts - plans[0].restarts == 3
    assert plans[1].fills == 4
    assert SpaceNeed(STORAGES).add(*cases).total() == {"local": 4 * 64 * MIB}
    writes = matrix_of(tmp_path, MANY.replace("rw: randread", "rw: randwrite")).cases
    costs = {
        case.workload.vms: TOOLS["fio"].estimate(case.workload, 0).bytes_written for case in writes
    }
    assert costs[4] == 4 * costs[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("[virtio]", "[virtio, sata]"), "can be hot-plugged"),
        (("runtime: 2s", "runtime: 2s\n  steady: {}"), "exclude a steady state"),
    ],
)
def test_what_several_vms_cannot_run_says_why(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    excluded = matrix_of(tmp_path, MANY.replace(*change)).excluded
    assert any("vms" in one.slug and reason in one.reason for one in excluded)


@pytest.mark.parametrize("other", ["during: backup", "fault: outage"])
def test_several_vms_have_neither_operations_nor_faults(tmp_path: Path, other: str) -> None:
    options = dict([other.split(": ")]) | {"rw": "randread", "bs": "4k", "vms": 2}
    assert "cannot be combined with several vms" in tool_refusal(tmp_path, "fio", options)


# --- a neighbor

NEIGHBOR = (
    SMALL.replace("[virtio, scsi]", "[virtio]")
    .replace("iodepth: 8}", "iodepth: 8, during: neighbor, neighbor_iops: 500}")
    .replace("2s", "30s")
)


def beside(directory: Path, world: RecordingHypervisor) -> Run:
    (case,) = matrix_of(directory, NEIGHBOR).cases
    runner = Runner(simulated_site(world), Recorder())
    run = runner.run(case, cycle="c", conduct=Conduct())
    assert world.reality.vms == {"lab"}
    runner.close()
    assert world.reality.vms == world.reality.volumes == set()
    return run


def test_a_neighbor_loads_the_storage_for_a_third_of_the_window(tmp_path: Path) -> None:
    run = beside(tmp_path, RecordingHypervisor())
    assert run.outcome is Outcome.OK, run.reason + run.evidence.get("error", "")
    assert value(run, "operation_time") == pytest.approx(10.0, abs=2.2)
    assert value(run, "operation_bytes") > 0
    assert len(json.loads(run.evidence["output"])["jobs"]) == 1  # not its own


def test_a_neighbor_has_its_own_rate_and_no_ramp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: dict[str, str] = {}
    prepare = SimulatedGuest.prepare_job

    def note(guest: SimulatedGuest, work: str, files: dict[str, bytes], results: object) -> None:
        name = guest._node._instance
        jobs[name] = jobs.get(name, "") + "".join(map(bytes.decode, files.values()))
        prepare(guest, work, files, results)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(SimulatedGuest, "prepare_job", note)
    beside(tmp_path, RecordingHypervisor())
    assert "rate_iops" not in jobs[""]
    assert "rate_iops=500" in jobs["vm2."]
    assert "runtime=10" in jobs["vm2."]


def test_a_neighbor_that_fails_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = SimulatedGuest.poll

    def fail(guest: SimulatedGuest, pid: int) -> Completed | None:
        ended = poll(guest, pid)
        return Completed(1, b"", b"no space") if ended and guest._node._instance else ended

    monkeypatch.setattr(SimulatedGuest, "poll", fail)
    run = beside(tmp_path, RecordingHypervisor())
    assert (run.outcome, "no space" in run.reason) == (Outcome.FAILED, True)


def test_the_plan_has_a_neighbors_boot_fill_bytes_and_space(tmp_path: Path) -> None:
    alone, near = (
        make_plan(matrix_of(tmp_path, text), seed=1)
        for text in (NEIGHBOR.replace(", during: neighbor, neighbor_iops: 500", ""), NEIGHBOR)
    )
    assert (near.restarts, near.fills) == (alone.restarts + 1, alone.fills + 1)
    assert near.bytes_written == 2 * alone.bytes_written
    assert SpaceNeed(STORAGES).add(*near.cases).total() == {"local": 2 * 64 * MIB}


def test_a_neighbors_writes_are_part_of_the_plan(tmp_path: Path) -> None:
    writes = NEIGHBOR.replace("rw: randread", "rw: randwrite, rate_iops: 100")
    (case,) = matrix_of(tmp_path, writes).cases
    own = 4096 * 100 * (case.workload.ramp_seconds + 30)
    estimate = TOOLS["fio"].estimate(case.workload, 64 * MIB)
    assert estimate.bytes_written == pytest.approx(own + 4096 * 500 * 10, rel=0.1)


def test_a_storage_for_one_vm_has_no_neighbor(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, NEIGHBOR))
    kind = replace(STORAGES["local"], vms=1)
    with pytest.raises(
        ConfigError,
        match="several VMs at the same time need a storage of kind dir or driver proxmox",
    ):
        expand(pack, node="lab", storages={"local": kind})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"neighbor_iops": 5}, "neighbor_iops: requires during: neighbor"),
        ({"during": "neighbor", "neighbor_iops": 5, "numjobs": 2}, "neighbor_iops: 5 is the total"),
        ({"during": "neighbor", "vms": 2}, "during: cannot be combined with several vms"),
    ],
)
def test_options_of_a_neighbor_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, object], said: str
) -> None:
    assert said in tool_refusal(tmp_path, "fio", {"rw": "randread", "bs": "4k", **options})
