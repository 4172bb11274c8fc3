"""A database that is damaged, removed or copied, with SQLite itself as the witness.

What is told of a damaged page is SQLite's own word (PRAGMA integrity_check); copies are opened by
Python's sqlite3, not by us.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.config import Settings
from pvebench.errors import AlreadyRunning, StoreError, StoreLost
from pvebench.service.housekeeping import DatabaseMaintenance
from pvebench.store.backups import backups_of, copy_database
from pvebench.store.live_results import LiveResults
from pvebench.store.state_directory import StateDirectory, holder_of
from pvebench.store.store import Store
from testing.prometheus import free_port
from testing.simulations import simulate
from testing.stored_runs import run
from testing.stores import TemporaryStore

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def filled(directory: Path, runs: int = 200) -> Path:
    """Return a database with some runs, closed."""
    path = directory / "pvebench.db"
    store = TemporaryStore(path, simulated=False)
    store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
    store.add_history(run(number / 24) for number in range(runs))
    store.close()
    return path


def smear(path: Path) -> None:
    """Overwrite the middle of a database, as a failing disk does."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(os.urandom(size // 2))


def count(path: Path) -> int:
    connection = sqlite3.connect(path)
    (number,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    connection.close()
    return int(number)


def test_damage_is_reported_with_the_next_step_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smear(filled(tmp_path))
    assert run_cli(["cleanup", "--state", str(tmp_path)]) == StoreLost.exit_code
    said = capsys.readouterr().err
    assert "is damaged" in said
    assert "pvebench restore" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.check(),
        lambda store: store.runs(limit=10_000),
        lambda store: store.add_run(run(400)),
        LiveResults,
    ],
)
def test_damage_is_one_error_wherever_it_is_met(
    tmp_path: Path, ask: Callable[[Store], object]
) -> None:
    path = filled(tmp_path, 2000)
    smear(path)
    with pytest.raises(StoreLost, match=r"is damaged|opening results database"):
        ask(TemporaryStore(path))


def test_a_copy_a_day_is_kept_by_number_and_by_room(tmp_path: Path) -> None:
    store = TemporaryStore(filled(tmp_path))
    size = 0
    for day in range(6):
        made = store.back_up(NOW + timedelta(days=day), keep=4, max_bytes=1 << 30)
        size = made.size_bytes
        assert count(made.path) == 200
    assert [one.made for one in backups_of(store.path)] == [
        NOW + timedelta(days=day) for day in (5, 4, 3, 2)
    ]
    store.back_up(NOW + timedelta(days=6), keep=4, max_bytes=2 * size)
    assert len(backups_of(store.path)) == 2
    (tmp_path / "backups/interrupted.db.part").touch()
    store.back_up(NOW + timedelta(days=7), keep=4, max_bytes=1)
    assert len(list((tmp_path / "backups").iterdir())) == 1
    assert (tmp_path / "backups").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize(("keep", "room_copies"), [(1, 10), (2, 10), (3, 1)])
def test_a_copy_of_a_clock_that_was_ahead_pushes_out_no_copy_of_today(
    tmp_path: Path, keep: int, room_copies: int
) -> None:
    store = TemporaryStore(filled(tmp_path))
    ahead = store.back_up(NOW + timedelta(days=30_000), keep=keep, max_bytes=1 << 30)
    room = room_copies * ahead.size_bytes + 4096
    for day in range(4):
        made = store.back_up(NOW + timedelta(days=day), keep=keep, max_bytes=room)
        assert made.made == NOW + timedelta(days=day)
        assert made.path.exists()
    assert not ahead.path.exists()


def test_without_room_for_a_copy_the_older_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TemporaryStore(filled(tmp_path))
    store.back_up(NOW, keep=1, max_bytes=1 << 30)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4096))
    with pytest.raises(StoreError, match=r"backup of .* failed"):
        store.back_up(NOW + timedelta(days=1), keep=1, max_bytes=1 << 30)
    assert [one.made for one in backups_of(store.path)] == [NOW]


def test_a_damaged_database_is_replaced_by_its_copy_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = filled(tmp_path)
    store = TemporaryStore(path)
    made = store.back_up(NOW, keep=1, max_bytes=1 << 30)
    store.close()
    smear(path)
    damaged = path.read_bytes()
    assert run_cli(["restore", "--state", str(tmp_path)]) == 0
    assert f"pvebench restore {made.path}" in capsys.readouterr().out
    assert run_cli(["restore", str(made.path), "--state", str(tmp_path)]) == 0
    assert "200 runs" in capsys.readouterr().out
    assert count(path) == 200
    (kept,) = tmp_path.glob("pvebench.db.replaced-*")
    assert kept.read_bytes() == damaged
    assert made.path.exists()


