"""Numbers read in blocks are those that the rows have, whatever was done to them in between.

What the rows have is asked of Python's sqlite3 alone. Runs are put beside the borders of blocks,
so that a few make one full.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import zlib
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

from pvebench.config import Settings
from pvebench.model.run import Outcome
from pvebench.service.housekeeping import DatabaseMaintenance
from pvebench.store import Number, ReplacedRun, case_numbers, restore
from pvebench.store.case_numbers import SIZE
from pvebench.store.current import Results
from pvebench.verdicts.feed import NUMBERS, Feed
from pvebench.verdicts.headline import verdicts_data
from pvebench.verdicts.verdict_service import VerdictService
from testing.captured_logs import captured_logs
from testing.changes import CASES, START, measured
from testing.stores import TemporaryStore

IOPS, CPU = ("iops", "read", ""), ("host_cpu", "", "qemu")
REST = (
    "case_key, node, scenario, workload, cycle, environment, started, finished, 'failed', reason, "
    "pass_number, revision"
)
WANTED: tuple[Number, ...] = (IOPS, CPU, ("boot_time", "", ""))
Known = dict[int, tuple[str, float, str, bool, dict[Number, float]]]


class World:
    """A store that things happen to."""

    def __init__(self, directory: Path, made: int = 0) -> None:
        self.store = TemporaryStore(directory / "pvebench.db", simulated=False)
        if not made:
            self.store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
        self._made = made

    def close(self) -> int:
        """End it; return how many runs were made, to open it again."""
        self.store.close()
        return self._made

    def add(self) -> None:
        self._made += 1
        run = measured(CASES[self._made % 3], self._made)
        outcome = (Outcome.OK, Outcome.NOISY, Outcome.FAILED)[self._made % 7 // 3]
        some = run.samples[: self._made % 4 + 1] if self._made % 11 else ()
        self.store.add_run(replace(run, uid=f"{self._made}", outcome=outcome, samples=some))

    def sql(self, *statements: str, foreign_keys: str = "ON") -> None:
        with closing(sqlite3.connect(self.store.path, timeout=30.0)) as connection, connection:
            connection.execute(f"PRAGMA foreign_keys = {foreign_keys}")
            for statement in statements:
                connection.execute(statement)

    def jump(self, blocks: int = 1) -> None:
        """Let the next run but one be the first of a block."""
        self.add()
        number = f"(max(id) / {SIZE} + {blocks}) * {SIZE} - 1"
        self.sql(f"INSERT INTO runs SELECT {number}, 'j' || max(id), {REST} FROM runs")
        self.add()

    def replace_run(self) -> None:
        """Put another run in the place of one, as sqlite3's own shell does it."""
        one = "WHERE id = (SELECT min(id) + 1 FROM runs)"
        self.sql(
            f"INSERT OR REPLACE INTO runs SELECT id, uid, {REST} FROM runs {one}",
            foreign_keys="OFF",
        )

    def take_a_name(self) -> None:
        """Give a new run the name of an old one, which goes with it."""
        one = "WHERE id = (SELECT min(id) + 2 FROM runs)"
        self.sql(
            f"INSERT OR REPLACE INTO runs SELECT (SELECT max(id) + 1 FROM runs), uid, {REST} "
            f"FROM runs {one}",
            foreign_keys="OFF",
        )

    def move_samples(self) -> None:
        """Give the newest run's samples to one that had none."""
        one = "(SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET 3)"
        self.sql(
            f"DELETE FROM samples WHERE run = {one}",
            f"UPDATE samples SET run = {one} WHERE run = (SELECT max(run) FROM samples)",
        )

    def renumber(self) -> None:
        """Give a run a number further down, in a block that has room."""
        self.sql(
            "PRAGMA defer_foreign_keys = ON",
            "UPDATE OR REPLACE samples SET run = 40000 WHERE run = (SELECT max(id) FROM runs)",
            "UPDATE OR IGNORE runs SET id = 40000 WHERE id = (SELECT max(id) FROM runs)",
            foreign_keys="OFF",
        )

    def mend(self) -> None:
        one = min(self.store.runs(limit=5), key=lambda run: len(run.samples) or 99)
        gone, put = one.samples[:1], [replace(each, value=7.5) for each in one.samples[1:]]
        self.store.replacement.apply(
            [
                ReplacedRun(
                    number=one.number, gone=gone, put=tuple(put), outcome=Outcome.OK, reason=""
                )
            ]
        )

    def reclassify(self) -> None:
        self.sql("UPDATE runs SET outcome = 'failed' WHERE id = (SELECT min(id) + 1 FROM runs)")

    def lose_a_sample(self) -> None:
        self.sql("DELETE FROM samples WHERE run = (SELECT max(run) - 2 FROM samples)")

    def prune(self) -> None:
        now = START + timedelta(days=self._made + 1)
        self.store.prune(now, evidence_seconds=86400.0, runs_seconds=5 * 86400.0, certain=True)

    def damage(self) -> None:
        self.sql("UPDATE number_blocks SET content = zeroblob(length(content) + 1)")

    def pack(self) -> None:
        self.store.numbers.pack(WANTED)
        assert self.store.numbers.pack(WANTED) == 0

    def rows(self) -> Known:
        good = tuple(str(outcome) for outcome in Outcome if outcome.good)
        with closing(sqlite3.connect(self.store.path)) as connection:
            found: Known = {
                number: (key, finished, environment, outcome == "ok", {})
                for number, key, finished, environment, outcome in connection.execute(
                    "SELECT id, case_key, finished, environment, outcome FROM runs"
                )
                if outcome in good
            }
            for number, value, *which in connection.execute(
                "SELECT run, value, metric, direction, part FROM samples"
            ):
                if number in found and tuple(which) in WANTED:
                    found[number][-1][which[0], which[1], which[2]] = value
        return {number: one for number, one in found.items() if one[-1]}

    def read(self, *, after: int = 0, until: int | None = None) -> Known:
        found: Known = {}
        for piece in self.store.numbers.read(WANTED, after=after, until=until):
            mine: Known = {}
            for one in piece:
                for place, number in enumerate(one.runs):
                    values = {name: column[place] for name, column in one.values.items()}
                    mine[number] = (
                        one.case_key,
                        one.finished[place],
                        one.environments[place],
                        bool(one.ok[place]),
                        {name: value for name, value in values.items() if not math.isnan(value)},
                    )
            assert not found or not mine or max(found) < min(mine)
            found |= mine
        return found

    def statements(self, work: Callable[[], object]) -> list[str]:
        """The SQL that some work needs."""
        seen: list[str] = []

        def look(*arguments: object) -> None:
            seen.append(str(arguments[2]))

        engine = self.store._engine
        event.listen(engine, "before_cursor_execute", look)
        work()
        event.remove(engine, "before_cursor_execute", look)
        return seen


