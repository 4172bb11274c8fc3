"""Copies of a real state directory: started beside the original, and restored when it is older.

The rules are those of docs/trust.md: a copy on this machine does nothing (`shared`), what its
journal names is changed only with proof (`unproved`), and nothing is left (`orphaned`).
"""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pvebench.errors import AlreadyRunning
from pvebench.store.backups import copy_database
from pvebench.store.state_directory import recorded_holder

SECONDS: Final = 60


@dataclass
class RealCopies:
    """What people do to the state directory of a real instance.

    Attributes:
        directory: of settings, storages and state; the copy of a state directory is in it too.
        wrong: takes a line about each broken rule.
        acts: how often each was done.
    """

    directory: Path
    config: Path
    wrong: list[str]
    acts: int = 0
    _older: Path = field(init=False)

    def __post_init__(self) -> None:
        self._older = self.directory / "older.db"

    @property
    def _state(self) -> Path:
        return self.directory / "state"

    def pvebench(self, *words: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pvebench", *words, "--config", str(config or self.config)]
        command = ["timeout", "--signal=INT", str(SECONDS), *command]  # status 124
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def start_beside(self, process: subprocess.Popen[bytes], when: str) -> None:
        """Copy the state of a running instance, and start and clean up the copy meanwhile.

        The copy's journal lists the original's VM and volumes, with its id.
        """
        process.send_signal(signal.SIGSTOP)  # so that it does not end first
        try:
            holder = recorded_holder(self._state)
            has_database = (self._state / "pvebench.db").exists()
            if has_database and holder is not None and holder[0] == process.pid:
                self._start_copy(when)
        finally:
            process.send_signal(signal.SIGCONT)

    def _start_copy(self, when: str) -> None:
        copy = self.directory / "copied"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._state, copy, ignore=lambda _, names: {*names} & {"run"})
        copy_database(self._state / "pvebench.db", self._older)
        config = self.config.with_name("copied.yaml")
        text = self.config.read_text("utf-8")
        config.write_text(text.replace("state: state", "state: copied"), "utf-8")
        for command in ("run", "cleanup"):
            done = self.pvebench(command, config=config)
            if done.returncode != AlreadyRunning.exit_code:
                self.wrong.append(f"{command} in a copy ended with {done.returncode} in {when}")
        self.acts += 1

    def restore_older(self, when: str) -> None:
        """After a kill restore a backup of before it, clean up, and put the newest one back.

        The journal of the backup names a process and files of others: the ids were reused.
        """
        if not self._older.exists():
            return
        with self._others() as others:
            self._falsify(others)
            self._restored(self._older, when)
            (replaced,) = self._state.glob("pvebench.db.replaced-*Z")
            self._cleaned(when)
            self._restored(replaced, when)
        for path in self._state.glob("pvebench.db.replaced-*"):
            path.unlink()
        self._older.unlink()
        self.acts += 1

    def _restored(self, backup: Path, when: str) -> None:
        done = self.pvebench("restore", str(backup))
        if done.returncode:
            self.wrong.append(f"restore of {backup.name} failed in {when}: {done.stderr}")

    def _cleaned(self, when: str) -> None:
        done = self.pvebench("cleanup")
        if done.returncode:
            self.wrong.append(f"cleanup by an older journal failed in {when}: {done.stderr}")

    @contextmanager
    def _others(self) -> Iterator[Path]:
        """Yield a directory of others with a file, in which a process of others runs."""
        others = self.directory / "others"
        others.mkdir(exist_ok=True)
        (others / "data").write_text("theirs")
        with subprocess.Popen(["sleep", "600"], cwd=others) as process:
            try:
                yield others
            except BaseException:
                process.kill()
                raise
            if process.poll() is not None:
                self.wrong.append("a process of others was ended")
            process.kill()
        if (others / "data").read_text() != "theirs":
            self.wrong.append("a file of others was changed")

    def _falsify(self, others: Path) -> None:
        """Open every entry of the backup again, once as it is and once naming what is of others."""
        with closing(sqlite3.connect(self._older)) as database, database:
            rows = database.execute("SELECT opened, kind, details FROM journal").fetchall()
            database.execute("UPDATE journal SET closed = NULL")
            for opened, kind, details in rows:
                entry = json.loads(details)
                path = str(others / "data")
                named = {key: path if "/" in str(one) else one for key, one in entry.items()}
                database.execute(
                    "INSERT INTO journal (opened, kind, details) VALUES (?, ?, ?)",
                    (opened, kind, json.dumps(named)),
                )
