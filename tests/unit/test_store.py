from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, func, select

from pvebench.errors import AlreadyRunning, NotWritable, StoreError, StoreMixed, StoreTooNew
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Direction
from pvebench.store import StateDirectory, Store
from pvebench.store.engine import open_engine
from pvebench.store.tables import journal, metadata
from support.packs import quick

START = datetime(2026, 5, 1, tzinfo=UTC)
ENVIRONMENT = Environment(node="lab", facts={"kernel": "6.8.12", "qemu": "9.2.0", "accel": "kvm"})


def run(uid: str, *, outcome: Outcome = Outcome.OK, minutes: int = 0) -> Run:
    case = quick()[1].cases[0]
    good = outcome is Outcome.OK
    return Run(
        uid=uid, case=case, environment=ENVIRONMENT, cycle="c1",
        started=START + timedelta(minutes=minutes),
        finished=START + timedelta(minutes=minutes, seconds=12),
        outcome=outcome, reason="" if good else "why",
        samples=(
            Sample("iops", Direction.READ, 1000.0, Unit.IOPS),
            Sample("bytes", Direction.READ, 4096.0, Unit.BYTES),
            Sample("host_cpu", None, 0.5, Unit.CORES, "qemu"),
        ) if good else (),
        evidence={"output": '{"jobs": []}', "note": "Grüße"},
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(tmp_path / "pvebench.db", simulated=False)
    opened.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    return opened


def test_a_run_comes_back_as_it_was_stored(store: Store) -> None:
    number = store.add_run(run("a"))
    found = store.run(number)
    assert found is not None
    assert (found.uid, found.outcome, found.started) == ("a", Outcome.OK, START)
    assert set(found.samples) == set(run("a").samples)
    assert store.evidence(number) == {"output": '{"jobs": []}', "note": "Grüße"}
    assert found.definition["labels"]["bus"] == run("a").case.scenario.disk.bus


def test_the_same_run_is_stored_once(store: Store) -> None:
    assert store.add_run(run("a")) == store.add_run(run("a"))
    assert len(store.recent()) == 1
    assert store.totals().bytes == {("lab", "local", "read"): 4096.0}


def test_runs_survive_a_new_opening(store: Store) -> None:
    store.add_run(run("a"))
    store.close()
    assert [found.uid for found in Store(store.path).recent()] == ["a"]


def test_a_case_knows_its_last_good_run_and_the_failures_since(store: Store) -> None:
    key = run("a").case.key
    assert store.case(key) is None
    store.add_run(run("a"))
    store.add_run(run("b", outcome=Outcome.FAILED, minutes=1))
    store.add_run(run("c", outcome=Outcome.INVALID, minutes=2))
    record = store.case(key)
    assert record is not None
    assert record.good is not None
    assert (record.good.uid, record.last.uid, record.failures_in_row) == ("a", "c", 2)
    assert record.outcomes == {Outcome.OK: 1, Outcome.FAILED: 1, Outcome.INVALID: 1}


def test_simulated_results_are_refused_in_a_store_of_measured_ones(store: Store) -> None:
    with pytest.raises(StoreMixed, match="holds measured results; simulated ones must not"):
        Store(store.path, simulated=True)


def test_a_database_of_a_newer_pvebench_is_left_alone(store: Store) -> None:
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = store.path.read_bytes()
    with pytest.raises(StoreTooNew, match="has layout 9999, which this pvebench does not know"):
        Store(store.path)
    assert store.path.read_bytes() == before


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "pvebench.db"
    path.write_bytes(b"this is not a database, only text that is long enough" * 20)
    with pytest.raises(StoreError, match="cannot be used as results database"):
        Store(path)


def test_migrations_and_tables_say_the_same(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "pvebench.db")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_database_from_before_passes_were_counted_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "pvebench.db"
    store = Store(path, simulated=False)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    store.add_run(run("a"))
    store.close()
    with sqlite3.connect(path) as older:  # as that version had left it
        older.execute("ALTER TABLE runs DROP COLUMN pass_number")
        older.execute("UPDATE alembic_version SET version_num = '0002'")
    older.close()
    (found,) = Store(path).recent()
    assert (found.uid, found.pass_number) == ("a", 0)


def test_the_journal_gives_open_changes_newest_first_also_after_a_new_opening(
    store: Store,
) -> None:
    first = store.journal.open("volume", {"path": "/a"})
    second = store.journal.open("vm", {"uuid": "u"})
    store.journal.close(store.journal.open("vm", {"uuid": "done"}))
    store.close()
    pending = Store(store.path).journal.pending()
    assert [(number, kind) for number, kind, _ in pending] == [(second, "vm"), (first, "volume")]


def test_a_second_instance_on_one_state_directory_is_refused(tmp_path: Path) -> None:
    with StateDirectory(tmp_path, exclusive=True):
        with pytest.raises(AlreadyRunning, match=r"another pvebench \(process \d+\) uses"):
            StateDirectory(tmp_path, exclusive=True)
        StateDirectory(tmp_path, exclusive=False)  # looking is allowed
    with StateDirectory(tmp_path, exclusive=True):
        pass


def test_a_state_directory_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match=r"state directory .* cannot be written"):
        StateDirectory(tmp_path / "file" / "state", exclusive=True)


