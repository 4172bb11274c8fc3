"""Signals come at any moment: their handlers must not need what that moment holds."""

from __future__ import annotations

import ast
import dis
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pvebench
from pvebench.service import workers
from pvebench.service.workers import handle_signals
from pvebench.store.state_directory import StateDirectory, holder_of
from testing.packs import QUICK

PACKAGE = Path(pvebench.__file__).parent

INSIDE_THE_LOCK = """
import os, signal
from pvebench.drivers.clocks import SystemClock
from pvebench.errors import Interrupted
from pvebench.service.workers import handle_signals

clock = SystemClock()
with handle_signals({signal.SIGTERM: clock.stop}):
    with clock._stopped._cond:  # as in the first steps of every wait
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))  # here the handler has run
    try:
        clock.sleep(60)
    except Interrupted:
        print("stopped")
"""

HAMMERED = """
import signal, threading
from pvebench.service.workers import handle_signals

count, lock, enough = 0, threading.Lock(), threading.Event()

def answer():
    global count
    with lock:
        count += 1
    if count == 200:
        enough.set()

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what comes too late
with handle_signals({signal.SIGHUP: answer}):
    print("ready", flush=True)
    while not enough.is_set():
        with lock:
            sum(range(1000))
print("all answered")
"""


def run_program(text: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(PACKAGE.parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_a_stop_that_comes_while_the_main_thread_holds_the_clocks_lock_does_not_deadlock() -> None:
    with run_program(INSIDE_THE_LOCK) as process:
        try:
            out, _ = process.communicate(timeout=300)
        finally:
            process.kill()
    assert out.endswith("stopped\n")


def test_signals_by_the_hundred_are_each_answered_whatever_the_main_thread_holds() -> None:
    with run_program(HAMMERED) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            end = time.monotonic() + 300
            while process.poll() is None and time.monotonic() < end:
                process.send_signal(signal.SIGHUP)
                time.sleep(0.002)
        finally:
            process.kill()
            out, _ = process.communicate()
    assert out.endswith("all answered\n")


def test_an_instance_that_is_still_starting_ends_as_one_that_measures(tmp_path: Path) -> None:
    options = ["--state", str(tmp_path / "s"), "--driver", "simulated"]
    command = [sys.executable, "-m", "pvebench", "run", *options, "--pack", str(QUICK)]
    state = StateDirectory(tmp_path / "s", exclusive=False)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while holder_of(state.path) != process.pid:
            assert process.poll() is None, process.communicate()
        process.terminate()
        assert process.wait(timeout=300) == 130
    assert holder_of(state.path) == 0


def test_a_signal_is_answered_in_another_thread_before_the_end() -> None:
    answered: list[str] = []
    before = signal.getsignal(signal.SIGHUP)
    with handle_signals({signal.SIGHUP: lambda: answered.append(threading.current_thread().name)}):
        os.kill(os.getpid(), signal.SIGHUP)
    assert answered == ["signals"]
    assert signal.getsignal(signal.SIGHUP) is before


def test_only_what_is_named_is_answered() -> None:
    answered: list[str] = []
    caught: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: caught.append(number))
    try:
        with handle_signals({signal.SIGHUP: lambda: answered.append("SIGHUP")}):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (answered, caught) == ([], [signal.SIGUSR1])


def test_the_handler_does_nothing_at_all() -> None:
    names = {step.opname for step in dis.get_instructions(workers._handle)}
    assert names <= {"RESUME", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}


def calls_of(path: Path, name: str) -> list[ast.Call]:
    """Return the calls of `signal.<name>` in a file."""
    return [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "signal"
    ]


def test_no_other_handler_is_set_anywhere_in_the_package() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): [ast.unparse(call.args[1]) for call in calls]
        for path in sorted(PACKAGE.rglob("*.py"))
        if (calls := calls_of(path, "signal"))
    }
    # The second puts back what was there before.
    assert found == {"service/workers.py": ["_handle", "handler"]}
    assert not [path for path in PACKAGE.rglob("*.py") if "add_signal_handler" in path.read_text()]