def test_an_older_copy_takes_over_what_is_on_the_machine(tmp_path: Path) -> None:
    """After a crash the volume is there, and only the replaced database lists it."""
    database, copy = tmp_path / "pvebench.db", tmp_path / "copy.db"
    store = TemporaryStore(database, simulated=False)
    both = store.journal.open("dir", {"path": "before the backup"})
    copy_database(database, copy)
    store.journal.open("dir", {"path": "after the backup"})
    store.journal.close(store.journal.open("dir", {"path": "removed"}))
    store.close()
    with closing(sqlite3.connect(database)) as damaged, damaged:
        damaged.execute("INSERT INTO journal (opened, kind, details) VALUES (x'00', 'dir', 5)")
    assert run_cli(["restore", str(copy), "--state", str(tmp_path)]) == 0
    restored = TemporaryStore(database)
    assert [details["path"] for _, _, details in restored.journal.pending()] == [
        "after the backup",
        "before the backup",
    ]
    assert restored.journal.pending()[-1][0] == both
    restored.close()


def test_a_replaced_database_that_cannot_be_read_is_said_to_list_leftovers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database, copy = filled(tmp_path), tmp_path / "copy.db"
    copy_database(database, copy)
    database.write_bytes(b"x" * 8192)
    assert run_cli(["restore", str(copy), "--state", str(tmp_path)]) == 0
    assert "journal of the replaced database cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("statement", ["", "PRAGMA user_version = 9999", "DROP TABLE journal"])
def test_a_copy_that_pvebench_cannot_open_replaces_nothing(tmp_path: Path, statement: str) -> None:
    path, copy = filled(tmp_path), tmp_path / "copy.db"
    copy_database(path, copy)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute(statement)
    if not statement:
        smear(copy)
    assert run_cli(["restore", str(copy), "--state", str(tmp_path)]) == StoreError.exit_code
    assert (count(path), list(tmp_path.glob("*.re*"))) == (200, [])


def test_nothing_is_put_in_the_place_of_a_database_in_use(tmp_path: Path) -> None:
    path = filled(tmp_path)
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    with StateDirectory(tmp_path, exclusive=True):
        assert run_cli(["restore", str(copy), "--state", str(tmp_path)]) == AlreadyRunning.exit_code


def test_the_service_copies_once_a_day_and_stops_at_damage(tmp_path: Path) -> None:
    path = filled(tmp_path, 2000)
    results, now = LiveResults(TemporaryStore(path)), [NOW]
    tidier = DatabaseMaintenance(results, Settings, lambda: now[0])
    for hours in (0, 1, 23, 24, 30, 48):
        now[0] = NOW + timedelta(hours=hours)
        tidier.check()
    assert [one.made for one in reversed(backups_of(path))] == [
        NOW + timedelta(hours=hours) for hours in (0, 24, 48)
    ]
    smear(path)
    now[0] = NOW + timedelta(hours=72)
    with pytest.raises(StoreLost, match="is damaged"):
        DatabaseMaintenance(LiveResults(TemporaryStore(path)), Settings, lambda: now[0]).check()


@pytest.mark.parametrize("what", ["database", "directory", "another"])
def test_a_database_that_is_taken_away_ends_the_measuring_with_the_reason(
    tmp_path: Path, what: str
) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    simulation = simulate(directory)
    worker, path = simulation.worker, simulation.store.path
    worker.step()
    worker.step()
    if what == "directory":
        shutil.rmtree(directory)
    else:
        path.unlink()
    if what == "another":
        filled(directory)
    with pytest.raises(StoreLost, match="no longer the database that pvebench opened"):
        worker.run()


def test_a_removed_lock_lets_no_second_instance_in(tmp_path: Path) -> None:
    with StateDirectory(tmp_path, exclusive=True):
        (tmp_path / "lock").unlink()
        with pytest.raises(AlreadyRunning):
            StateDirectory(tmp_path, exclusive=True)
    with StateDirectory(tmp_path, exclusive=True):
        pass


def test_a_running_service_whose_state_is_removed_ends_and_says_why(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "pvebench", "serve", "--driver", "simulated"]
    with subprocess.Popen(
        [*command, "--state", str(state), "--listen", f"127.0.0.1:{free_port()}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 100
        while holder_of(state) != process.pid:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2)
        shutil.rmtree(state)
        try:
            _, said = process.communicate(timeout=300)
        finally:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == StoreLost.exit_code, said
    assert "no longer the database that pvebench opened" in said
    assert "Traceback" not in said


def test_a_value_that_a_damaged_page_made_is_reported_as_damage(tmp_path: Path) -> None:
    path = filled(tmp_path)
    TemporaryStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    # As a flipped bit leaves it: the page is still one, and SQLite finds nothing.
    path.write_bytes(path.read_bytes().replace(b'{"', b"{*"))
    store = TemporaryStore(path)
    store.check()
    for ask in (store.periods, store.environments, lambda: store.runs(limit=5), store.cases):
        with pytest.raises(StoreLost, match="is damaged: invalid value"):
            ask()
