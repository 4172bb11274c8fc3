"""`pvebench export`: its options."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from testing.packs import SMALL, write_pack

Captured = pytest.CaptureFixture[str]


def test_a_run_of_1970_needs_a_begin_of_the_export(tmp_path: Path, capsys: Captured) -> None:
    state = ["--state", str(tmp_path), "--driver", "simulated"]
    assert run_cli(["run", *state, "--pack", str(write_pack(tmp_path, SMALL))]) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "pvebench.db")) as database, database:
        database.execute("UPDATE cases SET first_started = 0")
    assert run_cli(["export", "openmetrics", *state]) == 5
    assert "the first run began 1970-01-01" in capsys.readouterr().err
    assert run_cli(["export", "openmetrics", *state, "--from", "2026-01-01"]) == 0
