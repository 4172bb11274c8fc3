"""The log. Importing structlog takes a fifth of a second: only the first shown message does so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import RLock
from typing import Any, Final


def _nothing(*_: object, **__: object) -> None:
    pass


class _Log:
    """structlog's logger, imported and configured at the first message of the level or above."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._level = logging.NOTSET
        self._configure: Callable[[], None] = _nothing

    def configure(self, level: int, configure: Callable[[], None] = _nothing) -> None:
        """Ignore messages below `level`; call `configure` before the next other message."""
        with self._lock:
            self._level, self._configure = level, configure

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return structlog's method: `info`, `warning`, `exception` and others."""
        if logging.getLevelNamesMapping().get(name.upper(), logging.CRITICAL) < self._level:
            return _nothing
        import structlog  # noqa: PLC0415 # see above

        with self._lock:
            self._configure()
            self._configure = _nothing
        method: Callable[..., Any] = getattr(structlog.get_logger(), name)
        return method


log: Final = _Log()
