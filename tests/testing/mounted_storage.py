"""A storage of the host's own rows whose file system is mounted and unmounted between commands."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from testing.mounts import with_mounts

PACK = """\
pack: small
title: One row of the host
every: 10m
axes: {cache: [none]}
fixed: {bus: scsi, format: raw}
volume: {size: 16M}
measure: {ramp: 100ms, runtime: 1s, settle: 0s}
workloads:
  - fio: {rw: randread, bs: 4k}
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A command of pvebench: its exit status and all that it said."""

    code: int
    said: str


class MountedStorage:
    """Settings with the storage `local` in a directory of the file system at `mount`."""

    def __init__(self, directory: Path) -> None:
        self.mount = directory / "mnt"
        self.path = self.mount / "bench"
        self.mount.mkdir()
        (directory / "pack.yaml").write_text(PACK, "utf-8")
        self._directory = directory
        self._config = directory / "pvebench.yaml"
        storages = {"local": {"kind": "dir", "path": str(self.path)}}
        settings = {"driver": "host", "node": "lab", "state": "state", "packs": ["pack.yaml"]}
        self._config.write_text(json.dumps({**settings, "storages": storages}), "utf-8")

    def do(self, mounting: str, *commands: str) -> list[Ended]:
        """Run commands of pvebench where `mounting`, lines of a shell script, was done before."""
        lines = ["export PYTHONUNBUFFERED=1", mounting]
        for number, command in enumerate(commands):
            said = self._directory / f"said-{number}"
            lines.append(
                f"code=0; '{sys.executable}' -m pvebench {command} --config '{self._config}' "
                f">'{said}' 2>&1 || code=$?; echo $code"
            )
        done = with_mounts("\n".join(lines), env={"PYTHONPATH": ":".join(sys.path)})
        codes = [int(line) for line in done.stdout.split()]
        assert len(codes) == len(commands), done.stderr
        assert 2 not in codes, (self._directory / "said-0").read_text("utf-8")
        return [
            Ended(code, (self._directory / f"said-{number}").read_text("utf-8"))
            for number, code in enumerate(codes)
        ]

    def runs(self) -> list[tuple[str, str, str]]:
        """Return (case key, outcome, reason) of each stored run, oldest first; SQLite reads it."""
        with closing(sqlite3.connect(self._directory / "state/pvebench.db")) as database:
            query = "SELECT case_key, outcome, reason FROM runs ORDER BY id"
            return database.execute(query).fetchall()
