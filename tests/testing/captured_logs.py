"""What is logged, at every level: whatever level a test before asked for in the same process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from pvebench.log import log


@contextmanager
def captured_logs() -> Iterator[list[EventDict]]:
    log.configure(logging.NOTSET)
    structlog.reset_defaults()
    with capture_logs() as found:
        yield found


@contextmanager
def log_restored() -> Iterator[None]:
    root = logging.getLogger()
    before, configured = (root.handlers, root.level), structlog.get_config()
    try:
        yield
    finally:
        root.handlers, root.level = before
        structlog.configure(**configured)
        log.configure(logging.NOTSET)
