"""Figures of an operation during a run, and the run around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.config import load_pack
from pvebench.drivers.storages import KINDS
from pvebench.errors import (
    Busy,
    DriverError,
    OperationFailed,
    OperationUnfinished,
    ServerGone,
    SwitchFailed,
)
from pvebench.model.figure import Source
from pvebench.model.ports import Progress
from pvebench.model.run import Outcome, Run, Sample
from pvebench.model.run_metrics import of_source
from pvebench.model.units import MIB
from pvebench.model.workload import Conduct
from pvebench.runner.operation_watch import Look, longest_gap, operation_samples, percentile, rates
from pvebench.runner.runner import Runner
from pvebench.scheduler.plan import expand
from pvebench.workloads.fault_dip import NOT_RECOVERED
from pvebench_lab.simulated.simulated_hypervisor import SimulatedOperation, simulated_site
from testing.packs import SMALL, Recorder, matrix_of, space_of, tool_refusal, write_pack
from testing.recording_hypervisor import RecordingHypervisor

BEGUN = 10.0
BACKUP = SMALL.replace("iodepth: 8}", "iodepth: 8, during: backup}").replace("2s", "30s")


def looks(
    done: Callable[[float], float], *, end: float | None = None, window: float = 30.0
) -> list[Look]:
    """Return ten looks per second at a disk that has completed `done(time)` operations."""
    times = [tick / 10 for tick in range(int(window * 10) + 1)]
    return [
        Look(
            at,
            Progress(
                operations=int(done(at)),
                latencies=(int(done(at)), 0, 0),
                ended=end is not None and at >= end,
            ),
        )
        for at in times
    ]


def values(samples: list[Sample]) -> dict[str, float]:
    return {f"{one.metric}{one.part and f'_{one.part}'}": one.value for one in samples}


def stalled(at: float) -> float:
    """100 I/O per second, but none from second 12 to 15."""
    return 100 * (at if at < 12 else 12 if at < 15 else at - 3)


def test_a_stall_is_the_longest_gap_and_its_area_is_the_lost_io() -> None:
    found = values(operation_samples(looks(stalled, end=20.0), BEGUN, (0.001, 0.1))[0])
    assert found["operation_gap"] == pytest.approx(3.0, abs=0.21)
    assert found["operation_lost"] == pytest.approx(300, abs=15)
    assert found["operation_time"] == pytest.approx(10.0)
    assert found["operation_recovery"] == pytest.approx(3.0, abs=1.01)


def test_a_stall_before_the_operation_is_none_of_it_but_one_that_lasts_is() -> None:
    early = looks(lambda at: stalled(at + 7))  # from second 5 to 8
    assert longest_gap(early, BEGUN)[0] < 0.3
    across = looks(lambda at: stalled(at + 3))  # from second 9 to 12
    assert longest_gap(across, BEGUN)[0] == pytest.approx(3.0, abs=0.21)


def test_a_stall_that_begins_after_the_end_is_none_of_it() -> None:
    found = values(operation_samples(looks(stalled, end=11.0), BEGUN, (0.001, 0.1))[0])
    assert found["operation_gap"] < 0.3
    found = values(operation_samples(looks(stalled, end=13.0), BEGUN, (0.001, 0.1))[0])
    assert found["operation_gap"] == pytest.approx(3.0, abs=0.21)


def test_the_time_after_the_job_is_no_gap() -> None:
    """fio ends before the window, or hangs until the operation is canceled: then it goes on."""
    seen = looks(lambda at: 100 * min(at, 29.0), end=29.5)
    found = values(operation_samples(seen, BEGUN, (0.001, 0.1), goes_on=False)[0])
    assert found["operation_gap"] < 0.3
    assert found["operation_lost"] == pytest.approx(0, abs=1)
    assert found["operation_time"] == pytest.approx(19.5)
    found = values(operation_samples(seen, BEGUN, (0.001, 0.1), goes_on=True)[0])
    assert found["operation_gap"] == pytest.approx(1.0, abs=0.11)


@pytest.mark.parametrize(("is_read", "counts"), [(True, False), (False, True)])
def test_without_a_reading_after_the_job_the_time_without_io_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_read: bool, counts: bool
) -> None:
    original, seen, canceled = SimulatedOperation.look, list[Progress](), list[object]()

    def look(operation: SimulatedOperation) -> Progress:
        seen.append(original(operation))
        still = seen[min(len(seen) - 1, 250)].operations  # of some 300 looks
        return replace(seen[-1], operations=still, is_read=is_read or not canceled)

    def cancel(operation: SimulatedOperation) -> None:
        canceled.append(operation)

    monkeypatch.setattr(SimulatedOperation, "look", look)
    monkeypatch.setattr(SimulatedOperation, "cancel", cancel)
    found = values(list(run(tmp_path, RecordingHypervisor()).samples))
    assert (found["operation_lost"] > 10) is counts


@pytest.mark.parametrize("spacing", [1.0, 1.02, 1.12, 1.3, 1.5, 2.2])
def test_looks_that_are_not_a_second_apart_show_no_dip(spacing: float) -> None:
    times = [number * spacing for number in range(int(60 / spacing))]
    seen = [Look(at, Progress(operations=round(500 * at), latencies=())) for at in times]
    begun = times[len(times) // 3]
    found = values(operation_samples(seen, begun, ())[0])
    assert found["operation_recovery"] == 0.0
    assert found["operation_resolution"] == pytest.approx(spacing)


def test_a_rate_that_stays_low_has_not_recovered() -> None:
    seen = looks(lambda at: 100 * at if at < 12 else 1200 + 30 * (at - 12), end=20.0)
    samples, notes = operation_samples(seen, BEGUN, (0.001, 0.1))
    assert "operation_recovery" not in values(samples)
    assert notes == (NOT_RECOVERED,)


@pytest.mark.parametrize("first", [BEGUN + 1, 99.0])
def test_without_counters_before_the_operation_its_figures_are_unknown(first: float) -> None:
    seen = [
        replace(look, progress=replace(look.progress, is_read=look.at >= first))
        for look in looks(lambda at: 100 * at, end=20.0)
    ]
    samples, (note,) = operation_samples(seen, BEGUN, (0.001, 0.1))
    assert samples == []
    assert "before the operation" in note


@pytest.mark.parametrize(("unread", "known"), [(1, True), (2, False)])
def test_counters_that_are_not_read_are_no_gap(unread: int, *, known: bool) -> None:
    seen = looks(lambda at: 100 * at, end=20.0)
    for number in range(120, 120 + unread):
        same = replace(seen[119].progress, is_read=False)
        seen[number] = replace(seen[number], progress=same)
    samples, notes = operation_samples(seen, BEGUN, (0.001, 0.1))
    assert ("operation_gap" in values(samples)) is known
    assert any("could not be read for 0.3 s" in note for note in notes) is not known


def test_a_stall_until_the_end_is_a_gap_without_recovery() -> None:
    samples, notes = operation_samples(looks(lambda at: 100 * min(at, 12.0)), BEGUN, (0.001, 0.1))
    found = values(samples)
    assert found["operation_gap"] == pytest.approx(18.0, abs=0.11)
    assert not {"operation_time", "operation_recovery", "operation_p99_after"} & set(found)
    assert notes[0] == NOT_RECOVERED
    assert "had not ended" in notes[1]


def test_an_operation_without_effect_shows_none() -> None:
    found = values(operation_samples(looks(lambda at: 100 * at, end=20.0), BEGUN, (0.001, 0.1))[0])
    assert found["operation_lost"] == pytest.approx(0, abs=1)
    assert found["operation_recovery"] == 0.0
    assert found["operation_gap"] <= 0.21
    phases = {name for name in found if name.startswith("operation_p99")}
    assert phases == {f"operation_p99_{phase}" for phase in ("before", "during", "after")}


@pytest.mark.parametrize(
    ("bins", "bound"),
    [((990, 10, 0), 0.001), ((989, 11, 0), 0.1), ((0, 0, 5), 0.1), ((0, 0, 0), None)],
)
def test_a_percentile_is_the_upper_bound_of_its_bin(
    bins: tuple[int, ...], bound: float | None
) -> None:
    first = Look(0.0, Progress(operations=7, latencies=(7, 0, 0)))
    last = Look(1.0, Progress(operations=0, latencies=(bins[0] + 7, *bins[1:])))
    assert percentile([first, last], (0.001, 0.1)) == bound
    assert percentile([first], (0.001, 0.1)) is None


def test_rates_are_those_of_whole_seconds() -> None:
    assert rates(looks(lambda at: 100 * at, window=3.5)) == [100.0] * 3


def run(directory: Path, world: RecordingHypervisor, times: int = 1) -> Run:
    case = matrix_of(directory, BACKUP).cases[0]
    runner = Runner(simulated_site(world), Recorder())
    return [runner.run(case, cycle="c", conduct=Conduct()) for _ in range(times)][-1]


def test_a_run_has_the_figures_and_the_looks_as_evidence(tmp_path: Path) -> None:
    one = run(tmp_path, RecordingHypervisor())
    assert one.outcome is Outcome.OK, one.reason
    found = values(list(one.samples))
    assert found["operation_time"] == pytest.approx(1.0, abs=0.11)
    assert found["operation_resolution"] == pytest.approx(0.1)
    own = {sample.metric for sample in one.samples if sample.metric.startswith("operation_")}
    assert own == {name for name in of_source(Source.HOST) if name.startswith("operation_")}
    times = [line[0] for line in json.loads(one.evidence["operation"])]
    assert times[0] == pytest.approx(-9.9)  # the first 0.1 s show that the ramp is over
    assert times[-1] == pytest.approx(20.0)


def test_the_disk_is_detached_after_each_operation(tmp_path: Path) -> None:
    world = RecordingHypervisor()
    run(tmp_path, world, times=3)
    assert world.steps.count("attach") == 3
    assert world.steps[-1] == "detach"


def test_the_disk_is_detached_after_an_operation_whose_window_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimulatedOperation.look

    def look(operation: SimulatedOperation) -> Progress:
        if (seen := original(operation)).ended:
            raise ServerGone("GET /nodes/pve1/tasks: no response")
        return seen

    monkeypatch.setattr(SimulatedOperation, "look", look)
    world = RecordingHypervisor()
    assert run(tmp_path, world).outcome is Outcome.FAILED
    assert world.steps[-1] == "detach"


def test_a_detach_that_fails_after_an_operation_is_tried_again_by_the_next_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SwitchFailed("VM 9000 is locked")

    world = RecordingHypervisor()
    case = matrix_of(tmp_path, BACKUP).cases[0]
    runner = Runner(simulated_site(world), Recorder())
    with monkeypatch.context() as patch:

        def begin_to_fail(_: SimulatedOperation) -> None:
            patch.setattr(world, "detach", fail)
            patch.setattr(world, "power_off", fail)

        patch.setattr(SimulatedOperation, "begin", begin_to_fail)
        runner.run(case, cycle="c", conduct=Conduct())
    begin = len(world.steps)
    assert runner.run(case, cycle="c", conduct=Conduct()).outcome is Outcome.OK
    assert world.steps[begin] == "detach"


@pytest.mark.parametrize("step", ["begin", "look", "cancel"])
def test_an_operation_that_fails_is_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(operation: SimulatedOperation) -> None:
        raise OperationFailed("backup failed: No space left on device")

    monkeypatch.setattr(SimulatedOperation, step, fail)
    one = run(tmp_path, RecordingHypervisor())
    assert (one.outcome, one.reason) == (Outcome.FAILED, "backup failed: No space left on device")


@pytest.mark.parametrize("error", [OperationUnfinished("did not end"), Busy("VM 9000 is locked")])
def test_an_operation_that_cannot_be_undone_yet_does_not_cost_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: DriverError
) -> None:
    def fail(operation: SimulatedOperation) -> None:
        raise error

    monkeypatch.setattr(SimulatedOperation, "cancel", fail)
    one = run(tmp_path, RecordingHypervisor())
    assert one.outcome is Outcome.OK, one.reason
    assert json.loads(one.evidence["output"])["jobs"]
    assert f"could not be undone yet: {error.reason}" in one.evidence["notes"]


def test_the_plan_has_the_space_and_the_bytes_of_the_copies(tmp_path: Path) -> None:
    assert space_of(matrix_of(tmp_path, BACKUP)) == {"local": 2 * 64 * MIB}
    fleecing = BACKUP.replace("backup}", "backup-fleecing}")
    assert space_of(matrix_of(tmp_path, fleecing)) == {"local": 3 * 64 * MIB}
    restore = BACKUP.replace("backup}", "restore}")
    assert space_of(matrix_of(tmp_path, restore)) == {"local": 3 * 64 * MIB}
    with_memory = matrix_of(tmp_path, BACKUP.replace("backup}", "snapshot-ram}"))
    memory = with_memory.cases[0].scenario.machine.memory_bytes
    assert space_of(with_memory) == {"local": 2 * 64 * MIB + memory}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("[virtio, scsi]", "[virtio, sata]"), "can be hot-plugged"),
        (("[virtio, scsi]", "[virtio]\n  iops: [0, 100]"), "exclude iops"),
        (("backup}", "backup-fleecing}\n  - fio: {rw: read, bs: 4k}"), "I/O thread"),
        (("[virtio, scsi]", "[virtio]\n  filesystem: [none, ext4]"), "without a filesystem"),
    ],
)
def test_a_disk_without_operations_says_why(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    text = BACKUP.replace(*change)
    if "I/O thread" in reason:
        text = text.replace("axes:", "fixed: {iothread: true}\naxes:")
    excluded = matrix_of(tmp_path, text).excluded
    assert any(reason in one.reason for one in excluded)


def test_a_storage_without_operations_says_so(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, BACKUP + "  - fio: {rw: randread, bs: 4k}\n"))
    found = expand(pack, node="lab", storages={"local": KINDS["block"].holds})
    assert {one.workload.during for one in found.cases} == {""}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"during": "copy"}, "during"),
        ({"during": "snapshot", "target_rate": "1M"}, "target_rate: requires during"),
        ({"during": "backup", "fault": "outage"}, "fault: cannot be combined with during"),
        ({"during": "backup", "touch": "first"}, "touch: must be rewrite"),
    ],
)
def test_options_of_an_operation_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    assert said in tool_refusal(tmp_path, "fio", {"rw": "randwrite", "bs": "4k", **options})
