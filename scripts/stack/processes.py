"""Processes of a state directory: the one that may start them, those left over, those running."""

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
"""How long Prometheus may take to read back its data before measuring starts without it."""
GRACE_SECONDS: Final = 15.0
"""How long a process may take to end by itself; pvebench needs up to 10 s to put its VM away."""
TAIL_LINES: Final = 12


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """While inside, a signal that asks to stop ends the `with` blocks in order."""

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in stop_signals():
        signal.signal(number, stop)
    yield


def stop_signals() -> set[signal.Signals]:
    """Return the signals that ask to stop. Under nohup a lost terminal is no such reason."""
    found = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        found.discard(signal.SIGHUP)
    return found


@contextlib.contextmanager
def claimed(layout: Layout) -> Iterator[None]:
    """While inside, this is the only `make run` of the state directory.

    The kernel takes the lock back however we end, so whatever then still runs in this state
    directory is a leftover.
    """
    layout.make()
    with (layout.run / "stack.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise AlreadyRunning(
                f"another make run (process {lock.read().strip()}) uses {layout.state}",
                next_step="stop it, or start this one with another: make run STATE=…",
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def marks(layout: Layout) -> set[str]:
    """Return the arguments that tell every process of this state directory."""
    return {
        f"--procfile={layout.procfile}",
        f"--storage.tsdb.path={layout.prometheus / 'data'}",
        f"--collector.textfile.directory={layout.state / 'node_exporter'}",
        f"cfg:default.paths.data={layout.state / 'grafana'}",
    }


def marked_processes(wanted: set[str]) -> dict[int, str]:
    """Return process id -> program of the processes with one of the arguments."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = entry.read_bytes().decode("utf-8", "replace").split("\0")
            if wanted.intersection(arguments):
                found[int(entry.parent.name)] = Path(arguments[0]).name
    return found


def end_marked(wanted: set[str]) -> dict[int, str]:
    """End the processes with one of the arguments, if need be by force; return which."""
    ended: dict[int, str] = {}
    started = time.monotonic()
    while left := marked_processes(wanted):
        waited = time.monotonic() - started
        if waited > 2 * GRACE_SECONDS:
            break
        # Asked once each, also those that are only now being started.
        for process in left if waited > GRACE_SECONDS else left.keys() - ended.keys():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL if waited > GRACE_SECONDS else signal.SIGTERM)
        ended |= left
        time.sleep(0.1)
    return ended


def report_leftovers(ended: dict[int, str]) -> None:
    """Say what an earlier run had left behind."""
    if ended:
        names = ", ".join(f"{name} ({process})" for process, name in sorted(ended.items()))
        print(f"ended what an earlier run that was killed had left running: {names}")


def guarded(command: Sequence[str]) -> list[str]:
    """Return `command` so that the kernel ends it should we be killed without a chance to."""
    setpriv = which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else list(command)


def processes_below(directory: Path) -> dict[int, str]:
    """Return process id -> program of the processes that work in, or name a file, below there.

    QEMU names its sockets relative to its working directory, so that one counts too.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (process / "cmdline").read_bytes().decode("utf-8", "replace")
            places = (text, f"{(process / 'cwd').readlink()}/")
            if any(f"{directory}/" in place for place in places):
                found[int(process.name)] = Path(text.partition("\0")[0]).name
    return found


class Stack:
    """The services, run by honcho while the `with` block lasts."""

    def __init__(self, layout: Layout, services: Sequence[Service]) -> None:
        self._layout = layout
        self._services = services

    def __enter__(self) -> Self:
        layout = self._layout
        lines = [f"{one.name}: exec {shlex.join(one.command)}\n" for one in self._services]
        layout.procfile.write_text("".join(lines), "utf-8")
        if layout.log.exists():
            layout.log.replace(layout.log.with_suffix(".log.1"))
        environment = dict(os.environ)
        for service in self._services:
            environment |= service.environment
        # The app root decides where honcho looks for .env, which is not meant for these.
        command = [sys.executable, "-m", "honcho", f"--app-root={layout.run}"]
        command += [f"--procfile={layout.procfile}", "start"]
        with layout.log.open("wb") as log:
            self._process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for pvebench; the services end after it.
                env=environment,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A second Ctrl-C must not leave half of them behind; this ends by itself.
        signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
        # Not honcho alone: asked to stop while it still starts them, it fails and forgets some.
        end_marked(marks(self._layout))
        self._process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether one of the services ended, and honcho therefore all of them."""
        return self._process.poll() is not None

    def tail(self) -> str:
        """Return the last lines of the log."""
        lines = self._layout.log.read_text("utf-8", "replace").splitlines()
        return "\n  ".join([f"the last lines of {self._layout.log}:", *lines[-TAIL_LINES:]])

    def _are_started(self) -> bool:
        """Return whether honcho has come as far as being able to stop them all."""
        log = self._layout.log.read_text("utf-8", "replace")
        return log.count(" started (pid=") >= len(self._services)

    def wait_ready(self, port: int) -> None:
        """Wait until all are started and Prometheus answers.

        Raises:
            MachineError: a service ended instead.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not (self._are_started() and answers(port)):
            if self.has_ended:
                raise MachineError(
                    f"what runs beside pvebench ended at once; nothing is measured\n  {self.tail()}"
                )
            if time.monotonic() > deadline:
                print("Prometheus still reads back its data; measuring starts without waiting")
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
