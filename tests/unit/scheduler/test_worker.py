from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.config import load_pack
from pvebench.errors import Interrupted, StoreError
from pvebench.model.run import Outcome, Run
from pvebench.model.status import CycleStatus, Phase, State
from pvebench.scheduler.plan import Assignment, expand
from pvebench.workloads import TOOLS
from testing.faulty_node import Fault
from testing.packs import SMALL, STORAGES, Recorder, write_pack
from testing.simulations import simulate


def test_a_cycle_of_the_quick_pack_gives_twelve_ok_runs_in_the_store(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    simulation.worker.run()
    stored = simulation.store.runs()
    assert len(stored) == 12
    assert {run.outcome for run in stored} == {Outcome.OK}
    assert {run.scenario for run in stored} == {
        "local.scsi.qcow2.none",
        "local.scsi.raw.none",
        "local.scsi.raw.writeback",
        "local.virtio.qcow2.none",
        "local.virtio.raw.none",
        "local.virtio.raw.writeback",
    }
    assert {sample.metric for run in stored for sample in run.samples} >= {
        "iops",
        "bandwidth",
        "clat_percentile",
        "host_cpu",
        "qemu_operations",
    }


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(tmp_path: Path) -> None:
    def iops(name: str, seed: int) -> list[float]:
        directory = tmp_path / name
        directory.mkdir()
        simulation = simulate(directory, seed=seed)
        simulation.worker.run()
        return [
            sample.value
            for run in simulation.recorder.runs
            for sample in run.samples
            if sample.metric == "iops"
        ]

    assert iops("a", 1) == iops("b", 1)
    assert iops("c", 1) != iops("d", 2)


def test_each_volume_is_filled_once_and_the_vm_boots_once(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=3)
    simulation.worker.run()
    phases = simulation.recorder.phases
    assert sum(phase is Phase.FILL for _, phase in phases) == 2
    assert len({run.environment.digest for run in simulation.recorder.runs}) == 1
    assert len(simulation.recorder.runs) == 36


def test_nothing_is_left_after_the_last_cycle(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    simulation.worker.run()
    assert simulation.world.volumes == {}
    assert simulation.world.guest is None
    assert simulation.store.journal.pending() == []


def test_a_run_with_another_cache_than_asked_for_is_invalid_and_says_which(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, faults={Fault.WRONG_CACHE: 1.0})
    simulation.worker.run()
    runs = simulation.recorder.runs
    assert {run.outcome for run in runs} == {Outcome.INVALID}
    assert all("cache: requested" in run.reason for run in runs)
    assert all(run.samples == () for run in runs)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault.BOOT_HANGS, "no response of the guest agent"),
        (Fault.ATTACH_FAILS, "hot-plug failed"),
        (Fault.QEMU_EXITS, "QEMU has exited"),
        (Fault.TOOL_FAILS, "ended with status 1: simulated: the tool failed"),
        (Fault.TOOL_HANGS, "did not end within its deadline"),
        (Fault.GUEST_HANGS, "no response of the guest agent"),
        (Fault.OUTPUT_TRUNCATED, ""),
    ],
)
def test_a_fault_ends_its_run_as_failed_with_the_reason(
    tmp_path: Path, fault: Fault, reason: str
) -> None:
    simulation = simulate(tmp_path, faults={fault: 1.0}, pack=write_pack(tmp_path))
    simulation.worker.run()
    runs = simulation.recorder.runs
    assert len(runs) == (4 if runs[0].retryable else 2)
    assert all(run.outcome is Outcome.FAILED and reason in run.reason for run in runs)
    assert simulation.store.journal.pending() == []


def test_after_a_fault_the_next_case_runs(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, seed=3, cycles=4, faults={Fault.QEMU_EXITS: 0.01})
    simulation.worker.run()
    outcomes = {run.outcome for run in simulation.recorder.runs}
    assert outcomes == {Outcome.OK, Outcome.FAILED}
    assert len({run.case.key for run in simulation.recorder.runs}) == 12


