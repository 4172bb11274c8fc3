"""Programs and files in the guest, through the API's narrow door."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pve.site import MACHINE, QuickClock, Site
from pvebench.drivers.proxmox.vm.agent import LAUNCH, AgentGuest
from pvebench.errors import GuestTimeout, HypervisorGone, OutputUnreadable, ToolFailed
from pvebench.model.guest import Completed


@pytest.fixture
def guest(both: Site) -> AgentGuest:
    found = both.node.boot(MACHINE)
    assert isinstance(found, AgentGuest)
    return found


def wait(guest: AgentGuest, pid: int) -> Completed:
    for _ in range(600):
        done = guest.poll(pid)
        if done is not None:
            return done
        QuickClock().sleep(1.0)
    pytest.fail("the job does not tell its end")


def test_a_program_gets_its_words_unchanged(guest: AgentGuest) -> None:
    words = ["/bin/echo", "two words", "$HOME", "a;b", "x=1&y=2", ""]
    assert guest.run(words).stdout == b"two words $HOME a;b x=1&y=2 \n"


def test_how_a_program_ended_is_reported(guest: AgentGuest) -> None:
    done = guest.run(["/bin/sh", "-c", "echo oops >&2; exit 3"])
    assert (done.exit_code, done.stderr) == (3, b"oops\n")


def test_bytes_that_are_no_text_come_back_as_they_were(guest: AgentGuest) -> None:
    done = guest.run(["/usr/bin/printf", r"gr\303\274n \377\376"])
    assert done.stdout == b"gr\xc3\xbcn \xff\xfe"


@pytest.mark.parametrize("given", [b"plain", "grün".encode(), b"x" * 70_000])
def test_input_reaches_the_program(guest: AgentGuest, given: bytes) -> None:
    assert guest.run(["/bin/cat"], stdin=given).stdout == given


@pytest.mark.parametrize("size", [0, 1, 45_000, 45_001, 600_000])
def test_files_of_any_size_go_in_and_out(guest: AgentGuest, size: int) -> None:
    content = bytes(number % 256 for number in range(size))
    guest.write_file("/run/pvebench/file", content)
    assert guest.read_file("/run/pvebench/file") == content


def test_a_file_that_is_not_there_is_named(guest: AgentGuest) -> None:
    with pytest.raises(OutputUnreadable, match="No such file"):
        guest.read_file("/run/pvebench/none")


def test_a_program_that_is_not_there_is_named(guest: AgentGuest) -> None:
    with pytest.raises(ToolFailed, match="program not found"):
        guest.run(["/no/such/program"])


def test_a_long_program_is_polled_to_its_end(guest: AgentGuest) -> None:
    pid = guest.start(["/bin/sh", "-c", "sleep 0.3; echo out; echo err >&2; exit 7"])
    assert guest.poll(pid) is None
    assert wait(guest, pid) == Completed(exit_code=7, stdout=b"out\n", stderr=b"err\n")


def test_a_long_program_can_be_ended_by_its_pid(guest: AgentGuest) -> None:
    pid = guest.start(["/bin/sleep", "60"])
    assert guest.run(["/bin/kill", str(pid)]).exit_code == 0
    assert wait(guest, pid).exit_code == 128 + 15


def test_a_job_that_is_ended_before_its_program_runs_reports_its_end(tmp_path: Path) -> None:
    early = tmp_path / "mkdir"
    early.write_text('#!/bin/sh\nkill "$PPID"\nexec /bin/mkdir "$@"\n', "ascii")
    early.chmod(0o755)
    words = [str(tmp_path / "job"), "-", "--", "--", "/bin/sleep", "60"]
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", LAUNCH, "sh", *words], env=path, check=True, timeout=30)
    assert (tmp_path / "job/all").read_bytes().splitlines()[1] == b"143"


def test_a_jobs_end_survives_lost_answers(both: Site, guest: AgentGuest) -> None:
    pid = guest.start(["/bin/sh", "-c", "echo done"])
    both.faults.add("drop_after", "GET", "/agent/file-read", times=2)
    assert wait(guest, pid).stdout == b"done\n"


def test_a_job_whose_start_was_not_answered_is_not_started_twice(
    both: Site, guest: AgentGuest
) -> None:
    both.faults.add("drop_after", "POST", "/agent/exec")
    pid = guest.start(["/bin/sh", "-c", "echo ran >>/run/pvebench/runs"])
    wait(guest, pid)
    assert guest.read_file("/run/pvebench/runs") == b"ran\n"


def test_a_result_that_was_handed_out_and_lost_is_said_to_be_lost(
    both: Site, guest: AgentGuest
) -> None:
    both.faults.add("drop_after", "GET", "/agent/exec-status")
    with pytest.raises(GuestTimeout, match="in the guest lost"):
        guest.run(["/bin/echo"])


def test_a_dead_agent_is_a_silent_guest(both: Site, guest: AgentGuest) -> None:
    both.machine.agent_dead = True
    vm = f"/nodes/pve1/qemu/{both.node.vmid}/agent.* agent is not running"
    with pytest.raises(GuestTimeout, match=vm):
        guest.run(["/bin/echo"])


def test_a_stopped_vm_is_not_a_silent_guest(both: Site, guest: AgentGuest) -> None:
    both.machine.stop()
    with pytest.raises(HypervisorGone, match="is not running"):
        guest.run(["/bin/echo"])


def test_a_guest_that_does_not_answer_any_more_is_booted_again(
    both: Site, guest: AgentGuest
) -> None:
    both.machine.agent_dead = True
    assert both.node.boot(MACHINE) is not guest


def test_a_prepared_job_is_written_and_started_in_one_request(
    both: Site, guest: AgentGuest
) -> None:
    work = "/run/pvebench/work"
    guest.write_file("/run/pvebench/old", b"")
    before = len(both.api.calls)
    results = (f"{work}/out", f"{work}/none")
    guest.prepare_job(work, {f"{work}/in": b"content"}, results)
    assert len(both.api.calls) == before
    pid = guest.start(["/bin/sh", "-c", f"cat {work}/in >{work}/out"])
    assert len(both.api.calls) == before + 1
    assert wait(guest, pid).exit_code == 0
    before = len(both.api.calls)
    assert guest.read_file(results[0]) == b"content"
    assert (guest.has_file(results[0]), guest.has_file(results[1])) == (True, False)
    assert len(both.api.calls) == before
    # The files belong to the first program only: the directory is not emptied again.
    assert wait(guest, guest.start(["/bin/cat", f"{work}/out"])).stdout == b"content"
