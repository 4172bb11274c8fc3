"""Opening databases of older schemas, also when that is killed.

The old databases are dumps that the code of their schema wrote (tests/golden/store). So that there
is always a migration to test, the tests add one after the newest (`next_schema`). Python's sqlite3
alone reads the results, and SQLite's own `PRAGMA integrity_check` and `PRAGMA foreign_key_check`
judge them. SQLite documents that DDL can be rolled back:
https://www.sqlite.org/lang_transaction.html (contents of a transaction) and
https://www.sqlite.org/atomiccommit.html (state after a killed process).
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pvebench
from pvebench.errors import StoreUnavailable
from pvebench.store import engine
from pvebench.store.engine import open_engine, reading
from pvebench.store.tables import MIGRATIONS, SCHEMA, TRIGGERS, metadata
from testing import next_schema
from testing.stores import TemporaryStore

TESTS = Path(__file__).resolve().parents[2]
PACKAGE = str(Path(pvebench.__file__).parents[1])
GOLDEN = TESTS / "golden" / "store"
OLD = sorted(int(path.stem) for path in GOLDEN.glob("*.sql"))
Rows = dict[str, list[dict[str, Any]]]


def old_database(directory: Path, version: int = 1) -> Path:
    path = directory / "pvebench.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((GOLDEN / f"{version}.sql").read_text("utf-8"))
    return path


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a pvebench that has one more migration."""
    monkeypatch.setattr(engine, "MIGRATIONS", (*MIGRATIONS, next_schema.migrate))
    monkeypatch.setattr(engine, "SCHEMA", next_schema.NEXT)


def schema(path: Path) -> dict[tuple[str, str], str | None]:
    """Everything in a database's schema: (type, name) -> its SQL."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
    return {
        (kind, name): sql and re.sub(r" ?([()]) ?", r"\1", " ".join(sql.split()))
        for kind, name, sql in found
    }


def rows(path: Path) -> Rows:
    """Everything in a database, which SQLite must find sound: table -> rows."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        assert [tuple(row) for row in connection.execute("PRAGMA integrity_check")] == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]
            for name in ["pragma_user_version", *(name for (name,) in tables.fetchall())]
        }


def version_in(found: Rows) -> int:
    return int(found["pragma_user_version"][0]["user_version"])


def assert_all_there(old: Rows, new: Rows) -> None:
    """Every old row has every value that it had; there is no other row."""
    assert version_in(new) == next_schema.NEXT
    assert new["notes"] == []
    assert {row["rank"] for row in new["cases"]} == {7}
    for table in old.keys() - {"pragma_user_version"}:
        columns = old[table][0].keys()
        kept = [{column: row[column] for column in columns} for row in new[table]]
        assert sorted(map(repr, kept)) == sorted(map(repr, old[table])), table


