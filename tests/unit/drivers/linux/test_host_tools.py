"""Programs on this machine: their end, their output, and those that hang."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pvebench.drivers.linux import host_tools
from pvebench.drivers.linux.host_tools import HostTools, run_program
from pvebench.errors import GuestTimeout, OutputUnreadable, StorageHangs, ToolFailed
from pvebench.model.units import MIB


def test_tools_run_on_this_machine_and_their_end_is_reported() -> None:
    tools = HostTools()
    pid = tools.start(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])
    while (ended := tools.poll(pid)) is None:
        pass
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, b"out\n", b"err\n")
    assert tools.run(["cat"], stdin=b"hello").stdout == b"hello"


def test_a_tool_that_is_not_installed_is_named() -> None:
    with pytest.raises(ToolFailed, match="cannot start no-such-tool on the host"):
        HostTools().run(["no-such-tool"])


def test_a_short_program_that_hangs_is_given_up() -> None:
    with pytest.raises(GuestTimeout):
        HostTools().run(["sleep", "60"], timeout=0.1)


def test_a_program_that_hangs_keeps_no_other_one_running(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = HostTools()
    pids = [tools.start(["sleep", "60"]) for _ in range(3)]
    end = host_tools._Started.end

    def end_others(started: host_tools._Started, program: str) -> None:
        if started.process.pid == pids[1]:
            raise StorageHangs("sleep does not end")
        end(started, program)

    with monkeypatch.context() as patch:
        patch.setattr(host_tools._Started, "end", end_others)
        with pytest.raises(StorageHangs):
            tools.close()
    assert [*tools._running] == [pids[1]]
    tools.close()


def test_a_program_that_no_signal_ends_is_named_and_is_ended_by_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its I/O hangs: tests/hostprocess/quick_faults.py has the real one."""
    monkeypatch.setattr(host_tools, "END_SECONDS", 0.1)
    tools = HostTools()
    pid = tools.start(["sleep", "60"])
    with monkeypatch.context() as patch:
        patch.setattr(host_tools.signal, "SIGKILL", 0)  # arrives, and ends nothing
        for _ in range(2):
            with pytest.raises(StorageHangs, match=rf"sleep \(process {pid}\) does not end"):
                tools.close()
    tools.close()
    assert not Path(f"/proc/{pid}").exists()


def test_output_without_end_is_rejected_and_its_program_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program in a container of the lab can be replaced by its root."""
    monkeypatch.setattr(host_tools, "MAX_BYTES", MIB)
    tools = HostTools()
    with pytest.raises(OutputUnreadable, match="output of cat exceeds 1"):
        tools.run(["cat", "/dev/zero"])
    with pytest.raises(OutputUnreadable, match="output of head exceeds 1"):
        tools.run(["head", "-c", str(MIB + 1), "/dev/zero"])
    assert len(tools.run(["head", "-c", str(MIB), "/dev/zero"]).stdout) == MIB
    pid = tools.start(["sh", "-c", "cat /dev/zero >&2"])
    with pytest.raises(OutputUnreadable, match="output of sh exceeds 1"):
        _ = [tools.poll(pid) for _ in iter(int, 1)]
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(OutputUnreadable, match="/dev/zero exceeds 1"):
        tools.read_file("/dev/zero")
    tools.close()


def test_a_short_program_is_answered_with_status_and_any_bytes() -> None:
    done = run_program(["/bin/sh", "-c", "printf 'a\\377'; echo e >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "a\ufffd", "e\n")
    with pytest.raises(FileNotFoundError):
        run_program(["no-such-program"])
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(["sleep", "60"], seconds=0.1)


def test_input_that_a_program_does_not_read_does_not_stop_its_time_limit() -> None:
    with pytest.raises(GuestTimeout, match="sleep did not end"):
        HostTools().run(["sleep", "60"], stdin=b"x" * MIB, timeout=0.3)


def test_closing_ends_what_still_runs() -> None:
    tools = HostTools()
    pid = tools.start(["sleep", "600"])
    tools.close()
    assert not Path(f"/proc/{pid}").exists()
