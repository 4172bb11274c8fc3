"""The workers of an instance, one per node, their signals, and their status for systemd."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Final

from pvebench.config import Settings
from pvebench.drivers import driver_of
from pvebench.drivers.driver import MeasuredStorage
from pvebench.errors import Interrupted, PvebenchError
from pvebench.log import log
from pvebench.model.ports import Clock, Guard, Site
from pvebench.model.run import Outcome
from pvebench.model.status import WorkerStatus
from pvebench.model.units import whole_number
from pvebench.scheduler.guards import BudgetGuard, PauseGuard, QuietGuard, TurnGuard, Turns
from pvebench.scheduler.pacing import WriteBudgets
from pvebench.scheduler.plan import Assignment
from pvebench.scheduler.worker import Worker
from pvebench.store.state_directory import StateDirectory, pause_reason_of
from pvebench.store.store import Store

# --- Guards of a node's cases, from the settings.


@dataclass(frozen=True, slots=True)
class GuardFactory:
    """Factory of all guards of an instance; `guards` creates those of one worker."""

    settings: Settings
    state: StateDirectory
    store: Store
    clock: Clock
    turns: Turns
    budgets: WriteBudgets
    endless: bool
    free: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """node -> storage -> free bytes at the last check."""

    def guards(self, site: Site) -> Sequence[Guard]:
        """Return the guards of `site`, the cheapest first; turns last, because they are held."""
        guards: list[Guard] = [PauseGuard(partial(pause_reason_of, self.state.path))]
        hours = self.settings.quiet()
        if hours is not None:
            guards.append(QuietGuard(hours, self.clock))
        storages = self.measured(site.node)
        limits = {at[1]: limit for at, limit in self.budgets.limits.items() if at[0] == site.node}
        if limits and self.endless:  # a limited number of cycles only warns
            written = partial(self.counted, site.node)
            guards.append(BudgetGuard(limits, written, self.budgets.copies))
        self.free[site.node] = site.storages.free
        guards += site.guards
        shared = frozenset(name for name, storage in storages.items() if storage.shared)
        return [*guards, TurnGuard(self.turns, shared)] if shared else guards

    def measured(self, node: str) -> Mapping[str, MeasuredStorage]:
        """Return the storages of a node by name."""
        return driver_of(self.settings.driver).storages(self.settings, node)

    def counted(self, node: str, storage: str) -> int:
        """Return the bytes that count against the budget; for a shared storage, of all nodes."""
        place, _ = self.budgets.place(node, storage)
        return self.store.written_bytes(storage, self.clock.now(), node=place or None)


# --- Workers and their threads.


Make = Callable[[Site, list[Assignment], Callable[[Worker], None]], Worker]
"""Factory of a site's worker, from its assignments and a function to call before each step."""


class WorkerPool:
    """All workers of an instance, one per site.

    Args:
        between: called before each step of a worker, never in parallel.
        stop: ends every wait of every worker.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        assignments: Sequence[Assignment],
        *,
        make: Make,
        between: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._between, self._stop = between, stop
        self._lock = threading.Lock()
        self._pending: dict[str, list[Assignment]] = {}  # node -> those of its next step
        self._faults: list[BaseException] = []
        self._workers = [
            make(site, _of_node(assignments, site.node), self._before_step) for site in sites
        ]

    def _before_step(self, worker: Worker) -> None:
        with self._lock:
            self._between()
            new = self._pending.pop(worker.node, None)
        if new is not None:
            worker.assign(new)

    def statuses(self) -> list[WorkerStatus]:
        """Return the status of each worker."""
        return [worker.status for worker in self._workers]

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each case's last run."""
        return [outcome for worker in self._workers for outcome in worker.outcomes.values()]

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Give each worker its part of `assignments`, used from its next step on.

        Only `between` calls it.
        """
        for worker in self._workers:
            self._pending[worker.node] = _of_node(assignments, worker.node)

    def run(self) -> None:
        """Run all workers to their end.

        Raises:
            Interrupted: a stop was requested. PvebenchError: a worker failed, and the others
                were stopped.
        """
        if len(self._workers) == 1:
            self._workers[0].run()
            return
        threads = [
            threading.Thread(target=self._work, args=(worker,), name=worker.node)
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._faults:
            # The first failure: the others were only interrupted because of it.
            raise min(self._faults, key=lambda fault: isinstance(fault, Interrupted))

    def _work(self, worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as fault:
            if not isinstance(fault, PvebenchError):
                log.exception("worker crashed", node=worker.node)
            self._faults.append(fault)
            self._stop()


def _of_node(assignments: Sequence[Assignment], node: str) -> list[Assignment]:
    return [assignment for assignment in assignments if assignment.node == node]


# --- Signals.
#
# A handler interrupts the main thread anywhere: perhaps while it holds the lock that the action
# needs, to end a wait or to log a line. So handlers do nothing. The interpreter writes the signal
# number to a pipe, and a thread that reads the pipe calls the action.


Actions = Mapping[signal.Signals, Callable[[], None]]


@contextmanager
def handle_signals(actions: Actions) -> Iterator[None]:
    """Call the action of each received signal within the context, in a separate thread.

    Signals received before the end of the context are handled before this returns.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python sets handlers in the main thread only; tests run commands in others.
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = threading.Thread(target=_act, args=(reading, actions), name="signals", daemon=True)
    thread.start()
    descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, _handle) for number in actions}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        os.close(writing)
        thread.join()
        os.close(reading)


def _handle(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter writes the number only for signals with a handler."""


def _act(reading: int, actions: Actions) -> None:
    """Call the actions of the signals in the pipe until its other end is closed."""
    while byte := os.read(reading, 1):
        number = byte[0]
        if number in actions:
            received = signal.Signals(number)
            log.info("signal received", signal=received.name)
            actions[received]()


# --- Status notifications to systemd.

_BEATS: Final = 3
"""Watchdog messages per watchdog interval of systemd."""


class Supervisor:
    """Service manager that started this process, if it accepts notifications.

    Args:
        environment: variables, among them NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit = environment.get("WATCHDOG_USEC", "") if watched else ""
        self._beat_seconds = (whole_number(limit) or 0) / 1e6 / _BEATS

    def status(self, line: str) -> None:
        """Report the current activity, as shown by `systemctl status`."""
        self._send(f"STATUS={' '.join(line.split())}")

    @contextmanager
    def report_ready(self, pulse: Callable[[], int]) -> Iterator[None]:
        """Report readiness, and within the context activity while `pulse` changes.

        Args:
            pulse: returns a number that grows while the supervised part works.
        """
        self._send("READY=1")
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(pulse, ended), name="watchdog")
        thread.daemon = True
        if self._address and self._beat_seconds:
            thread.start()
        try:
            yield
        finally:
            self._send("STOPPING=1")
            ended.set()
            if thread.is_alive():
                thread.join()

    def _beat(self, pulse: Callable[[], int], ended: threading.Event) -> None:
        last = -1
        while not ended.wait(self._beat_seconds):
            now = pulse()
            if now != last:
                self._send("WATCHDOG=1")
            last = now

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # An abstract name begins with a zero byte, which an environment cannot contain.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as client:
                client.connect(address)
                client.sendall(message.encode())
        except OSError as error:
            # No recovery needed: without the message, systemd ends this process in time.
            log.warning("systemd notification failed", message=message, error=error.strerror)