def test_a_failure_that_may_pass_is_tried_once_more_at_the_end_of_a_counted_cycle(
    tmp_path: Path,
) -> None:
    simulation = simulate(tmp_path, faults={Fault.GUEST_HANGS: 1.0})
    for _ in range(2):
        simulation.worker.step()
    simulation.world.faults._rates.clear()
    simulation.worker.run()
    runs = simulation.recorder.runs
    assert [run.outcome for run in runs] == [Outcome.FAILED] + [Outcome.OK] * 12
    assert runs[0].case == runs[-1].case
    assert set(simulation.worker.outcomes.values()) == {Outcome.OK}


def test_a_failed_case_comes_back_sooner_than_its_interval_and_ever_later(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, SMALL.replace("every: 10m", "every: 1d"))
    simulation = simulate(tmp_path, cycles=None, pack=pack, faults={Fault.ATTACH_FAILS: 1.0})
    for _ in range(40):
        simulation.world.clock.sleep(simulation.worker.step())
    runs = [run for run in simulation.recorder.runs if run.case.scenario.disk.bus == "scsi"]
    gaps = [
        (after.started - before.finished).total_seconds()
        for before, after in itertools.pairwise(runs)
    ]
    assert len(gaps) > 3
    assert 60 <= gaps[0] < 100
    assert gaps == sorted(gaps)
    assert gaps[-1] > 4 * gaps[0]


def test_a_good_case_waits_for_its_interval(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None, pack=write_pack(tmp_path))
    for _ in range(8):
        simulation.world.clock.sleep(simulation.worker.step())
    runs = [run for run in simulation.recorder.runs if run.case.scenario.disk.bus == "scsi"]
    assert len(runs) >= 2
    # A little early is fine: cases of one pack go together.
    assert (runs[1].started - runs[0].finished).total_seconds() >= 500


def test_the_next_cycle_is_whole_again_and_not_one_case_after_another(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None)
    planned = []
    for _ in range(60):
        simulation.world.clock.sleep(simulation.worker.step())
        cycle = simulation.worker.status.cycle
        if cycle is not None and (cycle.uid, cycle.planned) not in planned:
            planned.append((cycle.uid, cycle.planned))
    assert [count for _, count in planned] == [12] * len(planned)
    assert len(planned) >= 3


def test_a_stop_ends_the_cycle_and_leaves_nothing(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None)
    simulation.worker.step()
    simulation.worker.step()
    assert simulation.world.volumes
    simulation.world.clock.stop()
    with pytest.raises(Interrupted):
        simulation.worker.run()
    assert simulation.world.volumes == {}
    assert simulation.store.journal.pending() == []
    assert len(simulation.store.runs()) == 1


