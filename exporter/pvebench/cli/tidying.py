"""Once a day, between two runs: removing what the settings do not want kept for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from pvebench.config import Settings
from pvebench.errors import StoreError
from pvebench.store import Store

EVERY_SECONDS: Final = 86400.0

log = structlog.get_logger()


class Tidier:
    """Keeps the database at the size that the settings in force ask for."""

    def __init__(
        self, store: Store, settings: Callable[[], Settings], now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._settings = settings
        self._now = now
        self._last: datetime | None = None

    def check(self) -> None:
        """Remove what is too old, if that was not done within a day."""
        now = self._now()
        if self._last is not None and (now - self._last).total_seconds() < EVERY_SECONDS:
            return
        self._last = now
        settings = self._settings()
        try:
            stripped, removed = self._store.prune(
                now, evidence_seconds=settings.keep_evidence, runs_seconds=settings.keep_runs
            )
        except StoreError as error:
            log.warning("old results could not be removed", reason=error.reason)
            return
        if stripped or removed:
            log.info("old results removed", runs=removed, evidence_of_runs=stripped)
