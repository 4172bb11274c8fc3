"""The log of a site in its real database, for schedules of `testing.simulated_fleet`."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pvebench.model.run import Outcome, Sample, Unit
from pvebench.store.writing import ReplacedRun
from pvebench_fleet.fleet_log import FleetLog, LogPosition
from testing.simulated_fleet import BAD
from testing.stored_runs import run
from testing.stores import TemporaryStore

_NUMBERS = itertools.count()
_COLUMNS = "case_key, node, scenario, workload, cycle, environment, started"


def template(directory: Path) -> Path:
    """Return a database of a site in a fleet, with one run and an empty log."""
    path = directory / "template.db"
    store = TemporaryStore(path, simulated=False)
    store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
    store.add_run(run(0))
    FleetLog(store.engine).begin()
    store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE pattern AS SELECT * FROM runs")
        connection.execute("DELETE FROM fleet_log")
        connection.execute("DELETE FROM sqlite_sequence")
    return path


class SqliteLog:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = TemporaryStore(path)
        self._log = FleetLog(self._store.engine)

    @classmethod
    def of(cls, source: Path) -> SqliteLog:
        """Return the log of a copy of a database."""
        path = source.with_name(f"copy-{next(_NUMBERS)}.db")
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(path)) as new:
            old.backup(new)
        return cls(path)

    def copy(self) -> SqliteLog:
        return self.of(self._path)

    def close(self) -> None:
        self._store.close()

    def add(self, uid: str, version: int, *, bad: bool) -> None:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(
                f"INSERT INTO runs (uid, {_COLUMNS}, finished, outcome, reason, pass_number) "
                f"SELECT ?, {_COLUMNS}, finished + ?, 'ok', ?, 1 FROM pattern",
                (uid, int(uid[1:]), BAD if bad else ""),
            )
            connection.execute(
                "INSERT INTO samples SELECT id, 'iops', '', '', ?, 'iops' FROM runs WHERE uid = ?",
                (version, uid),
            )

    def correct(self, uid: str, version: int) -> None:
        with closing(sqlite3.connect(self._path)) as connection:
            query = "SELECT id, reason FROM runs WHERE uid = ?"
            number, reason = connection.execute(query, (uid,)).fetchone()
        sample = Sample("iops", None, float(version), Unit.IOPS)
        correction = ReplacedRun(
            number=number, gone=(), put=(sample,), outcome=Outcome.OK, reason=reason
        )
        self._store.correct([correction])

    def position(self) -> LogPosition:
        return self._log.position()

    def chain_at(self, seq: int) -> str | None:
        return self._log.chain_at(seq)

    def advance(self, place: LogPosition, now: float) -> None:
        self._log.advance(place, now)

    def batch(self, most: int) -> tuple[Sequence[Any], LogPosition, LogPosition]:
        return self._log.batch(most)

    def renew(self) -> None:
        self._log.renew()


def maker(path: Path, made: list[SqliteLog]) -> Any:
    """Return `make_log` of a schedule; `made` gets the logs, to close them."""

    def make(_: random.Random) -> SqliteLog:
        log = SqliteLog.of(path)
        made.append(log)
        return log

    return make