def test_the_status_reports_the_cycle_and_when_it_is_expected_to_end(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    for _ in range(4):
        simulation.worker.step()
    status = simulation.worker.status
    assert status.state is State.IDLE
    assert status.cycle is not None
    assert (status.cycle.done, status.cycle.planned) == (3, 12)
    ended = simulation.store.runs(limit=1)[0].finished
    each = (ended - status.cycle.started) / 3
    assert status.cycle.expected_end == ended + 9 * each > status.progressed
    assert status.upcoming == tuple(simulation.worker._queue[:5])


def test_the_expected_end_follows_what_the_runs_took_instead_of_the_plan(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=2)

    def cycle() -> CycleStatus:
        status = simulation.worker.status.cycle
        assert status is not None
        return status

    simulation.worker.step()
    planned = cycle().expected_end - cycle().started
    simulation.world.clock.sleep(600.0)  # an emulated guest boots
    simulation.worker.step()
    ended = simulation.store.runs(limit=1)[0].finished
    assert cycle().expected_end == ended + planned / 12 * 11
    while cycle().number == 1:
        simulation.worker.step()
    runs = simulation.store.runs(limit=12)
    seconds = sum((run.finished - run.started).total_seconds() for run in runs)
    assert (cycle().expected_end - cycle().started).total_seconds() == pytest.approx(seconds)
    assert seconds != pytest.approx(planned.total_seconds())


def test_while_a_case_runs_the_next_five_are_upcoming_and_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulate(tmp_path)
    seen = []
    monkeypatch.setattr(Recorder, "__call__", lambda *_: seen.append(simulation.worker.status))
    simulation.worker.run()
    first, last = seen[0], seen[-1]
    assert first.case is not None
    order = [run.case for run in simulation.recorder.runs]
    assert (first.case, *first.upcoming) == tuple(order[:6])
    assert last.upcoming == simulation.worker.status.upcoming == ()


def test_a_disk_that_fails_under_us_is_a_failed_run_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulate(tmp_path)

    def broken(_volume: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(simulation.world, "drop_caches", broken)
    simulation.worker.run()
    assert {run.outcome for run in simulation.recorder.runs} == {Outcome.FAILED}
    assert "Input/output error" in simulation.recorder.runs[0].reason


def test_a_run_that_the_database_refuses_for_a_while_is_kept_and_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulate(tmp_path)
    real, refusals = simulation.store.add_run, iter([True, True])

    def refusing(run: Run) -> int:
        if next(refusals, False):
            raise StoreError("the file system is full")
        return real(run)

    monkeypatch.setattr(simulation.store, "add_run", refusing)
    simulation.worker.run()
    assert len(simulation.store.runs()) == 12


def test_one_cycle_of_two_packs_runs_both(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    other = load_pack(write_pack(tmp_path, SMALL.replace("64M", "256M").replace("8}", "9}")))
    matrix = expand(other, node="lab", storages=STORAGES)
    simulation.worker.assign((*simulation.worker.assignments, Assignment(other, matrix)))
    simulation.worker.run()
    assert len(simulation.store.runs()) == 14


def test_a_cycle_whose_pack_shrinks_goes_on_with_what_is_left_and_says_so(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=2)
    worker = simulation.worker
    for _ in range(4):
        worker.step()
    (assignment,) = worker.assignments
    left = tuple(worker._queue[:2])
    worker.assign([replace(assignment, matrix=replace(assignment.matrix, cases=left))])
    cycle = worker.status.cycle
    assert cycle is not None
    assert (cycle.done, cycle.planned) == (3, 5)
    assert worker.status.upcoming == left
    worker.run()
    assert simulation.store.totals().cycles == {("lab", "wall"): 2}


def test_a_cycle_of_which_nothing_is_left_does_not_count_as_made(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None)
    simulation.worker.step()
    simulation.worker.step()
    simulation.worker.assign([])
    assert simulation.store.totals().cycles == {}
    assert simulation.worker.step() > 0  # nothing is queued any more


def test_a_database_that_fails_for_a_while_only_delays(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    store, failures = simulation.store, iter([True, False, True, False])
    begin, end = store.begin_cycle, store.end_cycle

    def begin_cycle(*args: str, **kwargs: object) -> None:
        if next(failures):
            raise StoreError("the file system is full")
        begin(*args, **kwargs)  # type: ignore[arg-type] # handed through

    store.begin_cycle = begin_cycle  # type: ignore[method-assign] # fails as a full disk does
    simulation.worker.run()
    assert len(simulation.recorder.runs) == 12
    assert store.totals().cycles == {("lab", "wall"): 1}
    assert end == store.end_cycle


def test_while_a_run_cannot_be_stored_the_status_says_why_and_the_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulate(tmp_path)
    real, errors = simulation.results.keep, [StoreError("the database is locked")]
    seen: list[tuple[State, str]] = []

    def keep(run: Run) -> bool:
        if errors:
            raise errors.pop()
        seen.append((simulation.worker.status.state, simulation.worker.status.fault))
        return real(run)

    monkeypatch.setattr(simulation.results, "keep", keep)
    simulation.worker.run()
    assert seen[0] == (State.ERROR, "the database is locked")
    assert all(not fault for _, fault in seen[1:])
    assert len(simulation.store.runs()) == len(seen) == 12


def test_a_fault_of_our_own_costs_one_run_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulate(tmp_path)
    real, calls = TOOLS["fio"].parse, iter([True])

    def parse(*args: object) -> object:
        if next(calls, False):
            raise KeyError("iops")
        return real(*args)  # type: ignore[arg-type] # handed through

    monkeypatch.setattr(TOOLS["fio"], "parse", parse)
    simulation.worker.run()
    failed = [run for run in simulation.recorder.runs if run.outcome is Outcome.FAILED]
    assert [run.reason for run in failed] == ["internal error: KeyError"]
    assert "Traceback" in failed[0].evidence["error"]
