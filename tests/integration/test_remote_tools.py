"""A machine's own rows by ssh, against OpenSSH's own server on a loopback port."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from pvebench.config import Settings
from pvebench.drivers import engine_of
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import DriverContext
from pvebench.drivers.ssh import connection as ssh_room
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.errors import (
    AccessDenied,
    ConfigError,
    GuestTimeout,
    HypervisorGone,
    OutcomeUnknown,
    OutputUnreadable,
    PvebenchError,
    ServerGone,
    ServerUntrusted,
    ToolFailed,
    VolumeError,
)
from pvebench.model.guest import Completed
from pvebench.model.units import MIB
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench.store.store import Store
from pvebench_lab.remote_tools import RemoteCommands, RemoteTools
from testing.packs import Recorder, tool_workload
from testing.real_outcomes import MEASURED
from testing.sshd import SshServer, fingerprint, make_key, ssh_server
from testing.storages import host_row
from testing.stores import TemporaryStore

ROW = host_row(8 * MIB, "faraway", "far")
ODD = "od d $(touch gotcha) 'x'"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    with ssh_server(tmp_path / "sshd") as made:
        yield made


@pytest.fixture
def ssh(server: SshServer) -> Iterator[SshConnection]:
    connection = SshConnection(server.settings())
    yield connection
    connection.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    yield made
    made.close()


@pytest.fixture
def tools(ssh: SshConnection, store: Store, tmp_path: Path) -> Iterator[RemoteTools]:
    made = RemoteTools(RemoteCommands(ssh), f"{tmp_path}/pvebench-test-tools", store.journal)
    yield made
    made.leave()


def ended(tools: RemoteTools, pid: int) -> Completed:
    deadline = time.monotonic() + 60
    while (done := tools.poll(pid)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return done


def runs(pid: str) -> bool:
    """Return whether a process is there, and not only its number until somebody asks for it."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def settings_of(server: SshServer, tmp_path: Path, where: Path) -> Settings:
    where.mkdir()
    return Settings.model_validate(
        {
            "driver": "host",
            "node": "faraway",
            "state": tmp_path / "state",
            "storages": {"far": {"path": where}},
            "ssh": server.settings().model_dump(exclude_unset=True),
        }
    )


def place_of(store: Store, tmp_path: Path) -> DriverContext:
    return DriverContext(
        runtime=tmp_path, journal=store.journal, clock=SystemClock(), say=lambda _: None
    )


def ours_below_tmp(settings: Settings) -> list[Path]:
    name = (settings.state / "instance").read_text("ascii").split()[0]
    return list(Path("/tmp").glob(f"pvebench-test-{name}-*"))


def test_fio_measures_over_ssh_in_a_directory_with_an_odd_name_and_leaves_nothing(
    server: SshServer, store: Store, tmp_path: Path
) -> None:
    where = tmp_path / ODD
    settings = settings_of(server, tmp_path, where)
    settings.state.mkdir()
    (site,) = engine_of("host").sites(settings, place_of(store, tmp_path))
    runner = Runner(site, Recorder())
    workload = tool_workload(
        "fio", {"rw": "randread", "bs": "4k"}, ramp_seconds=0.2, runtime_seconds=1.0
    )
    run = runner.run(Case(scenario=ROW, workload=workload), cycle="", conduct=Conduct())
    assert run.outcome in MEASURED, run.reason
    metrics = {sample.metric for sample in run.samples}
    assert {"iops", "host_cpu"} <= metrics, metrics
    assert run.environment.facts["kernel"] == os.uname().release
    assert [one.name.startswith("pvebench-test-") for one in where.iterdir()] == [True, True]
    assert ours_below_tmp(settings)
    runner.close()
    assert list(where.iterdir()) == []
    assert ours_below_tmp(settings) == []
    assert store.journal.pending() == []
    assert not Path("gotcha").exists()


def test_words_reach_the_program_as_they_are(ssh: SshConnection) -> None:
    words = [ODD, "; touch gotcha", "", "-n", "a\nb", "*", "ü\\"]
    assert ssh.run(["printf", "%s|", *words]).stdout.decode() == "|".join(words) + "|"


