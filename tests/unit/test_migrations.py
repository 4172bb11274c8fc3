"""Old databases taken over by this code, also when that is killed.

The old databases are dumps that the old code itself left (tests/golden/store). What is in a
database afterwards is read by Python's sqlite3 alone, and judged by SQLite's own
`PRAGMA integrity_check` and `PRAGMA foreign_key_check`. That DDL can be taken back is SQLite's
word: https://www.sqlite.org/lang_transaction.html (what a transaction holds) and
https://www.sqlite.org/atomiccommit.html (what a killed process leaves).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

import pvebench
from pvebench.errors import StoreUnavailable
from pvebench.store import Store
from pvebench.store.engine import open_engine, reading
from pvebench.store.tables import HEAD

TESTS = Path(__file__).resolve().parents[1]
GOLDEN = TESTS / "golden" / "store"
OLD = sorted(path.stem for path in GOLDEN.glob("*.sql"))
MIGRATIONS = Path(pvebench.__file__).parent / "store" / "migrations"

Rows = dict[str, list[dict[str, Any]]]


def old_database(directory: Path, revision: str) -> Path:
    path = directory / "pvebench.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((GOLDEN / f"{revision}.sql").read_text("utf-8"))
    return path


def rows(path: Path) -> Rows:
    """Everything in a database, which SQLite must call whole: table -> rows."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        assert [tuple(row) for row in connection.execute("PRAGMA integrity_check")] == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]
            for (name,) in tables.fetchall()
        }


def moved(run: dict[str, Any], definitions: dict[str, str]) -> dict[str, Any]:
    """What a run's row had before layout 0004 and its case's row has since."""
    return {"definition": definitions[run["case_key"]]}


def assert_all_there(old: Rows, new: Rows) -> None:
    """Every old row is there with every value that it had; no row came from nowhere."""
    assert new["alembic_version"] == [{"version_num": HEAD}]
    definitions = {row["key"]: row["definition"] for row in new["cases"]}
    new = {**new, "runs": [row | moved(row, definitions) for row in new["runs"]]}
    for table in old.keys() - {"alembic_version"}:
        columns = old[table][0].keys()
        kept = [{column: row[column] for column in columns} for row in new[table]]
        assert sorted(map(repr, kept)) == sorted(map(repr, old[table])), table


def kill_at_every_step(database: Path, directory: Path) -> list[Path]:
    script = TESTS / "support" / "migration_kills.py"
    package = str(Path(pvebench.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, script, database, directory],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    copies = [path / database.name for path in directory.iterdir()]
    return sorted(copies, key=lambda path: int(path.parent.name))


def test_every_layout_but_the_newest_has_a_database_that_its_own_code_wrote() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    assert known - {HEAD} <= set(OLD) <= known


def as_left(path: Path) -> Path:
    """A copy with all that lies beside it: looking at a killed database mends it."""
    copy = shutil.copytree(path.parent, path.parent.with_name(f"{path.parent.name}-left"))
    return copy / path.name


@pytest.mark.parametrize("revision", [one for one in OLD if one != HEAD])
def test_a_migration_killed_at_any_step_loses_nothing_and_the_next_start_goes_through(
    tmp_path: Path, revision: str
) -> None:
    database = old_database(tmp_path, revision)
    old = rows(database)
    copies = kill_at_every_step(database, tmp_path / "killed")
    assert len(copies) > 20
    for path in copies:
        left = rows(as_left(path))
        if left != old:
            assert_all_there(old, left)  # committed: whole
        kept = path.with_name(f"pvebench.db.before-{revision}")
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
        Store(path, simulated=False).close()
        assert rows(path)["facts"] == [{"name": "kind", "value": "measured"}]
        assert not list(path.parent.glob("*before*"))


@pytest.mark.parametrize("revision", [None, *OLD])
def test_every_change_of_a_run_lets_go_of_what_was_packed_of_it(
    tmp_path: Path, revision: str | None
) -> None:
    # A table that a migration rebuilds loses its triggers, and SQLite says nothing.
    path = tmp_path / "pvebench.db" if revision is None else old_database(tmp_path, revision)
    open_engine(path).dispose()
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT tbl_name, count(*) FROM sqlite_schema WHERE type = 'trigger' "
            "AND sql LIKE '%DELETE FROM number_blocks%' GROUP BY tbl_name"
        ).fetchall()
    assert found == [("runs", 6), ("samples", 4)]


@pytest.mark.parametrize("revision", OLD)
def test_an_old_database_is_read_as_its_own_code_wrote_it(tmp_path: Path, revision: str) -> None:
    store = Store(old_database(tmp_path, revision))
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


def test_the_copy_from_before_a_migration_stays_until_the_next_one(tmp_path: Path) -> None:
    path = old_database(tmp_path, "0001")
    path.chmod(0o600)
    older = tmp_path / "pvebench.db.before-0000"
    older.write_bytes(b"")
    (tmp_path / "pvebench.db.before-0000.part-journal").write_bytes(b"left by a killed one")
    Store(path).close()
    kept = tmp_path / "pvebench.db.before-0001"
    assert sorted(tmp_path.glob("*before*")) == [kept]
    assert kept.stat().st_mode & 0o777 == 0o600
    Store(path).close()
    assert kept.exists()
    kept.replace(path)  # one file: moving it back is all
    assert rows(path)["alembic_version"] == [{"version_num": "0001"}]


def test_without_room_for_the_copy_nothing_is_migrated_and_older_copies_stay(
    tmp_path: Path,
) -> None:
    path = old_database(tmp_path, "0002")
    old = rows(path)
    older = tmp_path / "pvebench.db.before-0001"
    older.write_bytes(b"")
    (tmp_path / "pvebench.db.before-0002.part").mkdir()  # nothing can be written there
    told = r"cannot be copied to .*before-0002 before its layout"
    with pytest.raises(StoreUnavailable, match=told):
        Store(path)
    assert rows(path) == old
    assert older.exists()


def test_a_migration_that_rebuilds_a_table_keeps_the_rows_that_belong_to_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_database(tmp_path, "0002")
    old = rows(path)
    upgrade = command.upgrade

    def rebuild(config: Config, revision: str) -> None:
        upgrade(config, revision)
        for statement in (
            "CREATE TABLE rebuilt AS SELECT * FROM runs",
            "DROP TABLE runs",
            "ALTER TABLE rebuilt RENAME TO runs",
        ):
            config.attributes["connection"].exec_driver_sql(statement)

    monkeypatch.setattr(command, "upgrade", rebuild)
    open_engine(path).dispose()
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM samples").fetchone()
    assert count == len(old["samples"]) > 0


def test_two_that_open_an_old_database_at_once_migrate_it_once(tmp_path: Path) -> None:
    path = old_database(tmp_path, "0001")
    script = (
        f"from pathlib import Path; from pvebench.store import Store; Store(Path({str(path)!r}))"
    )
    package = str(Path(pvebench.__file__).parents[1])
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": package},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [(one.communicate()[1], one.returncode) for one in both] == [("", 0), ("", 0)]


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
