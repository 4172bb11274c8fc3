"""`pvebench results`: stored runs as tables, as words and beside reference series."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pvebench.cli.main import run_cli
from pvebench.model.disk import Cache
from pvebench.model.scenario import Machine
from pvebench.model.units import GIB
from pvebench.service import publisher
from testing.captured_logs import log_restored
from testing.packs import QUICK, SMALL, write_pack
from testing.prometheus import free_port
from testing.stored_runs import FIRST
from testing.stored_runs import run as stored
from testing.stores import TemporaryStore

Captured = pytest.CaptureFixture[str]


def test_two_buses_are_compared_in_a_table_and_in_words(tmp_path: Path, capsys: Captured) -> None:
    state = ["--state", str(tmp_path), "--driver", "simulated"]
    assert run_cli(["run", *state, "--pack", str(QUICK), "--cycles", "3"]) == 0
    capsys.readouterr()
    assert run_cli(["compare", "virtio", "scsi", *state]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert re.match(r"scsi is faster than virtio in 0 and slower in [3-6] of 6 results; geo", last)
    assert run_cli(["compare", "cache=none", "local.*.raw.writeback", "--format=json", *state]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [sorted({name.split(".")[3] for name in row["scenarios"]}) for row in rows] == [
        ["none", "writeback"]
    ] * 4
    assert all(row["low"] <= row["ratio"] <= row["high"] for row in rows)
    assert {note for row in rows for note in row["notes"]} == {
        "its writes stay in host memory until the guest flushes"
    }
    assert run_cli(["compare", "virtio", "virtio", *state]) == 5
    assert "compare two values of one option, such as cache=none" in capsys.readouterr().err
    assert run_cli(["compare", "virtio", "nvme", *state]) == 5


def test_guests_of_two_systems_are_compared(tmp_path: Path, capsys: Captured) -> None:
    scenario = replace(FIRST.scenario, disk=replace(FIRST.scenario.disk, cache=Cache.WRITEBACK))
    other = replace(FIRST, scenario=scenario)
    windows = Machine(memory_bytes=4 * GIB, cpus=2, os="windows", image="disk.qcow2")
    with contextlib.closing(TemporaryStore(tmp_path / "pvebench.db")) as store:
        store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
        foreign = [
            replace(case, scenario=replace(case.scenario, machine=windows))
            for case in (FIRST, other)
        ]
        store.add_history(stored(0, case) for case in (FIRST, other, *foreign))
    state = ["--state", str(tmp_path), "--format=json"]
    assert run_cli(["compare", "os=linux", "os=windows", *state]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [[name.endswith(".os-windows") for name in row["scenarios"]] for row in rows] == [
        [False, True]
    ] * 2
    assert len({row["scenarios"][0] for row in rows}) == 2


def test_results_can_be_viewed_after_the_run_and_stay_as_they_are(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ["--state", str(tmp_path)]
    pack = write_pack(tmp_path, SMALL)
    assert run_cli(["run", *state, "--driver", "simulated", "--pack", str(pack)]) == 0
    listen = f"127.0.0.1:{free_port()}"
    pages: list[str] = []

    class Visit:
        def wait(self) -> None:
            with urllib.request.urlopen(f"http://{listen}/", timeout=60) as response:
                pages.append(response.read().decode())
            raise KeyboardInterrupt

    content = (tmp_path / "pvebench.db").read_bytes()
    monkeypatch.setattr(publisher, "threading", SimpleNamespace(Event=Visit))
    assert run_cli(["view", *state, "--listen", listen]) == 130
    assert f"results on http://{listen}/" in capsys.readouterr().out
    assert "randread-4k-qd8" in pages[0]
    assert (tmp_path / "pvebench.db").read_bytes() == content
    assert run_cli(["view", "--state", str(tmp_path / "none")]) == 5


def test_results_before_any_run_say_what_to_do(tmp_path: Path, capsys: Captured) -> None:
    assert run_cli(["results", "--state", str(tmp_path)]) == 5
    assert "next step: run `pvebench run` first" in capsys.readouterr().err


def test_simulated_results_are_reported_with_the_driver_that_goes_on_with_them(
    tmp_path: Path, capsys: Captured
) -> None:
    state = ["--state", str(tmp_path / "state")]
    pack = write_pack(tmp_path, SMALL)
    assert run_cli(["run", "--driver", "simulated", *state, "--pack", str(pack)]) == 0
    assert run_cli(["cleanup", *state]) == 5
    assert "--driver simulated" in capsys.readouterr().err
    assert run_cli(["cleanup", *state, "--driver", "simulated"]) == 0


@pytest.mark.parametrize(
    ("before", "after", "said", "logged"),
    [([], [], 2, 0), (["--log.level", "info"], [], 0, 2), ([], ["-v"], 0, 2)],
)
def test_a_run_is_reported_once(
    before: list[str], after: list[str], said: int, logged: int, tmp_path: Path, capsys: Captured
) -> None:
    """Without a terminal: as a line for people, or in the log; noisy runs included."""
    pack = write_pack(tmp_path, SMALL.replace("runtime: 2s", "runtime: 20s\n  noisy: 0.1%"))
    state = ["--state", str(tmp_path / "state"), "--driver", "simulated"]
    with log_restored():
        assert run_cli([*before, "run", *after, *state, "--pack", str(pack)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("  noisy  ") == said
    assert captured.err.count('event="run ended"') == logged
