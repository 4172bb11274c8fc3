"""What systemd is told by a service of `Type=notify`: readiness, what it is at, and that it lives.

The protocol is sd_notify(3): one datagram a message to the socket that $NOTIFY_SOCKET names.
Started by anybody else there is no such socket, and nothing is told to anyone.
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

# --- What signals do while pvebench measures.
#
# A handler runs in the main thread wherever that is just then: perhaps inside the very lock that
# the
# answer takes, to end a wait or to log a line. So no handler does anything. The interpreter itself
# writes the signal's number into a pipe, and a thread that reads there gives the answer.

log = structlog.get_logger()

Answers = Mapping[signal.Signals, Callable[[], None]]


@contextmanager
def answering(answers: Answers) -> Iterator[None]:
    """While inside, each of these signals is answered by its call, in a thread of its own.

    Signals that came before the end are answered before this returns.
    """
    if threading.current_thread() is not threading.main_thread():
        # Python sets handlers in the main thread only; tests run commands in others.
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = threading.Thread(target=_answer, args=(reading, answers), name="signals", daemon=True)
    thread.start()
    descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, _handle) for number in answers}
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
    """Nothing: that there is a handler is what has the number written."""


def _answer(reading: int, answers: Answers) -> None:
    """Answer what is read until the other end is closed."""
    while byte := os.read(reading, 1):
        number = byte[0]
        if number in answers:
            found = signal.Signals(number)
            log.info("answering a signal", signal=found.name)
            answers[found]()


_BEATS: Final = 3
"""How often within the time after which systemd would end a service that is silent."""


class Supervisor:
    """Whoever started this process, as far as it wants to be told.

    Args:
        environment: where NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID stand.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit = environment.get("WATCHDOG_USEC", "") if ours else ""
        self._beat_seconds = int(limit) / 1e6 / _BEATS if limit.isascii() and limit.isdigit() else 0

    def status(self, line: str) -> None:
        """Tell what the service is at, as `systemctl status` shows it."""
        self._tell(f"STATUS={' '.join(line.split())}")

    @contextmanager
    def told_ready(self, pulse: Callable[[], int]) -> Iterator[None]:
        """Tell that the service is ready; while inside, that it lives as long as `pulse` moves.

        Args:
            pulse: a number that grows as long as what is supervised does its work.
        """
        self._tell("READY=1")
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(pulse, ended), name="watchdog")
        thread.daemon = True
        if self._address and self._beat_seconds:
            thread.start()
        try:
            yield
        finally:
            self._tell("STOPPING=1")
            ended.set()
            if thread.is_alive():
                thread.join()

    def _beat(self, pulse: Callable[[], int], ended: threading.Event) -> None:
        last = -1
        while not ended.wait(self._beat_seconds):
            now = pulse()
            if now != last:
                self._tell("WATCHDOG=1")
            last = now

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        # An abstract name begins with a zero byte, which an environment cannot hold.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
                speaker.connect(address)
                speaker.sendall(message.encode())
        except OSError as error:
            # Nothing to mend here: whoever waits for the message ends this process in time.
            log.warning("systemd was not told", message=message, error=error.strerror)