def test_a_trend_holds_the_last_good_runs_of_each_case_oldest_first(store: Store) -> None:
    for number in range(5):
        store.add_run(run(f"r{number}", minutes=number))
    store.add_run(run("bad", outcome=Outcome.FAILED, minutes=9))
    key = run("a").case.key
    points = store.history.trend([key, "unknown"], "iops", limit=3)
    assert [point.run for point in points[key]] == [3, 4, 5]
    assert {point.direction for point in points[key]} == {Direction.READ}
    assert {point.environment for point in points[key]} == {ENVIRONMENT.digest}
    assert set(points) == {key}
    assert store.history.trend([key], "nothing", limit=3) == {}


def test_the_newest_run_of_a_case_may_be_bad_and_the_newest_good_one_is_found_behind_it(
    store: Store,
) -> None:
    store.add_run(run("a"))
    store.add_run(run("b", outcome=Outcome.FAILED, minutes=1))
    key = run("a").case.key
    assert store.history.newest([key])[key].uid == "b"
    assert store.history.newest([key], good=True)[key].uid == "a"


def test_changes_since_a_run_name_the_cases_and_the_newest_number(store: Store) -> None:
    assert store.history.changed(0) == (0, set())
    first = store.add_run(run("a"))
    key = run("a").case.key
    assert store.history.changed(0) == (first, {key})
    assert store.history.changed(first) == (first, set())


def test_more_cases_than_a_statement_may_have_variables_are_no_obstacle(store: Store) -> None:
    store.add_run(run("a"))
    keys = [run("a").case.key, *(f"unknown {number}" for number in range(40_000))]
    assert len(store.history.trend(keys, "iops", limit=1)) == 1


def test_failures_are_what_is_not_ok_newest_first(store: Store) -> None:
    store.add_run(run("a"))
    store.add_run(run("b", outcome=Outcome.FAILED, minutes=1))
    number = store.add_run(run("c", outcome=Outcome.NOISY, minutes=2))
    assert [found.uid for found in store.history.failures(limit=5)] == ["c", "b"]
    assert store.history.failures(after=number, limit=5) == []


def test_a_store_says_what_kind_of_results_it_holds(tmp_path: Path, store: Store) -> None:
    assert not store.simulated
    assert Store(tmp_path / "other.db", simulated=True).simulated


def test_a_database_that_cannot_be_written_is_told_and_undoing_goes_on(store: Store) -> None:
    number = store.journal.open("volume", {"path": "/nowhere"})
    locker = sqlite3.connect(store.path, isolation_level=None)
    store._engine.dispose()
    event.listen(store._engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout=10"))
    locker.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreError, match="cannot be written: database is locked"):
            store.begin_cycle("c2", node="lab", pack="p", tier="core", planned=1)
        store.journal.close(number)  # says so, and goes on
    finally:
        locker.close()
    assert [entry[0] for entry in store.journal.pending()] == [number]


def test_old_evidence_goes_before_old_runs_and_each_case_keeps_its_newest(store: Store) -> None:
    day = 24 * 60
    numbers = {
        uid: store.add_run(run(uid, minutes=days * day, outcome=outcome))
        for uid, days, outcome in (
            ("oldest", 0, Outcome.OK), ("old", 50, Outcome.OK), ("good", 80, Outcome.OK),
            ("bad", 81, Outcome.FAILED),
        )
    }  # fmt: skip
    store.journal.close(store.journal.open("volume", {"path": "/gone"}))
    now = START + timedelta(days=5000)
    assert store.prune(
        START + timedelta(days=100), evidence_seconds=30 * 86400, runs_seconds=80 * 86400
    ) == (2, 1)
    assert store.run(numbers["oldest"]) is None
    old = store.run(numbers["old"])
    assert old is not None
    assert old.samples
    assert store.evidence(numbers["old"]) == {}
    store.prune(now, evidence_seconds=86400, runs_seconds=86400)
    assert [one.uid for one in store.recent()] == ["bad", "good"]
    assert store.evidence(numbers["good"])
    with store._engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(journal)) == 0