def kill_at_every_step(database: Path, directory: Path, *which: str) -> list[Path]:
    script = TESTS / "testing" / "migration_kills.py"
    done = subprocess.run(
        [sys.executable, script, database, directory, *which],
        env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{TESTS}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    copies = [path / database.name for path in directory.iterdir()]
    return sorted(copies, key=lambda path: int(path.parent.name))


def test_every_layout_but_the_newest_has_a_database_that_its_own_code_wrote() -> None:
    known = set(range(1, SCHEMA + 1))
    assert known - {SCHEMA} <= set(OLD) <= known
    assert OLD


def test_the_migrations_give_the_oldest_database_the_layout_of_a_new_one(tmp_path: Path) -> None:
    migrated, new = old_database(tmp_path, OLD[0]), tmp_path / "new.db"
    for path in (migrated, new):
        open_engine(path).dispose()
    assert schema(migrated) == schema(new)
    assert version_in(rows(new)) == version_in(rows(migrated)) == SCHEMA
    kinds = [kind for kind, _ in schema(new)]
    # SQLite's own table of sequences is one more.
    expected_counts = [len(metadata.tables) + 1, len(TRIGGERS)]
    assert [kinds.count(kind) for kind in ("table", "trigger")] == expected_counts


@pytest.mark.skipif(SCHEMA not in OLD, reason="a database of the newest layout is not needed")
def test_the_database_of_the_newest_layout_has_that_layout(tmp_path: Path) -> None:
    open_engine(tmp_path / "new.db").dispose()
    assert schema(old_database(tmp_path, SCHEMA)) == schema(tmp_path / "new.db")


def as_left(path: Path) -> Path:
    """A copy with all files of its directory: opening a killed database repairs it."""
    copy = shutil.copytree(path.parent, path.parent.with_name(f"{path.parent.name}-left"))
    return copy / path.name


@pytest.mark.usefixtures("next_version")
@pytest.mark.parametrize("version", OLD)
def test_a_migration_killed_at_any_step_loses_nothing_and_the_next_start_goes_through(
    tmp_path: Path, version: int
) -> None:
    database = old_database(tmp_path, version)
    old = rows(database)
    assert all(old.values())
    copies = kill_at_every_step(database, tmp_path / "killed", "next")
    assert len(copies) > 20
    for path in copies:
        left = rows(as_left(path))
        if left != old:
            assert_all_there(old, left)  # committed: whole
        kept = path.with_name(f"pvebench.db.before-{version}")
        if kept.exists():
            assert rows(kept) == old
        open_engine(path).dispose()
        assert_all_there(old, rows(path))
        assert rows(kept) == old
        assert not list(path.parent.glob("*.part*"))


def test_the_making_of_a_database_killed_at_any_step_leaves_one_that_opens(tmp_path: Path) -> None:
    copies = kill_at_every_step(tmp_path / "pvebench.db", tmp_path / "killed")
    assert len(copies) > 20
    for path in copies:
        TemporaryStore(path, simulated=False).close()
        assert rows(path)["facts"] == [{"name": "kind", "value": "measured"}]
        assert not list(path.parent.glob("*before*"))


def triggers(path: Path) -> list[tuple[str, int]]:
    """Table -> its triggers that follow the numbers of a run."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT tbl_name, count(*) FROM sqlite_schema WHERE type = 'trigger' "
            "AND sql LIKE '%DELETE FROM run_numbers%' GROUP BY tbl_name"
        ).fetchall()


@pytest.mark.parametrize("version", [None, *OLD])
def test_the_numbers_follow_every_change_of_a_run(tmp_path: Path, version: int | None) -> None:
    # A table that a migration rebuilds loses its triggers without an error.
    path = tmp_path / "pvebench.db" if version is None else old_database(tmp_path, version)
    open_engine(path).dispose()
    assert triggers(path) == [("runs", 2)]


@pytest.mark.parametrize("version", OLD)
def test_an_old_database_is_read_as_its_own_code_wrote_it(tmp_path: Path, version: int) -> None:
    store = TemporaryStore(old_database(tmp_path, version))
    in_all_of_them = [run for run in store.runs() if run.uid in {"a", "b", "c"}]
    assert [(run.uid, str(run.outcome)) for run in in_all_of_them] == [
        ("c", "ok"),
        ("b", "failed"),
        ("a", "ok"),
    ]
    assert store.evidence(1) == {"note": "Grüße", "output": '{"jobs": []}'}
    assert [kind for _, kind, _ in store.journal.pending()] == ["vm"]
    assert len(store.environments()) == 2
    store.close()


@pytest.mark.usefixtures("next_version")
def test_the_copy_from_before_a_migration_stays_until_the_next_one(tmp_path: Path) -> None:
    path = old_database(tmp_path)
    path.chmod(0o600)
    older = tmp_path / "pvebench.db.before-0"
    older.write_bytes(b"")
    (tmp_path / "pvebench.db.before-0.part-journal").write_bytes(b"left by a killed one")
    TemporaryStore(path).close()
    kept = tmp_path / "pvebench.db.before-1"
    assert sorted(tmp_path.glob("*before*")) == [kept]
    assert kept.stat().st_mode & 0o777 == 0o600
    TemporaryStore(path).close()
    assert kept.exists()
    kept.replace(path)  # one file: moving it back is all
    assert version_in(rows(path)) == 1


@pytest.mark.usefixtures("next_version")
def test_without_room_for_the_copy_nothing_is_migrated_and_older_copies_stay(
    tmp_path: Path,
) -> None:
    path = old_database(tmp_path)
    old = rows(path)
    older = tmp_path / "pvebench.db.before-0"
    older.write_bytes(b"")
    (tmp_path / "pvebench.db.before-1.part").mkdir()  # nothing can be written there
    message = r"backup of .* to .*before-1 before the migration failed"
    with pytest.raises(StoreUnavailable, match=message):
        TemporaryStore(path)
    assert rows(path) == old
    assert older.exists()


@pytest.mark.usefixtures("next_version")
def test_a_rebuilt_table_keeps_its_dependents_and_triggers(tmp_path: Path) -> None:
    path = old_database(tmp_path)
    before, old = schema(path), rows(path)
    open_engine(path).dispose()
    after, new = schema(path), rows(path)
    assert "watts" in new["runs"][0]  # rebuilt
    assert after.keys() == before.keys() | {
        ("table", "notes"),
        ("index", "sqlite_autoindex_notes_1"),
    }
    own = [name for name, sql in before.items() if name[0] != "table" and sql]
    assert {name: after[name] for name in own} == {name: before[name] for name in own}
    assert triggers(path) == [("runs", 2)]
    assert new["samples"] == old["samples"] != []
    assert new["evidence"] == old["evidence"] != []


def test_two_that_open_an_old_database_at_once_migrate_it_once(tmp_path: Path) -> None:
    path = old_database(tmp_path)
    script = (
        "from pathlib import Path; from pvebench.store import engine; "
        "from pvebench.store.store import Store; "
        "from testing import next_schema; next_schema.install(seconds=2); "
        # Far shorter than the migration, as on a slow disk.
        "engine.BUSY_SECONDS = 0.2; "
        f"Store(Path({str(path)!r}))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": f"{PACKAGE}:{TESTS}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [(one.communicate()[1], one.returncode) for one in both] == [("", 0), ("", 0)]
    assert version_in(rows(path)) == next_schema.NEXT


def test_the_switch_to_the_write_ahead_log_waits_for_another_program(tmp_path: Path) -> None:
    # SQLite refuses the switch at once while another connection writes, whatever its timeout is:
    # the journal of a restored backup is switched when it is opened.
    path = old_database(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool:
            opened = pool.submit(open_engine, path)
            with pytest.raises(TimeoutError):
                opened.result(timeout=0.5)
            other.execute("ROLLBACK")
            opened.result(timeout=20).dispose()


def test_a_program_that_keeps_the_database_locked_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.2)
    path = old_database(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked"):
            open_engine(path)


def test_a_process_that_never_ends_its_opening_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Witness: flock of util-linux holds the lock, as a suspended pvebench would."""
    monkeypatch.setattr(engine, "OPENING_SECONDS", 0.2)
    path = old_database(tmp_path)
    command = ["flock", "--no-fork", f"{path}.lock", "sh", "-c", "echo held; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            with pytest.raises(StoreUnavailable, match="being opened by another process"):
                open_engine(path)
        finally:
            holder.kill()


def test_every_connection_of_the_pool_is_durable_and_guards_references(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "pvebench.db")
    with reading(engine) as first, reading(engine) as second, reading(engine) as third:
        for connection in (first, second, third):
            values = [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            ]
            assert values == ["wal", 2, 1]  # 2: FULL, https://www.sqlite.org/pragma.html
    engine.dispose()