def test_a_command_that_ends_before_it_is_listened_to_has_reported_all_the_same(
    ssh: SshConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncssh's own BrokenPipeError: its channel is closed when the input is to be written."""
    made = asyncssh.SSHClientConnection.create_process

    async def seen_late(*words: Any, **options: Any) -> Any:
        process = await made(*words, **options)
        await process.wait_closed()  # as on a busy machine: it ended in the meantime
        return process

    monkeypatch.setattr(asyncssh.SSHClientConnection, "create_process", seen_late)
    assert ssh.run(["sh", "-c", "echo done; exit 7"]) == Completed(7, b"done\n", b"")
    assert ssh.run(["true"], stdin=b"nobody reads this") == Completed(0, b"", b"")


def test_a_changed_host_key_is_reported_and_nothing_is_sent(
    server: SshServer, ssh: SshConnection
) -> None:
    assert ssh.run(["true"]).exit_code == 0
    ssh.close()
    make_key(server.folder / "host_key")
    with pytest.raises(ServerUntrusted, match="SSH host key mismatch"):
        ssh.run(["touch", str(server.folder / "sent")])
    assert not (server.folder / "sent").exists()
    server.trust()
    assert ssh.run(["true"]).exit_code == 0


def test_a_pinned_fingerprint_takes_the_place_of_known_hosts(server: SshServer) -> None:
    """The fingerprint is ssh-keygen's, as an administrator reads it on the machine's console."""
    right = fingerprint(server.folder / "host_key.pub")
    wrong = fingerprint(server.folder / "user_key.pub")
    for given, trusted in ((right, True), (wrong, False)):
        pinned = SshConnection(server.settings(known_hosts=None, fingerprint=given))
        if trusted:
            assert pinned.run(["true"]).exit_code == 0
        else:
            with pytest.raises(ServerUntrusted):
                pinned.run(["true"])
        pinned.close()


def _readable_key(server: SshServer) -> None:
    (server.folder / "user_key").chmod(0o644)


def _no_key(server: SshServer) -> None:
    (server.folder / "user_key").write_text("no key\n")


def _unknown_key(server: SshServer) -> None:
    (server.folder / "authorized_keys").write_text("")


def _nobody_known(server: SshServer) -> None:
    (server.folder / "known_hosts").unlink()


def _away(server: SshServer) -> None:
    server.away = True


REFUSALS: dict[Callable[[SshServer], None], tuple[type[PvebenchError], str]] = {
    _readable_key: (ConfigError, "accessible to other users"),
    _no_key: (ConfigError, "not a usable private key"),
    _unknown_key: (AccessDenied, "rejects the key"),
    _nobody_known: (ConfigError, "without a host key, pvebench does not connect"),
    _away: (ServerGone, "ssh to .* failed"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_keeps_from_logging_in_is_reported(
    server: SshServer, ssh: SshConnection, what: Callable[[SshServer], None]
) -> None:
    what(server)
    kind, said = REFUSALS[what]
    with pytest.raises(kind, match=said) as caught:
        ssh.run(["true"])
    assert caught.value.next_step


def test_an_answer_without_end_is_cut_off(
    ssh: SshConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_room, "MAX_BYTES", 1000)
    with pytest.raises(OutputUnreadable, match="output of a command exceeds"):
        ssh.run(["yes"])
    assert ssh.run(["echo", "again"]).stdout == b"again\n"


def test_a_command_that_does_not_end_is_given_up(ssh: SshConnection) -> None:
    with pytest.raises(OutcomeUnknown, match="no result of a command on"):
        ssh.run(["sleep", "600"], timeout=0.5)


def test_a_tool_outlives_the_connection_and_its_end_is_asked_for(
    server: SshServer, tools: RemoteTools, tmp_path: Path
) -> None:
    flag = tmp_path / "go on"
    script = 'echo begun; until [ -e "$0" ]; do sleep 0.05; done; echo done; echo err >&2; exit 3'
    pid = tools.start(["sh", "-c", script, str(flag)])
    assert tools.poll(pid) is None
    server.cut()
    server.away = True
    assert tools.poll(pid) is None  # nobody knows, so it is not over
    server.away = False
    flag.touch()
    done = ended(tools, pid)
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"begun\ndone\n", b"err\n")
    assert server.logins >= 3


class Losing(SshConnection):
    """Loses the answer to the next `start`.

    Attributes:
        arrives: whether the command reaches the machine all the same.
    """

    arrives: bool | None = None
    command: list[str]

    def run(self, argv: Any, *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        if "start" in argv and self.arrives is not None:
            arrives, self.arrives, self.command = self.arrives, None, list(argv)
            if arrives:
                super().run(argv, stdin=stdin, timeout=timeout)
            raise OutcomeUnknown("lost")
        return super().run(argv, stdin=stdin, timeout=timeout)


@pytest.fixture
def losing(server: SshServer) -> Iterator[Losing]:
    connection = Losing(server.settings())
    yield connection
    connection.close()


def test_a_start_whose_answer_is_lost_is_not_made_twice(
    losing: Losing, store: Store, tmp_path: Path
) -> None:
    tools = RemoteTools(RemoteCommands(losing), f"{tmp_path}/pvebench-test-tools", store.journal)
    count = tmp_path / "count"
    losing.arrives = True
    pid = tools.start(["sh", "-c", f"echo once >>{count}; exit 5"])
    assert ended(tools, pid).exit_code == 5
    assert count.read_text() == "once\n"
    tools.leave()


def test_a_start_that_never_arrived_is_called_off_for_good(
    losing: Losing, store: Store, tmp_path: Path
) -> None:
    tools = RemoteTools(RemoteCommands(losing), f"{tmp_path}/pvebench-test-tools", store.journal)
    losing.arrives = False
    with pytest.raises(ServerGone, match="not started"):
        tools.start(["touch", str(tmp_path / "late")])
    # The packet that was thought lost comes after all.
    assert losing.run(losing.command).exit_code == 97
    assert not (tmp_path / "late").exists()
    tools.leave()


def test_a_program_that_is_not_there_is_named(tools: RemoteTools) -> None:
    with pytest.raises(ToolFailed, match="cannot start no-such-tool on"):
        tools.run(["no-such-tool"])
    pid = tools.start(["no-such-tool"])
    with pytest.raises(ToolFailed, match="cannot start no-such-tool on"):
        ended(tools, pid)


def test_a_short_program_that_hangs_is_given_up(tools: RemoteTools) -> None:
    with pytest.raises(GuestTimeout):
        tools.run(["sleep", "60"], timeout=0.5)


def test_closing_ends_what_runs_and_all_that_it_started(tools: RemoteTools, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    tools.start(["sh", "-c", 'sleep 600 & echo $! >"$0"; setsid sleep 601 & wait', str(numbers)])
    deadline = time.monotonic() + 30
    while not numbers.exists() or not numbers.read_text().strip():
        assert time.monotonic() < deadline
    tools.close()
    assert not runs(numbers.read_text().strip())


def test_a_tool_that_vanishes_is_reported(tools: RemoteTools) -> None:
    pid = tools.start(["sleep", "600"])
    parent = int(Path(f"/proc/{pid}/stat").read_text().split()[3])
    os.kill(parent, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(HypervisorGone, match="disappeared without a result"):
        ended(tools, pid)


def test_after_a_crash_the_next_start_ends_and_removes_what_is_left(
    server: SshServer, store: Store, tmp_path: Path
) -> None:
    settings = settings_of(server, tmp_path, tmp_path / "far")
    settings.state.mkdir()
    (site,) = engine_of("host").sites(settings, place_of(store, tmp_path))
    volume, _ = site.hypervisor.volume(ROW)
    site.hypervisor.attach(volume, ROW.disk)
    pid = site.hypervisor.boot(ROW.machine).start(["sleep", "600"])
    other = tmp_path / "far" / "somebody's"
    other.touch()
    assert len(store.journal.pending()) == 3
    # As if the process had died here; without `ssh` in the settings nothing is forgotten.
    without = settings.model_copy(update={"ssh": None})
    assert all(
        "failed, will be retried" in line for line in engine_of("host").undo(without, store.journal)
    )
    server.away = True
    server.cut()
    assert all(
        "failed, will be retried" in line
        for line in engine_of("host").undo(settings, store.journal)
    )
    server.away = False
    lines = engine_of("host").undo(settings, store.journal)
    assert len(lines) == 3, lines
    assert store.journal.pending() == []
    assert not runs(str(pid))
    assert list((tmp_path / "far").iterdir()) == [other]
    assert ours_below_tmp(settings) == []


def test_only_what_is_marked_is_touched(ssh: SshConnection, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    rows = RemoteCommands(ssh)
    for verb in ("end", "make", "directory", "void"):
        with pytest.raises(VolumeError, match="no ownership marker of pvebench"):
            rows.do(verb, str(precious), "1")
    with pytest.raises(VolumeError, match="no ownership marker in its directory"):
        rows.do("write", str(precious), stdin=b"x")
    link = tmp_path / "pvebench-test-link"
    link.symlink_to(precious)
    with pytest.raises(VolumeError):
        rows.do("make", str(link), "1")
    rows.do("end", str(link))
    assert not link.is_symlink()
    assert precious.read_text() == "precious"


def test_a_volume_that_became_something_else_is_not_used(
    server: SshServer, store: Store, tmp_path: Path
) -> None:
    settings = settings_of(server, tmp_path, tmp_path / "far")
    settings.state.mkdir()
    (site,) = engine_of("host").sites(settings, place_of(store, tmp_path))
    volume, _ = site.hypervisor.volume(ROW)
    path, precious = Path(volume.volid), tmp_path / "precious"
    precious.write_text("precious")
    path.rename(tmp_path / "away")
    for become in (lambda: path.symlink_to(precious), path.mkdir, path.touch):
        become()
        with pytest.raises(VolumeError, match="; not changed"):
            site.hypervisor.attach(volume, ROW.disk)
        path.rename(tmp_path / secrets.token_hex(4))
    site.hypervisor.shutdown()
    assert precious.read_text() == "precious"


def test_check_reports_what_the_machine_has_and_what_it_lacks(
    server: SshServer, store: Store, tmp_path: Path
) -> None:
    settings = settings_of(server, tmp_path, tmp_path / "far")
    workload = tool_workload("fio", {"rw": "read", "bs": "4k"}, ramp_seconds=0, runtime_seconds=1)
    case = Case(scenario=ROW, workload=workload)
    found = {name: (good, text) for name, good, text in engine_of("host").check(settings, [case])}
    assert found["ssh"][0]
    assert os.uname().release in found["ssh"][1]
    assert found["fio"][1].startswith("/usr/bin/fio fio-")
    assert "verifies before each run that the page cache" in found["fincore"][1]
    assert found["storage far"][0]
    (tmp_path / "far").rmdir()
    found = {name: (good, text) for name, good, text in engine_of("host").check(settings, [case])}
    assert not found["storage far"][0]
    assert "install -d -o" in found["storage far"][1]
    server.away = True
    (only,) = engine_of("host").check(settings, [case])
    assert only[:2] == ("ssh", False)
