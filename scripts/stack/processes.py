"""Processes of a state directory: its lock, leftovers of earlier runs, running services."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from services import HOST, Layout, Service, which

from pvebench.errors import AlreadyRunning, MachineError

READY_SECONDS: Final = 30.0
"""Time limit for Prometheus to load its data; afterwards measuring starts without it."""
GRACE_SECONDS: Final = 15.0
"""Time limit for a process to stop; pvebench needs up to 10 s to remove its VM."""
TAIL_LINES: Final = 12


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let signals to stop end the nested `with` blocks in order."""

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in stop_signals():
        signal.signal(number, stop)
    yield


def stop_signals() -> set[signal.Signals]:
    """Return the signals to stop; without SIGHUP under nohup."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signals.discard(signal.SIGHUP)
    return signals


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the signals to stop until a process that starts here can be found and stopped."""
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        yield
    finally:
        release_signals()


def release_signals() -> None:
    """Let the signals to stop arrive again; a child inherits that they are held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())


@contextlib.contextmanager
def claimed(layout: Layout) -> Iterator[None]:
    """Lock the state directory against another `make run`.

    The kernel releases the lock however this process ends, so any process that is then running in
    this state directory is a leftover.
    """
    layout.make()
    with (layout.run / "stack.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise AlreadyRunning(
                f"another make run (process {lock.read().strip()}) uses {layout.state}",
                next_step="stop it, or use another state directory: make run STATE=…",
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def marks(layout: Layout) -> set[str]:
    """Return the arguments that identify the processes of this state directory."""
    return {
        f"--procfile={layout.procfile}",
        f"--storage.tsdb.path={layout.prometheus / 'data'}",
        f"--collector.textfile.directory={layout.state / 'node_exporter'}",
        f"cfg:default.paths.data={layout.state / 'grafana'}",
    }


def marked_processes(arguments: set[str]) -> dict[int, str]:
    """Return process ID -> program of the processes with one of the arguments."""
    processes = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = entry.read_bytes().decode("utf-8", "replace").split("\0")
            if arguments.intersection(command):
                processes[int(entry.parent.name)] = Path(command[0]).name
    return processes


def end_marked(arguments: set[str]) -> dict[int, str]:
    """Stop the processes with one of the arguments, by SIGKILL if necessary; return them."""
    ended: dict[int, str] = {}
    started = time.monotonic()
    while left := marked_processes(arguments):
        waited = time.monotonic() - started
        if waited > 2 * GRACE_SECONDS:
            break
        # One SIGTERM each, also for processes that are just starting.
        for process in left if waited > GRACE_SECONDS else left.keys() - ended.keys():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL if waited > GRACE_SECONDS else signal.SIGTERM)
        ended |= left
        time.sleep(0.1)
    return ended


def report_leftovers(ended: dict[int, str]) -> None:
    """Print the stopped leftovers of an earlier run."""
    if ended:
        names = ", ".join(f"{name} ({process})" for process, name in sorted(ended.items()))
        print(f"stopped leftovers of an earlier run: {names}")


def guarded(command: Sequence[str]) -> list[str]:
    """Return `command` so that the kernel ends it if this process is killed."""
    setpriv = which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else list(command)


def processes_below(directory: Path) -> dict[int, str]:
    """Return process ID -> program of the processes that use a path below a directory.

    Arguments and the working directory count: QEMU's socket paths are relative to the latter.
    """
    processes = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (process / "cmdline").read_bytes().decode("utf-8", "replace")
            places = (text, f"{(process / 'cwd').readlink()}/")
            if any(f"{directory}/" in place for place in places):
                processes[int(process.name)] = Path(text.partition("\0")[0]).name
    return processes


class Stack:
    """The services, run by honcho within the `with` block."""

    def __init__(self, layout: Layout, services: Sequence[Service]) -> None:
        self._layout = layout
        self._services = services

        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Start the services.

        Not in `__enter__`: a signal that ends it there would leave the services behind.
        """
        layout = self._layout
        lines = [
            f"{service.name}: exec {shlex.join(service.command)}\n" for service in self._services
        ]
        layout.procfile.write_text("".join(lines), "utf-8")
        if layout.log.exists():
            layout.log.replace(layout.log.with_suffix(".log.1"))
        environment = dict(os.environ)
        for service in self._services:
            environment |= service.environment
        # honcho reads .env from the app root; these services must not use it.
        command = [sys.executable, "-m", "honcho", f"--app-root={layout.run}"]
        command += [f"--procfile={layout.procfile}", "start"]
        with layout.log.open("wb") as log, signals_held():
            self._process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Only pvebench receives Ctrl-C; the services stop after it.
                env=environment,
                start_new_session=True,
                preexec_fn=release_signals,  # noqa: PLW1509 # no threads here
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A second Ctrl-C must not interrupt this; it has a time limit.
        signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
        # Not only honcho: if it is stopped during the start, it fails and forgets some services.
        end_marked(marks(self._layout))
        if self._process is not None:
            self._process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether a service ended, so that honcho stopped all of them."""
        return self._process is not None and self._process.poll() is not None

    def tail(self) -> str:
        """Return the last lines of the log."""
        lines = self._layout.log.read_text("utf-8", "replace").splitlines()
        return "\n  ".join([f"last lines of {self._layout.log}:", *lines[-TAIL_LINES:]])

    def _are_started(self) -> bool:
        """Return whether honcho has started all services, so that it can stop them."""
        log = self._layout.log.read_text("utf-8", "replace")
        return log.count(" started (pid=") >= len(self._services)

    def wait_ready(self, port: int) -> None:
        """Wait until all services have started and Prometheus is ready.

        Raises:
            MachineError: a service ended.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not (self._are_started() and answers(port)):
            if self.has_ended:
                raise MachineError(
                    f"a service ended during the start; nothing was measured\n  {self.tail()}"
                )
            if time.monotonic() > deadline:
                print("Prometheus is still loading its data; measuring starts without waiting")
                return
            time.sleep(0.1)


def answers(port: int) -> bool:
    """Return whether Prometheus is ready on `port`."""
    connection = http.client.HTTPConnection(HOST, port, timeout=1.0)
    try:
        connection.request("GET", "/-/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
