"""`pvebench abort` and `cleanup`: what they end, what they leave, and their exit codes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.drivers.storages import contract
from pvebench.store import state_directory
from pvebench.store.state_directory import StateDirectory
from testing.stores import TemporaryStore


def command(state: Path, *words: str, driver: str = "host") -> int:
    return run_cli([*words, "--state", str(state), "--driver", driver])


def entry(state: Path, kind: str, **details: str) -> None:
    store = TemporaryStore(state / "pvebench.db", simulated=False)
    store.journal.open(kind, details)
    store.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def test_abort_without_leftovers_exits_with_0(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(state, "abort") == 0
    assert capsys.readouterr().out == "no leftovers\n"


def test_abort_with_wrong_options_exits_with_2(state: Path) -> None:
    assert command(state, "abort", driver="nonsense") == 2


def test_abort_of_a_state_directory_that_cannot_be_used_exits_with_3(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert command(tmp_path / "file", "abort") == 3


def test_abort_of_a_holder_that_is_not_proved_exits_with_4(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateDirectory(state, exclusive=True):
        monkeypatch.setattr(state_directory, "holds_lock", lambda *_: False)
        assert command(state, "abort") == 4
    assert f"process {os.getpid()} on {socket.gethostname()} not stopped" in capsys.readouterr().err


def test_abort_with_a_damaged_database_exits_with_5(state: Path) -> None:
    (state / "pvebench.db").write_bytes(b"not a database, but long enough to be looked at" * 99)
    assert command(state, "abort") == 5


@pytest.mark.parametrize("word", ["abort", "cleanup"])
def test_leftovers_that_remain_are_named_and_exit_with_6(
    state: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"/tmp/pvebench-test-{contract.instance_id(state)}-x"
    entry(state, "ssh-left", path=name, where="pve1")
    for _ in range(2):
        assert command(state, word) == 6
        out, err = capsys.readouterr()
        assert f"{name} is on pve1" in out
        assert "1 journal entries of leftovers remain" in err
        assert "or of a plug-in that is not installed" in err


def test_a_directory_of_another_machine_is_cleaned_up_once_it_is_adopted(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes = tmp_path / "volumes"
    volumes.mkdir()
    volume = volumes / f"pvebench-test-{contract.instance_id(state)}-x.raw"
    volume.write_text("")
    entry(state, "volume", path=str(volume))
    here = tmp_path / "machine-id"
    monkeypatch.setattr(contract, "_MACHINE_ID", here)
    here.write_text("a" * 32)
    contract.bound_id(state, adopt=False)
    here.write_text("b" * 32)
    assert command(state, "cleanup") == 4
    assert command(state, "abort") == 4
    assert volume.exists()
    assert command(state, "cleanup", "--adopt") == 0
    assert not volume.exists()
