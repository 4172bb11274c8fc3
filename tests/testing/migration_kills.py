"""Kill the opening of a database at every step.

    migration_kills.py DATABASE DIRECTORY [next]

Each time on a fresh copy, `DIRECTORY/<n>/pvebench.db`, in a process of its own that ends without
any cleanup, as by `kill -9`, just before its n-th step. A step is an SQL statement of any
connection (also BEGIN and COMMIT), or a file that is renamed or removed. The last directory is the
one whose opening completed. DATABASE may be absent: then it is created. `next`: a pvebench with one
more schema opens it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from pvebench.store import engine
from testing import next_schema

KILLED = 9


class Killer:
    """Ends the process just before its n-th step."""

    def __init__(self, at: int) -> None:
        self._left = at

    def start(self) -> None:
        real = sqlite3.connect

        def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = real(*arguments, **options)
            connection.set_trace_callback(lambda _: self._step())
            return connection

        sqlite3.connect = sqlite3.dbapi2.connect = connect
        sys.addaudithook(lambda event, _: self._on_event(event))

    def _on_event(self, event: str) -> None:
        if event in ("os.rename", "os.remove"):
            self._step()

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os._exit(KILLED)


def killed(database: Path, step: int) -> bool:
    """Open a database in a process that ends before a step; return whether it got that far."""
    child = os.fork()
    if child == 0:
        Killer(step).start()
        engine.open_engine(database).dispose()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, KILLED):
        sys.exit(f"step {step}: opening ended with {code}")
    return code == KILLED


def main(database: Path, directory: Path) -> None:
    with tempfile.TemporaryDirectory() as warm:
        # Imports everything once instead of in each child.
        first = Path(warm) / database.name
        if database.exists():
            shutil.copy(database, first)
        engine.open_engine(first).dispose()
    step = 0
    while True:
        step += 1
        copy = directory / str(step) / database.name
        copy.parent.mkdir(parents=True)
        if database.exists():
            shutil.copy(database, copy)
        if not killed(copy, step):
            return


if __name__ == "__main__":
    if sys.argv[3:]:
        next_schema.install()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
