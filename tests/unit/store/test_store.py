from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from pvebench.errors import AlreadyRunning, NotWritable, StoreError, StoreMixed, StoreUnavailable
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Direction
from pvebench.store.state_directory import StateDirectory, holder_of
from pvebench.store.store import Store
from pvebench.store.tables import SCHEMA
from pvebench.store.writing import ReplacedRun
from testing.packs import quick
from testing.stored_runs import ended
from testing.stores import TemporaryStore

START = datetime(2026, 5, 1, tzinfo=UTC)
ENVIRONMENT = Environment(node="lab", facts={"kernel": "6.8.12", "qemu": "9.2.0", "accel": "kvm"})


def run(uid: str, *, outcome: Outcome = Outcome.OK, minutes: int = 0) -> Run:
    case = quick()[1].cases[0]
    good = outcome is Outcome.OK
    samples = (
        Sample("iops", Direction.READ, 1000.0, Unit.IOPS),
        Sample("bytes", Direction.READ, 4096.0, Unit.BYTES),
        Sample("host_cpu", None, 0.5, Unit.CORES, "qemu"),
    )
    return ended(
        case,
        START + timedelta(minutes=minutes),
        *(samples if good else ()),
        uid=uid,
        environment=ENVIRONMENT,
        outcome=outcome,
        reason="" if good else "why",
        evidence={"output": '{"jobs": []}', "note": "Grüße"},
    )


def test_a_run_comes_back_as_it_was_stored(store: Store) -> None:
    number = store.add_run(run("a")).number
    found = store.run(number)
    assert found is not None
    assert (found.uid, found.outcome, found.started) == ("a", Outcome.OK, START)
    assert set(found.samples) == set(run("a").samples)
    assert store.evidence(number) == {"output": '{"jobs": []}', "note": "Grüße"}
    assert found.definition.bus == run("a").case.scenario.disk.bus


def test_the_same_run_is_stored_once(store: Store) -> None:
    assert store.add_run(run("a")) == store.add_run(run("a"))
    assert len(store.runs()) == 1
    assert store.totals().bytes == {("lab", "local", "read"): 4096.0}


def test_a_run_that_cannot_be_stored_whole_leaves_nothing(store: Store) -> None:
    (first, *_) = run("a").samples
    store.add_run(run("a"))
    with pytest.raises(IntegrityError):
        store.add_run(replace(run("b", minutes=1), samples=(first, first)))
    assert [found.uid for found in store.runs()] == ["a"]
    assert [record.last.uid for record in store.cases().values()] == ["a"]


def test_runs_survive_a_new_opening(store: Store) -> None:
    store.add_run(run("a"))
    store.close()
    assert [found.uid for found in TemporaryStore(store.path).runs()] == ["a"]


def test_a_case_knows_its_last_good_run_and_the_failures_since(store: Store) -> None:
    key = run("a").case.key
    assert store.cases() == {}
    store.add_run(run("a"))
    store.add_run(run("b", outcome=Outcome.FAILED, minutes=1))
    store.add_run(run("c", outcome=Outcome.INVALID, minutes=2))
    record = store.cases()[key]
    assert record.good is not None
    assert (record.good.uid, record.last.uid, record.failures_in_row) == ("a", "c", 2)
    assert record.outcomes == {Outcome.OK: 1, Outcome.FAILED: 1, Outcome.INVALID: 1}


def test_simulated_results_are_refused_in_a_store_of_measured_ones(store: Store) -> None:
    with pytest.raises(StoreMixed, match="has measured results and accepts no simulated ones"):
        TemporaryStore(store.path, simulated=True)


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 9999")


def foreign(path: Path, version: int = 0) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url)")
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (newer, f"has schema 9999, this pvebench supports up to {SCHEMA}"),
        (foreign, "is a database of unknown origin"),
        (lambda path: foreign(path, SCHEMA), "is a database of unknown origin"),
    ],
)
def test_a_database_that_is_not_of_this_pvebench_is_left_alone(
    store: Store, change: Callable[[Path], None], problem: str
) -> None:
    store.close()
    change(store.path)
    with closing(sqlite3.connect(store.path)) as connection:
        before = [*connection.iterdump()]
        with pytest.raises(StoreError, match=problem):
            TemporaryStore(store.path)
        assert [*connection.iterdump()] == before


def damaged(path: Path) -> None:
    path.write_bytes(b"this is not a database, only text that is long enough" * 20)


@pytest.mark.parametrize("change", [newer, foreign, damaged, lambda _: None])
def test_a_database_that_is_rejected_is_not_kept_open(
    store: Store, change: Callable[[Path], None]
) -> None:
    store.close()
    change(store.path)
    with pytest.raises(StoreError) as rejected:
        TemporaryStore(store.path, simulated=True)
    files = Path("/proc/self/fd").iterdir()
    assert store.path not in {file.readlink() for file in files if file.is_symlink()}, (
        rejected.value
    )


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "pvebench.db"
    path.write_bytes(b"this is not a database, only text that is long enough" * 20)
    with pytest.raises(StoreError, match="is damaged: file is not a database"):
        TemporaryStore(path)


