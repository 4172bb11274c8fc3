"""The numbers of runs are those of their samples, whatever pvebench does to them in between.

What the samples have is read with Python's sqlite3 alone.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from pvebench.analysis.case_history import GoodRun
from pvebench.errors import StoreError, StoreLost
from pvebench.model.run import Outcome, Run
from pvebench.model.run_metrics import NUMBERS, Number
from pvebench.store.backups import restore
from pvebench.store.live_results import LiveResults
from pvebench.store.records import CaseNumbers, numbers_of
from pvebench.store.store import Store
from pvebench.store.writing import ReplacedRun
from pvebench.verdicts.judge_input import JudgeInput
from pvebench.verdicts.overall_state import verdicts_data
from pvebench.verdicts.verdict_updates import VerdictService
from testing.changes import CASES, START, measured
from testing.stores import TemporaryStore

Known = dict[int, tuple[str, float, str, bool, dict[Number, float]]]
GOOD = tuple(str(outcome) for outcome in Outcome if outcome.good)


def known_of(numbers: CaseNumbers) -> Known:
    return {
        number: (
            numbers.case_key,
            numbers.finished[place],
            numbers.environments[place],
            bool(numbers.ok[place]),
            {
                name: column[place]
                for name, column in numbers.values.items()
                if not math.isnan(column[place])
            },
        )
        for place, number in enumerate(numbers.runs)
    }


def read(store: Store, until: int = 10**9) -> Known:
    found: Known = {}
    for one in store.numbers_by_case(until=until):
        assert [*one.runs] == sorted(one.runs)
        found |= known_of(one)
    return found


class World:
    """A store that things happen to."""

    def __init__(self, directory: Path) -> None:
        self.store = TemporaryStore(directory / "pvebench.db", simulated=False)
        self.store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
        self._made = 0

    def _run(self) -> Run:
        self._made += 1
        run = measured(CASES[self._made % 3], self._made)
        outcome = (Outcome.OK, Outcome.NOISY, Outcome.FAILED)[self._made % 7 // 3]
        some = run.samples[: self._made % 4 + 1] if self._made % 11 else ()
        return replace(run, uid=f"{self._made}", outcome=outcome, samples=some)

    def add(self) -> None:
        self.store.add_run(self._run())

    def add_many(self) -> None:
        self.store.add_history([self._run() for _ in range(7)])

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.store.path, timeout=30.0)) as connection, connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(statement)

    def correct(self) -> None:
        """Remove a sample of a run, change the others and its outcome, as a new parser does."""
        for one in self.store.runs(limit=2):
            put = [replace(each, value=7.5) for each in one.samples[1:]]
            outcome = Outcome.FAILED if one.outcome is Outcome.OK else Outcome.OK
            self.store.correct(
                [
                    ReplacedRun(
                        number=one.number,
                        gone=one.samples[:1],
                        put=tuple(put),
                        outcome=outcome,
                        reason="",
                    )
                ]
            )

    def reclassify(self) -> None:
        self.sql("UPDATE runs SET outcome = 'failed' WHERE id = (SELECT min(id) + 1 FROM runs)")

    def delete(self) -> None:
        self.sql("DELETE FROM runs WHERE id = (SELECT min(id) + 2 FROM runs)")

    def prune(self) -> None:
        now = START + timedelta(days=self._made + 1)
        self.store.prune(now, evidence_seconds=86400.0, runs_seconds=5 * 86400.0, certain=True)

    def samples(self) -> Known:
        """Return what the samples of the good runs have."""
        with closing(sqlite3.connect(self.store.path)) as connection:
            found: Known = {
                number: (key, finished, environment, outcome == "ok", {})
                for number, key, finished, environment, outcome in connection.execute(
                    "SELECT id, case_key, finished, environment, outcome FROM runs"
                )
                if outcome in GOOD
            }
            for number, value, *which in connection.execute(
                "SELECT run, value, metric, direction, part FROM samples"
            ):
                if number in found and tuple(which) in NUMBERS:
                    found[number][-1][which[0], which[1], which[2]] = value
        return {number: one for number, one in found.items() if one[-1]}


STEPS = (World.add, World.add_many, World.correct, World.reclassify, World.delete, World.prune)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    for step in (World.add, World.add_many, World.add, World.add_many):
        step(world)
    yield world
    world.store.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=10))
def test_whatever_happens_to_runs_their_numbers_are_those_of_the_samples(
    steps: list[Callable[[World], None]],
) -> None:
    with TemporaryDirectory() as directory:
        world = World(Path(directory))
        for step in (World.add, World.add_many, *steps):
            step(world)
            assert read(world.store) == world.samples()
        world.store.close()


@pytest.mark.parametrize("until", [0, 1, 5, 16])
def test_runs_after_a_number_are_not_read(world: World, until: int) -> None:
    expected = {number: one for number, one in world.samples().items() if number <= until}
    assert read(world.store, until) == expected


def test_the_numbers_lie_together_by_case_and_run(world: World) -> None:
    with closing(sqlite3.connect(world.store.path)) as connection:
        query = "SELECT wr, sql FROM pragma_table_list JOIN sqlite_schema USING (name) "
        ((without_rowid, sql),) = connection.execute(f"{query} WHERE name = 'run_numbers'")
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT * FROM run_numbers WHERE case_id = 1 AND run <= 9"
        ).fetchall()
    assert (without_rowid, "PRIMARY KEY (case_id, run)" in sql) == (1, True)
    assert "USING PRIMARY KEY (case_id=? AND run<?)" in plan[0][-1]


def test_a_number_that_is_damaged_is_reported(world: World) -> None:
    world.sql("UPDATE run_numbers SET finished = 'x'")
    with pytest.raises(StoreLost, match="is damaged: invalid value"):
        read(world.store)


def test_a_restored_copy_has_the_numbers_of_its_time(world: World) -> None:
    copy = world.store.back_up(START, keep=1, max_bytes=2**30)
    expected, path = world.samples(), world.store.path
    world.correct()
    assert read(world.store) == world.samples() != expected
    world.store.close()
    restore(path, copy.path, START)
    world.store = TemporaryStore(path)
    assert read(world.store) == expected


def test_a_run_has_the_same_numbers_before_and_after_it_was_stored(world: World) -> None:
    handed_on: Known = {}
    for run in world.store.runs():
        if run.outcome.good and (numbers := numbers_of(run)):
            handed_on |= known_of(numbers)
    assert handed_on == read(world.store)


# --- from the store at the start, then from run to run


def test_verdicts_on_runs_that_were_handed_on_are_those_of_a_new_start(world: World) -> None:
    results = LiveResults(world.store)
    service = VerdictService(results, ())
    for day in range(100, 130):
        for number, case in enumerate(CASES[:3]):
            slower = 1.4 if day > 115 else 1.0
            run = measured(case, day, slower=slower)
            results.keep(replace(run, uid=f"{day}/{number}"))
        if day % 7 == 0:
            service.judge()
    told = verdicts_data(service.judge())
    assert told["changes"]
    assert told == verdicts_data(VerdictService(LiveResults(world.store), ()).judge())


def histories(feed: JudgeInput) -> list[tuple[str, str, list[GoodRun]]]:
    found = feed.material("lab").histories
    return [(one.case, one.figure.name, [*one.points]) for one in found]


def test_after_the_start_no_run_is_read(world: World) -> None:
    results = LiveResults(world.store)
    feed = JudgeInput(results)
    feed.read()
    results.keep(replace(measured(CASES[0], 90), uid="new"))
    statements: list[str] = []
    engine = world.store._engine
    event.listen(engine, "before_cursor_execute", lambda *it: statements.append(str(it[2])))
    assert feed.read()
    assert feed.newest_run == results.now.version
    assert not feed.read()
    assert not [one for one in statements if "decisions" not in one and "BEGIN" not in one]


def test_a_run_that_is_stored_during_the_first_reading_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = LiveResults(world.store)
    feed, real = JudgeInput(results), world.store.numbers_by_case
    results.keep(replace(measured(CASES[0], 90), uid="before"))

    def meanwhile(*, until: int) -> Iterator[CaseNumbers]:
        results.keep(replace(measured(CASES[0], 91), uid="meanwhile"))
        yield from real(until=until)

    monkeypatch.setattr(world.store, "numbers_by_case", meanwhile)
    feed.read()
    feed.read()
    fresh = JudgeInput(LiveResults(world.store))
    monkeypatch.undo()
    fresh.read()
    assert histories(feed) == histories(fresh)
    assert feed.newest_run == fresh.newest_run == results.now.version


def test_a_first_reading_that_fails_midway_starts_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, real = JudgeInput(LiveResults(world.store)), world.store.numbers_by_case

    def broken(*, until: int) -> Iterator[CaseNumbers]:
        yield next(iter(real(until=until)))
        raise StoreError("locked")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "numbers_by_case", broken)
        with pytest.raises(StoreError):
            feed.read()
    assert feed.read()
    fresh = JudgeInput(LiveResults(world.store))
    fresh.read()
    assert histories(feed) == histories(fresh)
    assert feed.material("lab").timeline == fresh.material("lab").timeline
