"""The read model: what it is told run by run is what a new start reads from the database."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sqlalchemy import event

from pvebench.analysis.verdict import VerdictState
from pvebench.config import Settings
from pvebench.errors import StoreError
from pvebench.metrics.exposition import Families
from pvebench.metrics.result_collectors import Snapshot, collect_environments
from pvebench.model.definition import Definition
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Direction
from pvebench.report.table import result_rows
from pvebench.service.housekeeping import DatabaseMaintenance
from pvebench.store.changes import DefinitionChange
from pvebench.store.live_results import LiveResults, PlannedCase
from pvebench.store.records import StoredRun
from pvebench.store.store import Store
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.api import results_data
from pvebench.web.views import case_url
from pvebench.web.views.pages import case_view, index_view
from pvebench_lab.cli.past_metrics import Period, first_moment, write_past
from testing.families import families_of
from testing.packs import quick
from testing.simulated_site import lively
from testing.stored_runs import ended
from testing.stores import TemporaryStore

START = datetime(2026, 5, 1, tzinfo=UTC)
OLD, NEW = (
    Environment(node="lab", facts={"kernel": kernel, "accel": "kvm"}) for kernel in ("6.8", "6.11")
)
CASE = quick()[1].cases[0]
LARGER = replace(CASE, scenario=replace(CASE.scenario, volume_bytes=512 * MIB))
SCALED = replace(CASE, scale=0.5)
_numbers = itertools.count()


def run(
    case: Case = CASE,
    *,
    hour: float = 0.0,
    iops: float = 1000.0,
    environment: Environment = OLD,
    outcome: Outcome = Outcome.OK,
) -> Run:
    samples = (
        Sample("iops", Direction.READ, iops, Unit.IOPS),
        Sample("bytes", Direction.READ, 4096.0, Unit.BYTES),
    )
    return ended(
        case,
        START + timedelta(hours=hour),
        *(samples if outcome.good else ()),
        uid=f"r{next(_numbers)}",
        environment=environment,
        outcome=outcome,
        reason="" if outcome is Outcome.OK else "why",
    )


def planned(case: Case) -> PlannedCase:
    return PlannedCase(key=case.key, definition=Definition.of(case), every_seconds=3600.0)


def test_what_was_reported_run_by_run_is_what_a_new_start_reads(tmp_path: Path) -> None:
    simulation = lively(tmp_path, upgrade=30, end=60)
    told, read = simulation.results.now, LiveResults(simulation.store).now
    assert len(told.cases) == 12
    assert told.cases == read.cases
    assert {key: one.points for key, one in told.trends.items()} == {
        key: one.points for key, one in read.trends.items()
    }
    assert [one.uid for one in told.failures] == [one.uid for one in read.failures] != []
    assert told.periods == read.periods
    assert len(told.periods) == 2
    assert (told.totals, told.version) == (read.totals, read.version)
    assert simulation.results.period_runs("lab") == LiveResults(simulation.store).period_runs("lab")


def test_a_history_that_is_written_at_once_reads_like_one_reported_run_by_run(
    store: Store, tmp_path: Path
) -> None:
    runs = [
        run(CASE, hour=hour, environment=NEW if hour in (3, 4) else OLD, outcome=outcome)
        for hour, outcome in enumerate(
            (Outcome.OK, Outcome.FAILED, Outcome.NOISY, Outcome.OK, Outcome.OK, Outcome.OK)
        )
    ]
    results = LiveResults(store)
    for one in runs:
        results.keep(one)
    other = TemporaryStore(tmp_path / "other.db", simulated=False)
    other.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    other.add_history(runs)
    assert LiveResults(other).now.cases == results.now.cases
    assert LiveResults(other).now.periods == results.now.periods
    assert other.totals() == store.totals() == results.now.totals
    assert other.environments() == store.environments()
    assert len(other.environments()) == 2


def test_storing_a_run_twice_changes_nothing_and_notifies_no_one(store: Store) -> None:
    results, told = LiveResults(store), list[StoredRun | None]()
    results.listen(told.append)
    one = run()
    results.keep(one)
    before = results.now
    results.keep(one)
    assert results.now is before
    assert [one and one.case_key for one in told] == [CASE.key]


def test_of_two_workers_none_is_lost_whichever_is_notified_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, stored, told = LiveResults(store), threading.Event(), threading.Event()
    real = store.add_run

    def slow(one: Run) -> StoredRun:
        stored_run = real(one)
        if threading.current_thread().name == "slow":
            stored.set()
            told.wait(0.5)  # long enough for the other worker to overtake, if it can
        return stored_run

    monkeypatch.setattr(store, "add_run", slow)
    worker = threading.Thread(target=results.keep, args=(run(CASE),), name="slow")
    worker.start()
    assert stored.wait(10)
    results.keep(run(LARGER, hour=1))
    told.set()
    worker.join(10)
    assert set(results.now.cases) == {CASE.key, LARGER.key}
    assert results.now.version == 2


def test_the_totals_in_memory_are_those_of_a_new_start(store: Store) -> None:
    results = LiveResults(store)
    for hour, way in enumerate((Direction.READ, Direction.WRITE, Direction.READ)):
        moved = Sample("bytes", way, 4096.0 * (hour + 1), Unit.BYTES)
        results.keep(replace(run(hour=hour), samples=(moved,)))
    for _ in range(2):
        results.end_cycle("c1")
    assert results.now.totals == LiveResults(store).now.totals
    assert set(results.now.totals.bytes.values()) == {4 * 4096.0, 2 * 4096.0}
    assert [*results.now.totals.cycles.values()] == [1]


def test_the_ten_newest_failures_and_the_trend_of_thirty_runs_are_shown(store: Store) -> None:
    results = LiveResults(store)
    failed = [run(hour=hour, outcome=Outcome.FAILED) for hour in range(12)]
    for each in (*failed, *(run(hour=hour, iops=1000.0 + hour) for hour in range(12, 45))):
        results.keep(each)
    for shown in (results.now, LiveResults(store).now):
        assert [each.uid for each in shown.failures] == [each.uid for each in failed[:1:-1]]
        (trend,) = shown.trends.values()
        assert [each.value for each in trend.points] == [1000.0 + hour for hour in range(15, 45)]


def test_nothing_is_read_back_of_what_was_stored(store: Store) -> None:
    results, page = LiveResults(store), list[str]()
    results.keep(run())
    engine = store._engine
    event.listen(engine, "before_cursor_execute", lambda *given: page.append(str(given[2])))
    results.keep(run(hour=1))
    tables = ("FROM samples", "FROM totals", "FROM cycles")
    assert not [one for one in page if one.startswith("SELECT") and any(t in one for t in tables)]


def test_with_a_clock_set_back_memory_and_a_new_start_agree_on_the_newest_run(store: Store) -> None:
    results = LiveResults(store)
    for hour in (24 * 365, 0, 1):
        results.keep(run(hour=hour))
    assert LiveResults(store).now.cases == results.now.cases
    assert results.now.cases[CASE.key].last.number == 3
    store.prune(START + timedelta(days=400), evidence_seconds=86400, runs_seconds=86400)
    assert store.newest_run() == 3


def test_looking_for_old_runs_survives_a_database_that_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise StoreError("locked")

    results = LiveResults(store)
    monkeypatch.setattr(results, "recount", broken)
    DatabaseMaintenance(results, Settings, lambda: START).check()


def test_a_case_that_writes_no_more_has_no_current_row_for_writing(store: Store) -> None:
    both = replace(CASE.workload, directions=(Direction.READ, Direction.WRITE))
    earlier = replace(CASE, workload=replace(both, parameters={**both.parameters, "rwmix": 50}))
    results = LiveResults(store)
    results.keep(run(earlier))
    results.keep(run(CASE, hour=1))
    rows = result_rows(store.runs())
    assert {(str(row["direction"]), row.current) for row in rows} == {
        ("read", True),
        ("read", False),
        ("write", False),
    }


def test_a_listener_that_fails_keeps_no_other_from_hearing(store: Store) -> None:
    def broken(_: StoredRun | None) -> None:
        raise ZeroDivisionError

    results, told = LiveResults(store), list[StoredRun | None]()
    results.listen(broken)
    results.listen(told.append)
    results.keep(run())
    assert [one and one.case_key for one in told] == [CASE.key]


def test_going_back_to_an_earlier_kernel_is_a_new_episode_and_an_event(store: Store) -> None:
    results = LiveResults(store)
    begins = [
        results.keep(run(hour=hour, environment=environment))
        for hour, environment in enumerate((OLD, OLD, NEW, NEW, OLD, OLD))
    ]
    assert begins == [False, False, True, False, True, False]
    assert [(one.slug.split("/")[0], one.started.hour) for one in results.now.periods] == [
        ("6.8", 0),
        ("6.11", 2),
        ("6.8", 4),
    ]
    families = Families()
    collect_environments(Snapshot(now=START, records=[], view=results.now), families)
    found = {family.name: family.samples for family in families_of(families)}
    changes = found["pvebench_environment_change_info"]
    assert [(one.labels["before"], one.labels["after"]) for one in changes] == [
        ("6.8", "6.11"),
        ("6.11", "6.8"),
    ]
    starts = {
        one.labels["kernel_version"]: one.value
        for one in found["pvebench_environment_start_timestamp_seconds"]
    }
    assert starts["6.8"] == (START + timedelta(hours=4)).timestamp()


def test_a_clock_that_is_set_back_shortens_no_episode(store: Store) -> None:
    results = LiveResults(store)
    for hour in (0, 5, 2):
        results.keep(run(hour=hour))
    (period,) = results.now.periods
    assert [period] == store.periods()
    assert period.finished > START + timedelta(hours=5)


def test_a_run_whose_vm_did_not_start_begins_no_episode(store: Store) -> None:
    results = LiveResults(store)
    half = Environment(node="lab", facts={"kernel": "6.8"})
    for hour, (environment, outcome) in enumerate(
        ((OLD, Outcome.OK), (half, Outcome.FAILED), (OLD, Outcome.OK))
    ):
        results.keep(run(hour=hour, environment=environment, outcome=outcome))
    assert len(results.now.periods) == 1


def redefined(store: Store) -> LiveResults:
    """Return results in which a case got another volume after three runs."""
    results = LiveResults(store)
    for hour in range(3):
        results.keep(run(CASE, hour=hour, iops=1000.0))
    for hour in range(3, 6):
        results.keep(run(LARGER, hour=hour, iops=400.0))
    return results


def test_an_edited_volume_is_reported_with_the_moment_and_both_values(store: Store) -> None:
    results = redefined(store)
    (change,) = results.now.definition_changes()
    assert change.text == (
        f"the definition of {CASE.slug} on lab changed at 2026-05-01 03:00 UTC: "
        "volume_bytes 256M → 512M; earlier runs (3) are not compared"
    )
    shown = index_view(results.now, [], START + timedelta(hours=7))
    assert shown.redefined == [change.text]
    earlier, present = (case_view(store, results.now, case.key, START) for case in (CASE, LARGER))
    assert earlier is not None
    assert present is not None
    assert (earlier.replaced_by, earlier.meant) == (case_url(LARGER.key), "")
    assert (present.replaced_by, present.meant) == ("", change.text)
    assert sum(cell is not None for t in shown.tables for r in t.rows for cell in r.cells) == 1


def test_what_is_planned_is_in_effect_whatever_was_measured_last(store: Store) -> None:
    redefined(store)
    place = Definition.of(CASE).place
    assert LiveResults(store).now.current()[place] == LARGER.key
    assert LiveResults(store, [planned(CASE)]).now.current()[place] == CASE.key


def test_the_verdict_compares_no_runs_of_different_definitions(store: Store) -> None:
    results = LiveResults(store)
    for hour in range(40):
        case, iops = (CASE, 1000.0) if hour < 20 else (LARGER, 400.0)
        environment = OLD if hour < 20 else NEW
        results.keep(run(case, hour=hour, iops=iops, environment=environment))
    verdicts = VerdictService(results, ()).judge()
    assert {one.history.of for one in verdicts.verdicts} == {LARGER.key}
    assert not verdicts.regressions
    assert [one.key for one in verdicts.definition_changes] == [LARGER.key]


def test_an_export_keeps_definitions_apart(store: Store) -> None:
    results, text = redefined(store), StringIO()
    window = Period(
        start=first_moment(results), end=(START + timedelta(hours=6)).timestamp(), step=600.0
    )
    write_past(results, Settings(), window, text)
    families = {one.name: one for one in text_string_to_metric_families(text.getvalue())}
    found = {
        (one.labels.get("definition", ""), one.value) for one in families["pvebench_iops"].samples
    }
    assert found == {(CASE.fingerprint, 1000.0), ("", 400.0)}


def test_an_export_says_what_a_scenario_is_from_its_first_run_on(store: Store) -> None:
    results, text = LiveResults(store), StringIO()
    for hour in range(30):
        results.keep(run(CASE, hour=hour))
    first = first_moment(results)
    window = Period(start=first, end=(START + timedelta(hours=30)).timestamp(), step=600.0)
    write_past(results, Settings(), window, text)
    families = {one.name: one for one in text_string_to_metric_families(text.getvalue())}
    moments = [one.timestamp for one in families["pvebench_scenario_info"].samples]
    assert [float(one) for one in moments[:2]] == [first, first + 600.0]
    assert len(moments) > 29 * 6


def test_a_scaled_run_is_marked_and_never_meets_the_others(store: Store) -> None:
    results = LiveResults(store)
    results.keep(run(SCALED, hour=0, iops=5000.0))
    results.keep(run(CASE, hour=1))
    assert SCALED.key != CASE.key
    view = results.now
    assert view.current() == {Definition.of(CASE).place: CASE.key}
    assert view.definition_changes() == ()
    assert view.cases[SCALED.key].definition.scale == 0.5
    by_key = {one.case_key: one for one in results_data(view, START).results}
    assert by_key[SCALED.key].scale == 0.5
    assert by_key[CASE.key].scale == 1.0


def test_a_guest_is_compared_only_with_a_host_row_of_the_same_conditions(store: Store) -> None:
    host = Disk(bus=Bus.HOST, format=Format.RAW, cache=Cache.NONE)
    own = replace(CASE, scenario=replace(CASE.scenario, disk=host))
    results = LiveResults(store)
    results.keep(run(own, iops=7000.0))
    soon = START + timedelta(days=6, hours=23)
    assert results.host_rates(CASE, soon) == {Direction.READ: 7000.0}
    assert results.host_rates(LARGER, soon) == {}
    assert results.host_rates(SCALED, soon) == {}
    assert results.host_rates(CASE, soon + timedelta(hours=2)) == {}


def states_after(store: Store, outcomes: list[Outcome]) -> set[VerdictState]:
    results = LiveResults(store)
    for day, outcome in enumerate(outcomes):
        results.keep(run(hour=24 * day, iops=1000.0 + day % 3, outcome=outcome))
    return {one.state for one in VerdictService(results, ()).judge().verdicts}


@pytest.mark.parametrize("outcome", [Outcome.NOISY, Outcome.NOT_STEADY])
def test_runs_that_are_good_only_with_a_reason_are_never_a_baseline_alone(
    store: Store, outcome: Outcome
) -> None:
    assert states_after(store, [*[outcome] * 40, *[Outcome.OK] * 3]) == {VerdictState.INCONCLUSIVE}


def test_beside_enough_ok_runs_a_noisy_one_counts(store: Store) -> None:
    states = states_after(store, [*[Outcome.OK] * 20, *[Outcome.NOISY] * 10, *[Outcome.OK] * 10])
    assert VerdictState.INCONCLUSIVE not in states


@pytest.mark.parametrize("size", ["²", "9" * 5000])
def test_a_size_of_a_definition_that_is_no_number_is_shown_as_it_is(size: str) -> None:
    now = Definition.of(CASE)
    before = replace(now, options={**now.options, "volume_bytes": size})
    change = DefinitionChange(key="", at=START, before=before, now=now, earlier_runs=1)
    assert f"volume_bytes {size} → " in change.text