def test_a_second_instance_on_one_state_directory_is_refused(tmp_path: Path) -> None:
    with StateDirectory(tmp_path, exclusive=True):
        with pytest.raises(AlreadyRunning, match=r"state directory .* is in use by process \d+"):
            StateDirectory(tmp_path, exclusive=True)
        StateDirectory(tmp_path, exclusive=False)  # looking is allowed
    with StateDirectory(tmp_path, exclusive=True):
        pass


def test_one_that_asks_who_uses_a_state_directory_keeps_no_one_out(tmp_path: Path) -> None:
    StateDirectory(tmp_path, exclusive=True).close()
    asking = threading.Event()
    asking.set()

    def ask() -> None:
        while asking.is_set():
            holder_of(tmp_path)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(ask)
        try:
            for _ in range(300):
                StateDirectory(tmp_path, exclusive=True).close()
        finally:
            asking.clear()


def test_a_state_directory_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match=r"state directory .* cannot be written"):
        StateDirectory(tmp_path / "file" / "state", exclusive=True)


def test_a_trend_holds_the_last_good_runs_of_each_case_oldest_first(store: Store) -> None:
    for number in range(5):
        store.add_run(run(f"r{number}", minutes=number))
    store.add_run(run("bad", outcome=Outcome.FAILED, minutes=9))
    key = run("a").case.key
    points = store.trend([key, "unknown"], "iops", limit=3)
    assert [point.run for point in points[key]] == [3, 4, 5]
    assert {point.direction for point in points[key]} == {Direction.READ}
    assert {point.environment for point in points[key]} == {ENVIRONMENT.digest}
    assert set(points) == {key}
    assert store.trend([key], "nothing", limit=3) == {}


def test_the_newest_run_of_a_case_may_be_bad_and_the_newest_good_one_is_found_behind_it(
    store: Store,
) -> None:
    store.add_run(run("a"))
    store.add_run(run("b", outcome=Outcome.FAILED, minutes=1))
    key = run("a").case.key
    record = store.cases()[key]
    assert record.last.uid == "b"
    assert record.good is not None
    assert record.good.uid == "a"


def test_more_cases_than_a_statement_may_have_variables_are_no_obstacle(store: Store) -> None:
    store.add_run(run("a"))
    keys = [run("a").case.key, *(f"unknown {number}" for number in range(40_000))]
    assert len(store.trend(keys, "iops", limit=1)) == 1


def test_failures_are_what_is_not_ok_newest_first(store: Store) -> None:
    store.add_run(run("a"))
    store.add_run(run("b", outcome=Outcome.FAILED, minutes=1))
    store.add_run(run("c", outcome=Outcome.NOISY, minutes=2))
    assert [found.uid for found in store.runs(limit=5, not_ok=True)] == ["c", "b"]


@pytest.mark.parametrize("asked", [{"not_ok": True}, {"outcome": Outcome.FAILED}])
def test_failures_are_found_without_going_through_the_good_runs(
    store: Store, asked: dict[str, Any]
) -> None:
    """SQLite's own plan of the query, https://www.sqlite.org/eqp.html: there are years of them."""
    said: list[tuple[str, Any]] = []
    event.listen(
        store._engine, "before_cursor_execute", lambda *given: said.append((given[2], given[3]))
    )
    store.runs(**asked)
    query, values = next(one for one in said if "runs.outcome !=" in one[0])
    with closing(sqlite3.connect(store.path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert plan == ["SCAN runs USING INDEX runs_not_ok"]


def test_a_store_says_what_kind_of_results_it_holds(tmp_path: Path, store: Store) -> None:
    assert not store.simulated
    assert TemporaryStore(tmp_path / "other.db", simulated=True).simulated


def test_a_database_that_cannot_be_written_is_reported_and_undoing_goes_on(store: Store) -> None:
    number = store.journal.open("volume", {"path": "/nowhere"})
    locker = sqlite3.connect(store.path, isolation_level=None)
    store._engine.dispose()
    event.listen(store._engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout=10"))
    locker.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreUnavailable, match="cannot be written: database is locked"):
            store.begin_cycle("c2", node="lab", pack="p", tier="core", planned=1)
        store.journal.close(number)  # says so, and goes on
    finally:
        locker.close()
    assert [entry[0] for entry in store.journal.pending()] == [number]


def test_a_repaired_outcome_moves_the_newest_good_run_of_its_case(store: Store) -> None:
    good, worse = store.add_run(run("a")).number, store.add_run(run("b", minutes=1)).number
    (gone, *_) = run("b").samples
    new = Sample("clat_max", Direction.READ, 0.5, Unit.SECONDS)
    mended = ReplacedRun(
        number=worse, gone=(gone,), put=(new,), outcome=Outcome.IMPLAUSIBLE, reason="why"
    )
    for _ in range(2):  # again changes nothing
        store.correct([mended])
        (case,) = store.cases().values()
        assert case.good is not None
        assert (case.good.number, case.failures_in_row) == (good, 1)
        assert case.last.outcome is Outcome.IMPLAUSIBLE
        found = store.run(worse)
        assert found is not None
        assert set(found.samples) == {*run("b").samples, new} - {gone}
