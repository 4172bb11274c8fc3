"""Waiting, skipping, taking turns: a worker that behaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pvebench.drivers.clocks import SimulatedClock, SystemClock
from pvebench.drivers.proxmox.node.node_state import too_busy
from pvebench.drivers.proxmox.proxmox_settings import LimitSettings
from pvebench.errors import Interrupted
from pvebench.metrics.exposition import Families
from pvebench.model.ports import Guard, Hold, HoldKind, HostSnapshot, StorageFunctions
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.status import State
from pvebench.model.storage_use import Wear, WriteCost
from pvebench.model.units import MIB
from pvebench.model.week import QuietHours, parse_window
from pvebench.model.workload import Case
from pvebench.scheduler.guards import BudgetGuard, GuardChain, PauseGuard, QuietGuard, Turns
from pvebench.scheduler.pacing import WriteBudgets
from pvebench.service.publisher import collect_scheduler, collect_storages
from pvebench.store.state_directory import StateDirectory, pause_reason_of, stored_at
from pvebench.store.store import Store
from testing.captured_logs import captured_logs
from testing.families import families_of
from testing.faulty_node import Fault, Faults
from testing.packs import write_pack
from testing.simulations import Simulation, simulate

VIENNA = ZoneInfo("Europe/Vienna")


class Scripted:
    """A guard that does what it is told, and remembers what it was asked."""

    def __init__(self, *holds: Hold | None, disturbed: str = "") -> None:
        self.holds = list(holds)
        self.disturbed = disturbed
        self.calls: list[str] = []

    def enter(self, case: Case) -> Hold | None:
        self.calls.append("enter")
        return self.holds.pop(0) if self.holds else None

    def leave(self, case: Case) -> str:
        self.calls.append("leave")
        return self.disturbed


BUSY = Hold(kind=HoldKind.BUSY, reason="a backup runs", seconds=7.0)


def guarded(directory: Path, *guards: Guard, cycles: int | None = 1) -> Simulation:
    return simulate(directory, pack=write_pack(directory), cycles=cycles, guards=lambda *_: guards)


def test_a_held_case_waits_shows_why_and_runs_later(tmp_path: Path) -> None:
    simulation = guarded(tmp_path, Scripted(BUSY))
    worker = simulation.worker
    worker.step()
    assert worker.step() == 7.0
    assert (worker.status.state, worker.status.hold) == (State.PAUSED, BUSY)
    families = Families()
    collect_scheduler([worker.status], families)
    (hold,) = [f for f in families_of(families) if f.name == "pvebench_scheduler_hold"]
    assert hold.samples[0].labels == {"node": "lab", "reason": "busy"}
    worker.run()
    assert worker.status.hold is None
    assert [run.outcome for run in simulation.recorder.runs] == [Outcome.OK, Outcome.OK]


def test_a_wait_for_another_instance_is_logged_once_at_the_default_level(tmp_path: Path) -> None:
    claims = [
        replace(BUSY, reason=f"another pvebench measures (its claim ends at 10:0{minute})")
        for minute in range(4)
    ]
    simulation = guarded(tmp_path, Scripted(*claims))
    with captured_logs() as logs:
        simulation.worker.step()
        for claim in claims:
            simulation.worker.step()
            assert simulation.worker.status.hold == claim
    waits = [(entry["log_level"], entry["reason"]) for entry in logs if entry["event"] == "waiting"]
    assert waits == [("warning", claims[0].reason)]


def test_a_case_for_which_waiting_is_no_use_is_recorded_as_skipped(tmp_path: Path) -> None:
    away = Hold(kind=HoldKind.AWAY, reason="node lab is offline", skip=True)
    simulation = guarded(tmp_path, Scripted(away))
    simulation.worker.run()
    skipped, good = simulation.store.runs()[::-1]
    assert (skipped.outcome, skipped.reason) == (Outcome.SKIPPED, "node lab is offline")
    assert good.outcome is Outcome.OK


def test_a_skipped_case_comes_back_by_its_back_off(tmp_path: Path) -> None:
    away = Hold(kind=HoldKind.AWAY, reason="away", skip=True)
    simulation = guarded(tmp_path, Scripted(away, away), cycles=None)
    waits = [simulation.worker.step() for _ in range(4)]
    assert waits[:3] == [0.0, 0.0, 0.0]
    assert waits[3] == pytest.approx(60.0, abs=1.0)


@pytest.mark.parametrize("known", [{}, {"disturbed": 0.0}, {"disturbed": 1.0}])
def test_whether_a_run_was_disturbed_is_kept_with_it_where_it_is_known(
    tmp_path: Path, known: dict[str, float]
) -> None:
    simulation = guarded(tmp_path, Scripted())
    worker = simulation.worker
    worker._site = replace(worker._site, storages=StorageFunctions(seen={"local": known}))
    worker.run()
    for run in simulation.recorder.runs:
        found = {one.metric: one.value for one in run.samples if one.metric == "disturbed"}
        assert found == known


def test_a_run_that_was_disturbed_is_noisy_with_the_reason_and_keeps_its_numbers(
    tmp_path: Path,
) -> None:
    simulation = guarded(tmp_path, Scripted(disturbed="a backup runs on pve1"))
    simulation.worker.run()
    for run in simulation.store.runs():
        assert (run.outcome, run.reason) == (Outcome.NOISY, "a backup runs on pve1")
        assert run.samples


def test_a_failed_run_that_was_disturbed_stays_failed_with_its_own_reason(tmp_path: Path) -> None:
    simulation = guarded(tmp_path, Scripted(disturbed="a backup runs on pve1"))
    simulation.world.faults = Faults(1, {Fault.TOOL_FAILS: 1.0})
    simulation.worker.run()
    runs = simulation.recorder.runs
    assert runs
    for run in runs:
        assert run.outcome is Outcome.FAILED
        assert "the tool failed" in run.reason
        assert "backup" not in run.reason


def test_a_guard_that_let_pass_is_reported_when_a_later_one_objects() -> None:
    first, second, third = Scripted(), Scripted(BUSY), Scripted()
    assert GuardChain([first, second, third]).enter(None) == BUSY  # type: ignore[arg-type] # not looked at
    assert (first.calls, second.calls, third.calls) == (["enter", "leave"], ["enter"], [])


def test_a_stop_while_guards_look_back_loses_no_finished_run(tmp_path: Path) -> None:
    class Stopped(Scripted):
        def leave(self, case: Case) -> str:
            super().leave(case)
            raise Interrupted("stopped by the user")

    first, second = Scripted(), Stopped()
    simulation = guarded(tmp_path, first, second)
    simulation.worker.step()
    simulation.worker.step()
    assert len(simulation.store.runs()) == 1
    assert first.calls == second.calls == ["enter", "leave"]


def test_a_pause_lasts_until_it_is_ended(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state", exclusive=False)
    simulation = guarded(tmp_path, PauseGuard(partial(pause_reason_of, state.path)))
    state.pause("moving house")
    simulation.worker.step()
    for _ in range(3):
        assert simulation.worker.step() > 0
    hold = simulation.worker.status.hold
    assert hold is not None
    assert (hold.kind, hold.reason) == (HoldKind.PAUSED, "moving house")
    assert state.resume()
    assert not state.resume()
    simulation.worker.run()
    assert len(simulation.recorder.runs) == 2


@pytest.mark.parametrize(
    ("window", "at", "until"),
    [
        ("22:00-06:00", "2026-03-02 23:10", "06:00"),
        ("22:00-06:00", "2026-03-03 05:59", "06:00"),
        ("22:00-06:00", "2026-03-03 06:00", None),
        ("Mon-Fri 08:00-18:00", "2026-03-06 17:00", "18:00"),
        ("Mon-Fri 08:00-18:00", "2026-03-07 17:00", None),
        ("Sat-Mon 08:00-18:00", "2026-03-08 17:00", "18:00"),
        ("Sun 23:00-01:00", "2026-03-09 00:30", "01:00"),
        ("Sun 00:00-24:00", "2026-03-08 23:59", "00:00"),
        # 02:00 to 03:00 comes twice on 2026-10-25, and not at all on 2026-03-29.
        ("22:00-02:40", "2026-10-25 00:10+00:00", "02:40"),
        ("22:00-02:40", "2026-10-25 01:10+00:00", "02:40"),
        ("22:00-02:40", "2026-10-25 01:39+00:00", "02:40"),
        ("22:00-02:40", "2026-10-25 01:40+00:00", None),
        ("02:30-03:10", "2026-10-25 01:10+00:00", "03:10"),
        ("22:00-02:40", "2026-03-29 00:59+00:00", "03:40"),
    ],
)
def test_quiet_hours_are_those_of_their_zone(window: str, at: str, until: str | None) -> None:
    hours = QuietHours((parse_window(window),), VIENNA)
    moment = datetime.fromisoformat(at)
    moment = (moment if moment.tzinfo else moment.replace(tzinfo=VIENNA)).astimezone(UTC)
    end = hours.end_after(moment)
    assert (f"{end:%H:%M}" if end else None) == until
    assert end is None or end.astimezone(UTC) > moment


@pytest.mark.parametrize("text", ["22-6", "Xyz 22:00-06:00", "25:00-26:00", "22:00", "Mon-Fri"])
def test_what_is_no_window_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 22:00-06:00"):
        parse_window(text)


def test_nothing_runs_in_quiet_hours_and_it_goes_on_after_them(tmp_path: Path) -> None:
    hours = QuietHours((parse_window("00:00-06:00"),), VIENNA)

    def guards(clock: SimulatedClock, _: Store) -> Sequence[Guard]:
        return [QuietGuard(hours, clock)]

    start = datetime(2026, 3, 2, 3, 30, tzinfo=VIENNA)
    simulation = simulate(tmp_path, pack=write_pack(tmp_path), guards=guards, start=start)
    simulation.worker.run()
    first = min(run.started for run in simulation.recorder.runs).astimezone(VIENNA)
    assert f"{first:%H:%M}" == "06:00"


def test_turns_go_to_who_asked_first_and_not_to_who_went_away() -> None:
    now = 0.0
    turns = Turns(lambda: now)
    assert turns.take("share", "a") == ""
    assert turns.take("share", "b") == "a"
    assert turns.take("share", "c") == "a"
    turns.give_back("share", "a")
    assert turns.take("share", "a") == "b"
    assert turns.take("share", "b") == ""
    turns.give_back("share", "b")
    assert turns.take("share", "a") == "c"
    now = 60.0
    assert turns.take("share", "a") == ""


def test_a_turn_can_be_given_back_by_its_holder_only() -> None:
    turns = Turns(lambda: 0.0)
    turns.take("share", "a")
    turns.give_back("share", "b")
    assert turns.take("share", "b") == "a"


def budget(limit: int) -> Callable[[SimulatedClock, Store], Sequence[Guard]]:
    def guards(clock: SimulatedClock, store: Store) -> Sequence[Guard]:
        written: Callable[[str], int] = lambda name: store.written_bytes(name, clock.now())  # noqa: E731 # short
        return [BudgetGuard({"local": limit}, written)]

    return guards


def test_what_a_run_writes_is_counted_and_a_used_up_budget_skips(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path), guards=budget(2 * MIB))
    simulation.worker.run()
    first, second = simulation.recorder.runs
    assert first.outcome is Outcome.OK
    assert first.written_bytes > 2 * MIB
    assert second.outcome is Outcome.SKIPPED
    assert "write budget of local" in second.reason
    now = simulation.world.clock.now()
    written = simulation.store.written_bytes("local", now)
    assert written == first.written_bytes
    assert simulation.store.written_bytes("local", now, node="other") == 0
    assert simulation.store.written_bytes("local", now.replace(year=2040)) == 0
    assert simulation.store.written_bytes("local", now + timedelta(hours=23)) == written
    assert simulation.store.written_bytes("local", now + timedelta(hours=25)) == 0
    # A skipped run wrote nothing, and is no run to take a mean of.
    assert simulation.store.writes() == ({("lab", "local"): written}, {})
    with stored_at(simulation.store.path) as stored, stored_at(tmp_path / "none.db") as none:
        assert none is None
        assert stored is not None
        assert stored.writes() == ({("lab", "local"): written}, {})
    assert "written" not in str(simulation.store.totals().bytes)


def test_a_failed_run_counts_its_bytes_but_is_no_run_of_the_mean(tmp_path: Path) -> None:
    """A run that fails after the fill has not written what a successful one does."""
    simulation = simulate(tmp_path, pack=write_pack(tmp_path))
    simulation.worker.run()
    store, done = simulation.store, simulation.recorder.runs
    written = sum(run.written_bytes for run in done)
    failed = replace(done[0], outcome=Outcome.INVALID, samples=(), written_bytes=100)
    store.add_run(replace(failed, uid="failed"))
    assert store.writes() == ({("lab", "local"): written / len(done)}, {})
    assert store.written_bytes("local", simulation.world.clock.now()) == written + 100


def test_failed_runs_alone_have_no_mean(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path), faults={Fault.TOOL_FAILS: 1.0})
    simulation.worker.run()
    assert not any(run.outcome.good for run in simulation.recorder.runs)
    assert simulation.store.writes() == ({}, {})


def test_the_wear_of_the_newest_run_that_has_it_counts(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path))
    simulation.worker.run()
    done = simulation.recorder.runs[0]
    for number, wear in enumerate((0.3, 0.31, None)):
        samples = [] if wear is None else [Sample("disk_wear", None, wear, Unit.RATIO)]
        run = replace(done, uid=f"again-{number}", samples=(*done.samples, *samples))
        simulation.store.add_run(run)
    with stored_at(simulation.store.path) as stored:
        assert stored is not None
        assert stored.writes()[1] == {("lab", "local"): Wear(0.31)}


def test_budgets_and_space_are_on_the_page() -> None:
    families = Families()
    storage = SimpleNamespace(holds=SimpleNamespace(name="rbd"), shared=True, floor_bytes=3)
    guards: Any = SimpleNamespace(
        clock=SystemClock(),
        settings=SimpleNamespace(measured_nodes=lambda: ["pve1"]),
        measured={"pve1": {"local": storage}}.get,
        budgets=WriteBudgets(limits={("pve1", "local"): 10}),
        counted=lambda *_: 9,
        store=SimpleNamespace(written_bytes=lambda *_, **__: 5),
        free={},
    )
    wear = Wear(0.5, 365 * 70)
    cost = WriteCost(node="pve1", storage="local", cycle_bytes=1, day_bytes=7, wear=wear)
    collect_storages(guards, [cost], families)
    assert {family.name: family.samples[0].value for family in families_of(families)} == {
        "pvebench_storage_info": 1.0,
        "pvebench_write_budget_used_ratio": 0.9,
        "pvebench_day_written_bytes": 5.0,
        "pvebench_planned_day_write_bytes": 7.0,
        "pvebench_drive_wear_ratio": 0.5,
        "pvebench_planned_year_wear_ratio": 0.05,
        "pvebench_write_budget_bytes": 10.0,
        "pvebench_storage_min_free_bytes": 3.0,
    }


def snapshot(at: float, cpu: float, waited: float) -> HostSnapshot:
    return HostSnapshot(
        monotonic=at, cpu_seconds={"total": cpu}, cpus=4, pressure_seconds={"io_some": waited}
    )


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (LimitSettings(), ""),
        (LimitSettings(cpu=0.5), ""),
        (LimitSettings(cpu=0.2), "host CPU utilization 38% exceeds 20%"),
        (LimitSettings(io_pressure=0.3), ""),
        (LimitSettings(io_pressure=0.1), "host I/O pressure 25% exceeds 10%"),
    ],
)
def test_a_host_above_its_limits_is_busy(limits: LimitSettings, text: str) -> None:
    assert too_busy(snapshot(0, 10, 5), snapshot(2, 13, 5.5), limits) == text


def test_a_pressure_that_an_idle_host_shows_names_its_cause_and_the_remedy() -> None:
    text = too_busy(snapshot(0, 0, 0), snapshot(2, 0.02, 2), LimitSettings(io_pressure=0.2))
    assert text.startswith("host I/O pressure 100% exceeds 20%; if its disks are idle, io_uring")
    assert text.endswith("or raise limits.io_pressure")


def test_what_cannot_be_known_is_not_too_much() -> None:
    nothing = HostSnapshot(monotonic=2.0, cpu_seconds={})
    limits = LimitSettings(cpu=0.1, io_pressure=0.1)
    assert too_busy(snapshot(0, 1, 1), nothing, limits) == ""
    assert too_busy(nothing, snapshot(4, 1, 1), limits) == ""
