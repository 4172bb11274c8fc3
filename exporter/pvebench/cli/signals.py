"""What SIGINT, SIGTERM and SIGHUP do while pvebench measures."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import structlog

log = structlog.get_logger()

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """While inside, SIGINT and SIGTERM call `stop`, which ends every wait."""

    def handle(number: int, _: FrameType | None) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        stop()

    with _handled((signal.SIGINT, signal.SIGTERM), handle):
        yield


@contextmanager
def reloading(ask: Callable[[], None]) -> Iterator[None]:
    """While inside, SIGHUP asks for a reload."""
    with _handled((signal.SIGHUP,), lambda *_: ask()):
        yield


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        # Python sets handlers in the main thread only; tests run commands in others.
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handle in before.items():
            signal.signal(number, handle)
