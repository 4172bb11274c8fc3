"""Only the process that is proved to hold a lock is signaled; one instance uses one directory."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pvebench.drivers.storages import contract
from pvebench.errors import AlreadyRunning, NotWritable
from pvebench.store.backups import restore
from pvebench.store.state_directory import StateDirectory, holder_of, stop_holder
from testing.captured_logs import captured_logs
from testing.stores import TemporaryStore

HOLD = """
import sys, time
from pathlib import Path
from pvebench.store.state_directory import StateDirectory
with StateDirectory(Path(sys.argv[1]), exclusive=True):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def program(text: str, *arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a program until it printed a line; end it at the end."""
    command = [sys.executable, "-c", text, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    with program(HOLD, str(path)) as process:
        yield process


@contextmanager
def bystander() -> Iterator[subprocess.Popen[str]]:
    """Another program of this user, with `pvebench` on its command line."""
    with program("import time; print('pvebench', flush=True); time.sleep(600)") as process:
        yield process


def record(path: Path, pid: int, host: str = "pve2") -> None:
    """Write a record into the lock file, as another process would."""
    (path / "lock").write_text(f"{pid} {host}\n")


def test_the_process_that_holds_the_lock_is_stopped(tmp_path: Path) -> None:
    with held(tmp_path) as process:
        assert stop_holder(tmp_path) == process.pid
        assert process.wait(60) == -signal.SIGTERM
    assert stop_holder(tmp_path) == 0


def test_a_holder_that_must_not_be_signaled_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with held(tmp_path) as process:
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        with pytest.raises(
            AlreadyRunning, match=f"{process.pid} on .* not stopped: Operation not per"
        ):
            stop_holder(tmp_path)


def test_a_process_that_does_not_hold_the_lock_is_not_signaled(tmp_path: Path) -> None:
    """The process ID was reused: another process has it, here or in the holder's container."""
    with held(tmp_path) as process, bystander() as other:
        record(tmp_path, other.pid)
        with pytest.raises(AlreadyRunning, match="nothing here proves that it holds"):
            stop_holder(tmp_path)
        time.sleep(0.2)
        assert (process.poll(), other.poll()) == (None, None)


def test_a_process_that_only_has_the_file_open_is_not_signaled(tmp_path: Path) -> None:
    text = "f = open('lock'); print('pvebench', flush=True); import time; time.sleep(600)"
    with held(tmp_path) as process, program(text, "pvebench", cwd=tmp_path) as other:
        record(tmp_path, other.pid)
        with pytest.raises(AlreadyRunning, match="nothing here proves that it holds"):
            stop_holder(tmp_path)
        assert (process.poll(), other.poll()) == (None, None)


@pytest.mark.parametrize("content", [b"", b"0", b"-1 1 x y", b"9" * 400, b"\xff\xfe", b"4194305 1"])
def test_a_damaged_record_signals_nothing(tmp_path: Path, content: bytes) -> None:
    with held(tmp_path) as process:
        (tmp_path / "lock").write_bytes(content)
        with pytest.raises(AlreadyRunning):
            stop_holder(tmp_path)
        assert process.poll() is None


def test_the_holder_of_another_file_of_that_name_is_not_signaled(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with held(one) as process, held(two) as other:
        record(two, process.pid)
        with pytest.raises(AlreadyRunning, match="nothing here proves"):
            stop_holder(two)
        assert (process.poll(), other.poll()) == (None, None)


def test_a_program_that_is_no_pvebench_is_not_signaled(tmp_path: Path) -> None:
    StateDirectory(tmp_path, exclusive=True).close()
    text = (
        "import fcntl, time; f = open('lock', 'r+'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(600)"
    )
    with program(text, cwd=tmp_path) as process:
        record(tmp_path, process.pid)
        with pytest.raises(AlreadyRunning, match="nothing here proves"):
            stop_holder(tmp_path)
        assert process.poll() is None


def test_a_holder_elsewhere_is_named_with_its_machine(tmp_path: Path) -> None:
    with held(tmp_path) as process:
        record(tmp_path, 1, "pve2")
        with pytest.raises(AlreadyRunning, match="process 1 on pve2 not stopped") as caught:
            stop_holder(tmp_path)
        assert "another machine, in another container" in caught.value.cause
        assert "run `pvebench abort` there" in caught.value.next_step
        with pytest.raises(AlreadyRunning, match="in use by process 1 on pve2"):
            StateDirectory(tmp_path, exclusive=True)
        assert process.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_holder_in_another_pid_namespace_is_not_signaled(tmp_path: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            assert holder_of(tmp_path) < 5  # a number that another process has here
            with pytest.raises(AlreadyRunning, match="nothing here proves that it holds"):
                stop_holder(tmp_path)
            assert process.poll() is None
        finally:
            process.kill()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    state, precious = tmp_path / "state", tmp_path / "precious"
    state.mkdir()
    precious.write_text("keep me")
    (state / "lock").symlink_to(precious)
    with pytest.raises(NotWritable, match="symbolic links"):
        StateDirectory(state, exclusive=True)
    assert holder_of(state) == 0
    assert precious.read_text() == "keep me"


def test_a_lock_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(NotWritable, match="not a regular file"):
        StateDirectory(tmp_path, exclusive=True)


# --- copies of a state directory


def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "machine-id").write_text(f"{text}\n")
    monkeypatch.setattr(contract, "_MACHINE_ID", tmp_path / "machine-id")


def test_a_copy_is_refused_while_its_original_runs(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with held(one):
        shutil.copytree(one, two)
        with pytest.raises(AlreadyRunning, match="in use by a process that runs with a copy"):
            StateDirectory(two, exclusive=True)
        assert holder_of(two) == 0
    with (
        StateDirectory(two, exclusive=True),
        pytest.raises(AlreadyRunning, match="runs with a copy"),
    ):
        StateDirectory(one, exclusive=True)


def test_a_lock_file_that_was_removed_admits_no_second_instance(tmp_path: Path) -> None:
    with held(tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(AlreadyRunning, match="in use by"):
            StateDirectory(tmp_path, exclusive=True)


def test_a_copy_on_another_machine_is_refused_until_it_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    machine(monkeypatch, tmp_path, "a" * 32)
    StateDirectory(state, exclusive=True).close()
    before = contract.instance_id(state)
    machine(monkeypatch, tmp_path, "b" * 32)
    for _ in range(2):
        with pytest.raises(AlreadyRunning, match="belongs to another machine") as caught:
            StateDirectory(state, exclusive=True)
        assert "pvebench cleanup --adopt" in caught.value.next_step
    StateDirectory(state, exclusive=True, adopt=True).close()
    StateDirectory(state, exclusive=True).close()
    assert contract.instance_id(state) == before
    machine(monkeypatch, tmp_path, "a" * 32)
    with pytest.raises(AlreadyRunning, match="belongs to another machine"):
        StateDirectory(state, exclusive=True)


def test_the_machines_id_itself_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, tmp_path, "ab" * 16)
    StateDirectory(tmp_path, exclusive=True).close()
    assert "ab" * 8 not in (tmp_path / "instance").read_text()
    assert contract.machine_token() in (tmp_path / "instance").read_text()


@pytest.mark.parametrize("text", ["", "uninitialized"])
def test_a_machine_without_an_id_binds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    machine(monkeypatch, tmp_path, text)
    StateDirectory(tmp_path / "state", exclusive=True).close()
    machine(monkeypatch, tmp_path, "a" * 32)
    StateDirectory(tmp_path / "state", exclusive=True).close()


# --- users


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_root_makes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    user = pwd.getpwnam("nobody")
    state = tmp_path / "state"
    state.mkdir()
    backup = tmp_path / "backup.db"
    TemporaryStore(backup, simulated=True).close()
    os.chown(state, user.pw_uid, user.pw_gid)
    with captured_logs() as logs, StateDirectory(state, exclusive=True) as opened:
        restore(opened.database, backup, datetime.now(UTC))
        TemporaryStore(opened.database, simulated=True).close()
    owners = {path.name: path.stat().st_uid for path in state.iterdir() if path.is_file()}
    assert owners == dict.fromkeys(
        ("lock", "instance", "pvebench.db", "pvebench.db.lock"), user.pw_uid
    )
    assert [(entry["log_level"], entry["owner"]) for entry in logs] == [("warning", "nobody")]
    assert "runuser -u nobody" in logs[0]["next_step"]


def test_the_owner_of_a_directory_sees_no_warning(tmp_path: Path) -> None:
    with captured_logs() as logs:
        StateDirectory(tmp_path, exclusive=True).close()
    assert logs == []
