"""Signal handling, and status notifications to systemd: readiness, progress, watchdog.

The protocol is sd_notify(3): one datagram per message to the socket of $NOTIFY_SOCKET. Without
that variable, nothing is sent.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

import structlog

# --- Signals.
#
# A handler interrupts the main thread anywhere: perhaps while it holds the lock that the action
# needs, to end a wait or to log a line. So handlers do nothing. The interpreter writes the signal
# number to a pipe, and a thread that reads the pipe calls the action.

log = structlog.get_logger()

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
        self._beat_seconds = int(limit) / 1e6 / _BEATS if limit.isascii() and limit.isdigit() else 0

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
