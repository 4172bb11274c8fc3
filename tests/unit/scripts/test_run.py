"""scripts/run with a stub for pvebench, and real Prometheus and node_exporter beside it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from io import FileIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PORTS = ("exporter", "prometheus", "node-exporter", "grafana")
STUB = """\
import signal, sys, time
stopping = False
def stop(number, frame):
    global stopping
    print("stub got", signal.Signals(number).name, flush=True)
    stopping = True
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
print("stub", *sys.argv[2:], flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and not stopping:
    time.sleep(0.05)
if stopping:
    time.sleep(0.7)  # long enough for a second signal to arrive, were there one
    sys.exit(7)
"""
GRAFANA = """\
#!/bin/sh
mkdir -p "$GF_PATHS_LOGS"
{ echo "$@"; env; } >"$GF_PATHS_LOGS/seen"
exec sleep 60
"""
SIGNAL_WITHIN_START = """\
import os, signal, subprocess, time
fork = subprocess._fork_exec
def interrupted(arguments, *more):
    process = fork(arguments, *more)
    if "honcho" in arguments:
        time.sleep(0.3)  # until it is one that runs
        os.kill(os.getpid(), signal.SIGTERM)
    return process
subprocess._fork_exec = interrupted
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        found = [
            held.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            for _ in range(count)
        ]
        return [one.getsockname()[1] for one in found]


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Runner:
    """scripts/run in a state directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.output = directory / "output"
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.programs = directory / "bin"
        self.programs.mkdir()
        (directory / "stub.py").write_text(STUB, "utf-8")
        self._stub = directory / "stub.py"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, *more: str, sleep: float = 60.0, terminal: int | None = None
    ) -> subprocess.Popen[bytes]:
        # With --ctty its standard input is also the terminal that sends it signals.
        session = ["setsid"] if terminal is None else ["setsid", "--ctty"]
        command: list[str | Path] = [*session, ROOT / "scripts" / "run", "--state", self.state]
        for name, port in self.ports.items():
            command += [f"--{name}-port", str(port)]
        environment = os.environ | {
            "PVEBENCH_COMMAND": f"{sys.executable} {self._stub} {sleep}",
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
        }
        with self.output.open("wb") as output:
            started = subprocess.Popen(
                [*command, *more],
                env=environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
            )
        self._started.append(started)
        return started

    def finish(self, *more: str, sleep: float = 0.0) -> int:
        return self.start(*more, sleep=sleep).wait(60)

    @property
    def said(self) -> str:
        return self.output.read_text("utf-8")

    def measuring(self) -> bool:
        return "stub serve" in self.said

    def running(self) -> dict[int, str]:
        """Process id -> command line, of the processes that know the state directory."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            # Processes end while we look.
            with suppress(OSError):
                line = entry.read_bytes().decode("utf-8", "replace").replace("\0", " ")
                if f"{self.state}" in line:
                    found[int(entry.parent.name)] = line
        return found

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture(autouse=True)
def sighup() -> Iterator[None]:
    """Let SIGHUP mean something: under nohup it is ignored, and every child inherits that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    made = Runner(tmp_path)
    yield made
    made.stop()
    wait_for(lambda: made.running() == {})


def test_it_says_where_everything_is_and_ends_with_pvebench(runner: Runner) -> None:
    code = runner.finish("--pack", "a.yaml", "--cycles", "1", "--", "--driver", "simulated")
    assert code == 0
    assert runner.running() == {}
    first = runner.said.splitlines()
    ports = runner.ports
    assert first[0].split() == ["pvebench", f"http://127.0.0.1:{ports['exporter']}"]
    assert first[1].split() == ["Prometheus", f"http://127.0.0.1:{ports['prometheus']}"]
    assert first[2].split() == ["node_exporter", f"http://127.0.0.1:{ports['node-exporter']}"]
    assert f"results in     {runner.state}" in first
    assert (
        f"stub serve --state {runner.state} --listen 127.0.0.1:{ports['exporter']} "
        "--pack a.yaml --cycles 1 --driver simulated"
    ) in first


def test_the_configuration_is_the_repositorys_with_the_targets_of_this_run(runner: Runner) -> None:
    assert runner.finish() == 0
    config = runner.state / "prometheus" / "config"
    ours = (ROOT / "prometheus" / "prometheus.yml").read_bytes()
    assert (config / "prometheus.yml").read_bytes() == ours
    rules = {path.name for path in (ROOT / "prometheus" / "rules").iterdir()}
    assert {path.name for path in (config / "rules").iterdir()} == rules
    exporter = (config / "targets" / "pvebench.yml").read_text("utf-8")
    assert json.loads(exporter.partition("targets: ")[2]) == [
        f"127.0.0.1:{runner.ports['exporter']}"
    ]
    done = subprocess.run(
        ["promtool", "check", "config", "--lint-fatal", config / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False), done


@pytest.mark.parametrize(
    ("sent", "arrived"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM")]
)
def test_a_signal_stops_pvebench_and_then_the_rest(runner: Runner, sent: str, arrived: str) -> None:
    process = runner.start()
    wait_for(runner.measuring)
    process.send_signal(signal.Signals[sent])
    assert process.wait(30) == 7
    assert f"stub got {arrived}" in runner.said
    assert runner.running() == {}


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.4])
def test_a_signal_while_it_starts_leaves_nothing_behind(runner: Runner, delay: float) -> None:
    process = runner.start()
    wait_for(lambda: "node_exporter" in runner.said)
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    assert process.wait(14) in {7, 128 + signal.SIGTERM}
    assert runner.running() == {}


def test_a_signal_in_the_moment_of_a_start_leaves_nothing_behind(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runner.programs / "sitecustomize.py").write_text(SIGNAL_WITHIN_START, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(runner.programs))
    assert runner.start().wait(14) == 128 + signal.SIGTERM
    assert runner.running() == {}


def test_nothing_outlives_it_when_it_is_killed(runner: Runner) -> None:
    process = runner.start()
    wait_for(runner.measuring)
    process.kill()
    wait_for(lambda: runner.running() == {})
    assert "stub got SIGTERM" in runner.said


@pytest.mark.parametrize(
    ("name", "called", "variable"),
    [
        ("exporter", "pvebench", "EXPORTER_PORT"),
        ("prometheus", "Prometheus", "PROMETHEUS_PORT"),
        ("node-exporter", "node_exporter", "NODE_EXPORTER_PORT"),
    ],
)
def test_a_used_port_is_refused_with_its_holder_and_the_variable(
    runner: Runner, name: str, called: str, variable: str
) -> None:
    port = runner.ports[name]
    with closing(socket.create_server(("127.0.0.1", port))):
        assert runner.finish() == 3
    assert f"port {port} for {called} is used by " in runner.said
    assert f"(process {os.getpid()})" in runner.said
    assert f"make run {variable}=…" in runner.said
    assert "stub" not in runner.said
    assert not (runner.state / "log" / "stack.log").exists()


def test_a_state_in_memory_is_refused_before_the_services_are_named() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as state:
        command: list[str | Path] = [ROOT / "scripts" / "run", "--state", state, "--pack", "quick"]
        for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True):
            command += [f"--{name}-port", str(port)]
        started = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert started.returncode == 3
    assert "is in memory (tmpfs), not on a disk" in started.stderr
    assert started.stdout == ""


def test_one_port_for_two_is_refused(runner: Runner) -> None:
    runner.ports["prometheus"] = runner.ports["exporter"]
    assert runner.finish() == 3
    assert "for Prometheus is used by EXPORTER_PORT as well" in runner.said


def test_a_state_directory_has_one_make_run_at_a_time(runner: Runner) -> None:
    process = runner.start()
    wait_for(runner.measuring)
    assert runner.finish() == 4
    assert f"another make run (process {process.pid}) uses {runner.state}" in runner.said


def test_leftovers_of_a_killed_run_are_ended_and_named(runner: Runner) -> None:
    mark = f"--storage.tsdb.path={runner.state.absolute() / 'prometheus' / 'data'}"
    code = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, mark]) as ours:
        with subprocess.Popen([sys.executable, "-c", code, f"{mark}-of-another"]) as another:
            assert runner.finish() == 0
            assert another.poll() is None
            another.kill()
        assert ours.wait(5) == -signal.SIGTERM
    assert (
        f"stopped leftovers of an earlier run: {Path(sys.executable).name} ({ours.pid})"
        in runner.said
    )


def test_prometheus_that_cannot_start_stops_it_with_its_own_words(runner: Runner) -> None:
    (runner.state / "prometheus" / "data").mkdir(parents=True)
    (runner.state / "prometheus" / "data" / "chunks_head").touch()
    assert runner.finish() == 3
    assert "nothing was measured" in runner.said
    assert "opening storage failed" in runner.said
    assert "stub" not in runner.said


def test_measuring_goes_on_when_the_rest_ends_later(runner: Runner) -> None:
    process = runner.start()
    wait_for(runner.measuring)
    lines = runner.running().items()
    os.kill(next(pid for pid, line in lines if "--storage.tsdb.path" in line), signal.SIGKILL)
    wait_for(lambda: "keeps measuring" in runner.said)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 7


def test_grafana_runs_with_our_dashboards_when_it_is_installed(runner: Runner) -> None:
    program = runner.programs / "grafana"
    program.write_text(GRAFANA, "utf-8")
    program.chmod(0o755)
    process = runner.start()
    seen = runner.state / "grafana" / "log" / "seen"
    wait_for(lambda: runner.measuring() and seen.exists() and "PATH=" in seen.read_text("utf-8"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 7
    assert runner.running() == {}
    arguments, *environment = seen.read_text("utf-8").splitlines()
    assert arguments.startswith("server --homepath=")
    assert {
        f"PVEBENCH_PROMETHEUS_URL=http://127.0.0.1:{runner.ports['prometheus']}",
        f"PVEBENCH_DASHBOARDS={ROOT / 'grafana' / 'dashboards'}",
        f"GF_PATHS_PROVISIONING={ROOT / 'grafana' / 'provisioning'}",
        f"GF_SERVER_HTTP_PORT={runner.ports['grafana']}",
        "GF_SERVER_HTTP_ADDR=127.0.0.1",
        "GF_AUTH_ANONYMOUS_ENABLED=true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE=Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED=false",
    } <= set(environment)
    assert f"Grafana        http://127.0.0.1:{runner.ports['grafana']}" in runner.said


def test_ctrl_c_at_the_terminal_reaches_pvebench_once(runner: Runner) -> None:
    person, programs = os.openpty()
    with FileIO(person, "r+") as keyboard, FileIO(programs, "r+"):
        process = runner.start(terminal=programs)
        wait_for(runner.measuring)
        keyboard.write(b"\x03")
        assert process.wait(30) == 7
    assert runner.said.count("stub got") == 1
    assert "stub got SIGINT" in runner.said
    assert runner.running() == {}


def test_a_terminal_that_closes_lets_pvebench_end_in_order(runner: Runner) -> None:
    process = runner.start()
    wait_for(runner.measuring)
    # As a shell that loses its terminal: to the whole job, pvebench included.
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(30) == 7
    assert "stub got SIGTERM" in runner.said
    assert runner.running() == {}


STOPPED_AT_THE_START = """
import os, signal, subprocess, sys
from types import SimpleNamespace
sys.path.insert(0, "scripts/stack")
import measure
from processes import interruptible

class Child(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.kill(os.getpid(), signal.SIGTERM)

measure.subprocess.Popen = Child
command = [sys.executable, "-c", "import time; time.sleep(60)"]
with interruptible():
    print("child ended with", measure.measure(command, SimpleNamespace(has_ended=False), None))
"""


def test_a_signal_at_the_start_of_pvebench_ends_it_before_the_rest() -> None:
    """The moment between its start and the end of the call that starts it."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_THE_START],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.stdout == f"child ended with {128 + signal.SIGTERM}\n", done.stderr
