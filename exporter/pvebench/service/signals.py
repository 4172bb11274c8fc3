"""What signals do while pvebench measures.

A handler runs in the main thread wherever that is just then: perhaps inside the very lock that the
answer takes, to end a wait or to log a line. So no handler does anything. The interpreter itself
writes the signal's number into a pipe, and a thread that reads there gives the answer.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import structlog

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
