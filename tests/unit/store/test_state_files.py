"""Links, pipes and devices in place of the small files of a state directory.

Another user of the directory may put them there: a service's user, while root runs a command.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pvebench.drivers.qemu.accelerator import remembered_fault
from pvebench.drivers.storages.contract import bound_id, instance_id
from pvebench.errors import NotWritable, PvebenchError
from pvebench.store.backups import copy_database
from pvebench.store.engine import open_engine
from pvebench.store.state_directory import StateDirectory, pause_reason_of, summarize_store

Make = Callable[[Path], None]
MAKE: dict[str, Make] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to(path.with_name("elsewhere")),
    "directory": Path.mkdir,
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").write_text("theirs\n", "utf-8")
    (tmp_path / "elsewhere").chmod(0o644)
    return tmp_path


def result_of(call: Callable[[], object]) -> Any:
    """Return what a call returns or raises, if it ends."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(call())
        except (PvebenchError, OSError, sqlite3.Error) as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert ended, "it does not end"
    return ended[0]


def unchanged(state: Path) -> bool:
    other = state / "elsewhere"
    return other.read_text("utf-8") == "theirs\n" and other.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_pause_that_cannot_be_read_is_a_pause_and_ends(state: Path, make: Make) -> None:
    make(state / "paused")
    assert "paused cannot be read: " in result_of(lambda: pause_reason_of(state))
    if make is not Path.mkdir:
        assert StateDirectory(state, exclusive=False).resume()
        assert pause_reason_of(state) == ""
    assert unchanged(state)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("name", ["paused", "paused.new"])
def test_a_pause_writes_through_nothing(state: Path, make: Make, name: str) -> None:
    make(state / name)
    paused = result_of(lambda: StateDirectory(state, exclusive=False).pause("moving"))
    if make is Path.mkdir:
        assert isinstance(paused, NotWritable)
    else:
        assert pause_reason_of(state) == "moving"
    assert unchanged(state)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_an_id_is_read_and_written_through_nothing(state: Path, make: Make) -> None:
    make(state / "instance.new")
    if make is Path.mkdir:
        assert isinstance(result_of(lambda: instance_id(state)), NotWritable)
        return
    own = instance_id(state)
    assert bound_id(state, adopt=False) == own
    (state / "instance").unlink()
    make(state / "instance")
    assert isinstance(result_of(lambda: instance_id(state)), NotWritable)
    assert unchanged(state)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_test_of_kvm_that_cannot_be_read_is_repeated(state: Path, make: Make) -> None:
    make(state / "kvm.json")
    assert result_of(lambda: remembered_fault(state / "kvm.json")) is None


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_database_that_is_no_file_is_an_error(state: Path, make: Make) -> None:
    path = state / "pvebench.db"
    make(path)
    assert isinstance(result_of(lambda: summarize_store(path, most_bytes=0)), PvebenchError)
    assert isinstance(result_of(lambda: open_engine(path)), PvebenchError)
    assert unchanged(state)


def test_a_copy_is_written_through_no_link(state: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.db"
    open_engine(source).dispose()
    empty = state / "empty"
    for name in ("copy.db", "copy.db.part"):
        empty.write_bytes(b"")
        (state / name).symlink_to(empty)
        copy_database(source, state / "copy.db")
        assert empty.read_bytes() == b""
        (state / "copy.db").unlink()