STEPS = (
    World.add,
    World.damage,
    World.jump,
    World.mend,
    World.reclassify,
    World.lose_a_sample,
    World.prune,
    World.replace_run,
    World.take_a_name,
    World.move_samples,
    World.renumber,
    World.pack,
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The database of a world with two blocks, packed, and some runs after them."""
    directory = tmp_path_factory.mktemp("packed")
    world = World(directory)
    for step in (*[World.add] * 9, World.jump, *[World.add] * 9, World.jump, *[World.add] * 9):
        step(world)
    assert world.store.numbers.pack(WANTED) == 2
    return directory / "pvebench.db", world.close()


@pytest.fixture
def world(packed: tuple[Path, int], tmp_path: Path) -> Iterator[World]:
    """A copy of that world."""
    path, made = packed
    shutil.copyfile(path, tmp_path / path.name)
    world = World(tmp_path, made)
    yield world
    world.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(STEPS), min_size=4, max_size=14))
def test_whatever_happens_to_runs_their_numbers_are_those_of_the_rows(
    steps: list[Callable[[World], None]],
) -> None:
    with TemporaryDirectory() as directory:
        world = World(Path(directory))
        for step in (World.add, World.add, World.jump, World.add, World.pack, *steps, World.pack):
            step(world)
            assert world.read() == world.rows()
        world.close()


PACK = "pack"
BY_HAND = {
    "run_added": (
        "CREATE TABLE kept AS SELECT * FROM runs WHERE id = {old}",
        "DELETE FROM runs WHERE id = {old}",
        PACK,
        "INSERT INTO runs SELECT * FROM kept",
    ),
    "run_changed": ("UPDATE runs SET finished = finished + 1 WHERE id = {old}",),
    "run_renumbered": (
        "UPDATE samples SET run = 40000 WHERE run = {new}",
        PACK,
        "UPDATE runs SET id = 40000 WHERE id = {new}",
    ),
    "run_removed": ("DELETE FROM runs WHERE id = {old}",),
    "run_replaced": (
        f"INSERT OR REPLACE INTO runs SELECT {{new}} + 1, uid, {REST} FROM runs WHERE id = {{old}}",
    ),
    "run_renamed": (
        "UPDATE OR REPLACE runs SET uid = (SELECT uid FROM runs WHERE id = {old}) WHERE id = {new}",
    ),
    "sample_added": (
        "CREATE TABLE kept AS SELECT * FROM samples WHERE run = {old}",
        "DELETE FROM samples WHERE run = {old}",
        PACK,
        "INSERT INTO samples SELECT * FROM kept",
    ),
    "sample_changed": ("UPDATE samples SET value = 2 * value WHERE run = {old}",),
    "sample_moved": (
        "DELETE FROM samples WHERE run = {old}",
        PACK,
        "UPDATE samples SET run = {old} WHERE run = {new}",
    ),
    "sample_removed": ("DELETE FROM samples WHERE run = {old}",),
}
"""Trigger -> what people may do by hand that no other one notices."""


@pytest.mark.parametrize("trigger", BY_HAND)
@pytest.mark.parametrize("there", [True, False])
def test_each_trigger_notices_what_no_other_one_does(
    world: World, trigger: str, there: bool
) -> None:
    old, new = min(world.rows()), max(world.rows())
    if not there:
        world.sql(f"DROP TRIGGER {trigger}")
    for statement in BY_HAND[trigger]:
        if statement is PACK:
            world.store.numbers.pack(WANTED)
        else:
            # As in SQLite's own shell, and in Python.
            world.sql(statement.format(old=old, new=new), foreign_keys="OFF")
    assert (world.read() == world.rows()) is there


@pytest.mark.parametrize("after", [0, 4, SIZE, SIZE + 4, 2 * SIZE + 3])
@pytest.mark.parametrize("until", [None, 2 * SIZE + 5, 2 * SIZE, SIZE + 7, 5])
def test_any_stretch_of_runs_can_be_read(world: World, after: int, until: int | None) -> None:
    last = 10**9 if until is None else until
    wanted = {number: one for number, one in world.rows().items() if after < number <= last}
    assert world.read(after=after, until=until) == wanted


def test_the_rows_of_packed_runs_are_not_read(world: World) -> None:
    asked = world.statements(world.read)
    assert sum("FROM samples" in one for one in asked) == 1  # the runs after the blocks


def test_gaps_between_the_numbers_of_runs_are_not_gone_through(world: World) -> None:
    world.jump(blocks=20_000_000)
    world.add()
    assert len(world.statements(world.read)) < 20
    assert world.store.numbers.pack(WANTED) == 2
    assert len(world.statements(world.pack)) < 20
    assert world.read() == world.rows()


def test_runs_that_change_while_they_are_packed_are_read_as_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.sql("UPDATE samples SET value = 5 WHERE run = 3")
    real = case_numbers.packed

    def meanwhile(*arguments: object) -> object:
        world.sql("UPDATE samples SET value = 6 WHERE run = 3")
        return real(*arguments)  # type: ignore[arg-type] # passed on as they are

    monkeypatch.setattr(case_numbers, "packed", meanwhile)
    assert world.store.numbers.pack(WANTED) == 0
    assert world.read()[3][-1][IOPS] == 6.0
    monkeypatch.undo()
    assert world.store.numbers.pack(WANTED) == 1
    assert world.read() == world.rows()


def test_others_write_while_runs_are_packed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.sql("DELETE FROM number_blocks")
    real = case_numbers.packed

    def meanwhile(*arguments: object) -> object:
        world.sql("PRAGMA busy_timeout = 0")
        world.add()
        return real(*arguments)  # type: ignore[arg-type] # passed on as they are

    monkeypatch.setattr(case_numbers, "packed", meanwhile)
    assert world.store.numbers.pack(WANTED) == 2
    assert world.read() == world.rows()


def flip(world: World, block: int) -> None:
    """Change one byte in the middle of what is packed, as a failing disk does."""
    with closing(sqlite3.connect(world.store.path)) as connection, connection:
        query = "SELECT content FROM number_blocks WHERE block = ?"
        (content,) = connection.execute(query, (block,)).fetchone()
        damaged = bytearray(content)
        damaged[len(damaged) // 2] ^= 1
        change = "UPDATE number_blocks SET content = ? WHERE block = ?"
        connection.execute(change, (bytes(damaged), block))


def sound(content: bytes, layout: bytes) -> str:
    """Return what to set for a block that has its checksum, whatever is in it."""
    checksum = zlib.crc32(content, zlib.crc32(layout))
    return f"content = x'{content.hex()}', layout = x'{layout.hex()}', checksum = {checksum}"


DAMAGE = (
    "content = zeroblob(length(content))",
    "content = x''",
    "content = 'a text'",
    "layout = CAST(replace(CAST(layout AS TEXT), ', 1, ', ', 2, ') AS BLOB)",
    "layout = CAST(x'ff' || layout AS BLOB)",
    "checksum = checksum + 1",
    "checksum = 'a text'",
    # Of which the checksum says nothing.
    sound(b"", b"no JSON"),
    sound(b"", b"[]"),
    sound(b"", b'{"environments": [], "cases": 7}'),
    sound(b"", b'{"environments": [], "cases": [["a", 1, []]]}'),
    sound(bytes(19), b'{"environments": [], "cases": [["a", 1, []]]}'),
    sound(bytes(27), b'{"environments": ["e"], "cases": [["a", 1, [99]]]}'),
)


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_runs_of_a_damaged_block_are_read_from_their_rows(world: World, damage: str) -> None:
    world.sql(f"UPDATE number_blocks SET {damage} WHERE block = 1")
    assert world.read() == world.rows()
    assert sum("FROM samples" in one for one in world.statements(world.read)) == 2  # not block 0
    assert world.store.numbers.damaged(WANTED) == [1]


@pytest.mark.parametrize("blocks", [[0], [1], [0, 1]])
def test_a_damaged_block_is_logged_once_and_replaced_by_the_next_packing(
    world: World, blocks: list[int]
) -> None:
    for block in blocks:
        flip(world, block)
    with captured_logs() as logs:
        assert world.read() == world.read() == world.rows()
        world.store.numbers.log_damaged(WANTED)
    assert [(one["log_level"], one["block"]) for one in logs] == [("warning", n) for n in blocks]
    assert {one["event"] for one in logs} == {"number block damaged, reading its runs from rows"}
    assert {(one["first_run"], one["last_run"]) for one in logs} == {
        (SIZE * block + 1, SIZE * (block + 1)) for block in blocks
    }
    assert world.store.numbers.pack(WANTED) == len(blocks)
    assert world.store.numbers.damaged(WANTED) == []
    assert sum("FROM samples" in one for one in world.statements(world.read)) == 1
    assert world.read() == world.rows()
    flip(world, blocks[0])
    with captured_logs() as logs:
        world.read()
    assert [one["block"] for one in logs] == blocks[:1]  # it is another damage


def test_while_runs_are_read_nothing_is_written(world: World) -> None:
    flip(world, 1)
    before = world.store.path.read_bytes(), stored(world)
    with closing(sqlite3.connect(world.store.path)) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody else can write now
        assert world.read() == world.rows()
        assert world.store.numbers.damaged(WANTED) == [1]
    assert (world.store.path.read_bytes(), stored(world)) == before


def test_damaged_blocks_change_no_verdict(world: World) -> None:
    world.store.numbers.pack(NUMBERS)
    intact = VerdictService(Feed(Results(world.store)), ()).judge()
    assert intact.verdicts
    flip(world, 0)
    flip(world, 1)
    found = VerdictService(Feed(Results(world.store)), ()).judge()
    assert verdicts_data(found) == verdicts_data(intact)


def stored(world: World) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(world.store.path)) as connection:
        return connection.execute("SELECT * FROM number_blocks ORDER BY block").fetchall()


def test_a_block_that_another_process_has_replaced_is_not_dropped(world: World) -> None:
    flip(world, 1)
    world.read()
    other = TemporaryStore(world.store.path)
    other.numbers.log_damaged(WANTED)
    assert other.numbers.pack(WANTED) == 1
    other.close()
    asked = world.statements(lambda: world.store.numbers.pack(WANTED))
    assert not [one for one in asked if one.startswith("DELETE")]
    assert world.store.numbers.damaged(WANTED) == []


def test_a_service_looks_through_its_blocks_daily_and_replaces_the_damaged(world: World) -> None:
    world.store.numbers.pack(NUMBERS)
    now = [START + timedelta(days=60)]
    tidier = DatabaseMaintenance(
        Results(world.store), lambda: Settings(keep_backups=0), lambda: now[0]
    )
    tidier.check()
    flip(world, 1)
    tidier.check()
    assert world.store.numbers.damaged(NUMBERS) == [1]
    now[0] += timedelta(days=1)
    with captured_logs() as logs:
        tidier.check()
    assert [one["block"] for one in logs if "block" in one] == [1]
    assert world.store.numbers.damaged(NUMBERS) == []
    assert world.store.numbers.pack(NUMBERS) == 0


@pytest.mark.parametrize("form", ["[]", '["big", ["iops", "read", ""]]'])
def test_a_block_of_other_numbers_or_another_machine_is_made_again(world: World, form: str) -> None:
    world.sql(f"UPDATE number_blocks SET form = '{form}', content = x''")
    assert world.read() == world.rows()
    assert world.store.numbers.pack(WANTED) == 2
    assert world.read() == world.rows()


def test_a_copy_of_a_packed_store_is_read_and_lets_go_as_the_store_did(world: World) -> None:
    copy = world.store.back_up(START, keep=1, max_bytes=2**30)
    wanted, path = world.rows(), world.store.path
    world.sql("UPDATE samples SET value = 5")
    world.store.close()
    restore(path, copy.path, START)
    world.store = TemporaryStore(path)
    assert world.read() == wanted
    assert sum("FROM samples" in one for one in world.statements(world.read)) == 1
    world.sql("UPDATE samples SET value = 6 WHERE run = 3")
    assert world.read() == world.rows() != wanted


def test_between_two_runs_one_block_is_packed_until_all_are(world: World) -> None:
    world.sql("DELETE FROM number_blocks")
    now = START + timedelta(days=60)
    tidier = DatabaseMaintenance(
        Results(world.store), lambda: Settings(keep_backups=0), lambda: now
    )
    tidier.check()
    assert sum("FROM samples" in one for one in world.statements(read_to_judge(world))) == 2
    tidier.check()
    assert world.store.numbers.pack(NUMBERS) == 0
    assert sum("FROM samples" in one for one in world.statements(read_to_judge(world))) == 1


def read_to_judge(world: World) -> Callable[[], object]:
    return lambda: list(world.store.numbers.read(NUMBERS))
