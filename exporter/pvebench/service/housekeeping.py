"""Housekeeping between two runs: reloading settings and maintaining the database."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from pvebench.config import Settings
from pvebench.errors import ConfigError, StoreError, StoreLost
from pvebench.files import Signature, signature
from pvebench.log import log
from pvebench.model.units import DAY
from pvebench.scheduler.plan import Assignment
from pvebench.store.backups import backups_of
from pvebench.store.live_results import LiveResults

EVERY_SECONDS: Final = DAY
"""Interval of the database maintenance."""
SHORT_SHARE: Final = 0.05
"""Share of free space below which expired results go even if the hub has not acknowledged them."""
FULL_DAYS: Final = 7
"""Days between full checks, which include the indexes."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings and the resulting assignments."""

    settings: Settings
    assignments: list[Assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigState:
    """State of the active settings.

    Attributes:
        digest: digest of the settings and pack files when they were loaded.
        loaded: time of loading, UTC.
        successful: False after a failed reload.
    """

    digest: str
    packs: tuple[str, ...]
    loaded: datetime
    successful: bool


class Reloader:
    """Reloader of changed settings and packs. A change applies completely or not at all.

    Args:
        config: the settings file, if there is one.
        first: the initial configuration.
        load: reads the configuration again; raises ConfigError.
    """

    def __init__(
        self, config: Path | None, first: Configuration, *, load: Callable[[], Configuration]
    ) -> None:
        self._config = config
        self._load = load
        self._current = first
        self._requested = False
        self._suspects: tuple[Path, ...] = ()
        self._seen = self._signature()
        self.state = self._state_of(first)

    @property
    def current(self) -> Configuration:
        """The current configuration."""
        return self._current

    def ask(self) -> None:
        """Request a reload by the next `check` (SIGHUP)."""
        self._requested = True

    def check(self) -> Configuration | None:
        """Reload if requested, or if a file has changed since it was last read.

        Returns:
            The new configuration; None if nothing changed.
        """
        seen = self._signature()
        if not self._requested and seen == self._seen:
            return None
        self._requested, self._seen = False, seen
        try:
            loaded = self._load()
            fixed = self._current.settings.fixed_differences(loaded.settings)
        except ConfigError as error:
            # The current settings may not name the bad file.
            self._suspects = tuple({Path(problem.file) for problem in error.problems})
            self._seen = self._signature()
            self._refuse(str(error))
            return None
        self._suspects = ()
        if fixed:
            self._refuse(f"{', '.join(fixed)}: change requires a restart; restart pvebench")
            return None
        self._current = loaded
        self._seen = self._signature()  # the new settings may name other packs
        self.state = self._state_of(loaded)
        log.info("configuration reloaded", digest=self.state.digest)
        return loaded

    def _refuse(self, reason: str) -> None:
        log.warning("configuration reload failed", reason=reason)
        self.state = replace(self.state, successful=False)

    def _files(self, settings: Settings) -> list[Path]:
        return [*([self._config] if self._config else []), *settings.packs]

    def _signature(self) -> Signature:
        return signature([*self._files(self._current.settings), *self._suspects])

    def _state_of(self, configuration: Configuration) -> ConfigState:
        return ConfigState(
            digest=_digest(self._files(configuration.settings)),
            packs=tuple(dict.fromkeys(entry.pack.name for entry in configuration.assignments)),
            loaded=datetime.now(UTC),
            successful=True,
        )


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:12]


class DatabaseMaintenance:
    """Maintenance of the database: checks, backups, and removal of expired results."""

    def __init__(
        self, results: LiveResults, settings: Callable[[], Settings], now: Callable[[], datetime]
    ) -> None:
        self._results = results
        self._settings = settings
        self._now = now
        self._last: datetime | None = None
        self._days = 0

    def check(self) -> None:
        """Check that the database exists; maintain it once per day.

        Raises:
            StoreLost: the database is damaged or missing.
        """
        self._results.store.check_there()
        now, faults = self._now(), self._results.store.faults
        for step in self._daily(now):
            try:
                step(now)
            except StoreLost:
                raise
            except StoreError as error:
                log.warning("database maintenance failed", reason=str(error))
                faults["database maintenance"] = error.reason

    def _daily(self, now: datetime) -> Sequence[Callable[[datetime], None]]:
        """Return the due daily steps; none if they ran less than a day ago."""
        if self._last is not None and abs((now - self._last).total_seconds()) < EVERY_SECONDS:
            return ()
        self._last = now
        self._results.store.faults.pop("database maintenance", None)
        return self._check_integrity, self._back_up, self._remove_old

    def _check_integrity(self, _: datetime) -> None:
        self._results.store.check(full=self._days % FULL_DAYS == 0)
        self._days += 1

    def _back_up(self, now: datetime) -> None:
        settings = self._settings()
        backups = backups_of(self._results.store.path)
        newest = max((backup.made for backup in backups), default=None)
        fresh = newest is not None and 0 <= (now - newest).total_seconds() < EVERY_SECONDS
        if settings.keep_backups and not fresh:
            backup = self._results.store.back_up(
                now, keep=settings.keep_backups, max_bytes=settings.backup_max_size
            )
            log.info("database backup created", to=str(backup.path), bytes=backup.size_bytes)

    def _remove_old(self, now: datetime) -> None:
        settings = self._settings()
        # A full disk would stop the measurements: then results go that the hub lacks.
        usage = shutil.disk_usage(self._results.store.path.parent)
        short = usage.free < SHORT_SHARE * usage.total
        prune = partial(
            self._results.store.prune,
            now,
            evidence_seconds=settings.keep_evidence,
            runs_seconds=settings.keep_runs,
        )
        removal, done = prune()
        if short and done and removal.unsent:
            # What is left is the backlog for the hub: however large, it is no mistake of a clock.
            removal, done = prune(keep_unsent=False, certain=True)
        self._results.recount()
        if removal.unsent:
            log.warning("expired results kept until the hub has them", runs=removal.unsent)
        if not done:
            log.warning(
                "retention skipped: too many runs would be deleted",
                runs=removal.runs,
                of_runs=removal.of_runs,
                evidence_of_runs=removal.stripped,
                likely_cause="the clock was wrong, or keep_runs or keep_evidence was lowered",
                next_step="check with `pvebench prune`; if correct, run `pvebench prune --apply`",
            )
        elif removal.stripped or removal.runs:
            log.info(
                "expired results removed", runs=removal.runs, evidence_of_runs=removal.stripped
            )
