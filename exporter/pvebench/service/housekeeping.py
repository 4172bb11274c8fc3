"""What is done between two runs: taking over changed settings, caring for the database."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from pvebench.config import Settings
from pvebench.errors import ConfigError, StoreError, StoreLost
from pvebench.files import Signature, signature
from pvebench.metrics import ConfigState
from pvebench.scheduler.case_matrix import Assignment
from pvebench.store import backups_of
from pvebench.store.current import Results
from pvebench.verdicts import NUMBERS

EVERY_SECONDS: Final = 86400.0
"""So often the database is cared for."""
FULL_DAYS: Final = 7
"""So often, in days, its indexes are looked at too."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings and what they ask to be run."""

    settings: Settings
    given: list[Assignment]


class Reloader:
    """Takes over changed settings and packs: all of a change, or nothing of it.

    Args:
        config: the settings file, if there is one.
        first: what is in force at first.
        load: reads everything anew; raises ConfigError.
    """

    def __init__(
        self, config: Path | None, first: Configuration, *, load: Callable[[], Configuration]
    ) -> None:
        self._config = config
        self._load = load
        self._current = first
        self._asked = False
        self._suspects: tuple[Path, ...] = ()
        self._seen = self._signature()
        self.state = self._state_of(first)

    @property
    def current(self) -> Configuration:
        """The configuration in force."""
        return self._current

    def ask(self) -> None:
        """Have the next `check` read everything anew (SIGHUP)."""
        self._asked = True

    def check(self) -> Configuration | None:
        """Reload if that was asked for, or a file has changed since it was last read.

        Returns:
            What is in force from now on, for those who use it; None if nothing changed.
        """
        found_now = self._signature()
        if not self._asked and found_now == self._seen:
            return None
        self._asked, self._seen = False, found_now
        try:
            found = self._load()
            fixed = self._current.settings.fixed_differences(found.settings)
        except ConfigError as error:
            # The bad file may be one that the settings in force do not name.
            self._suspects = tuple({Path(problem.file) for problem in error.problems})
            self._seen = self._signature()
            self._refuse(str(error))
            return None
        self._suspects = ()
        if fixed:
            self._refuse(f"{', '.join(fixed)}: cannot be changed while running; restart pvebench")
            return None
        self._current = found
        self._seen = self._signature()  # the new settings may name other packs
        self.state = self._state_of(found)
        log.info("settings reloaded", digest=self.state.digest)
        return found

    def _refuse(self, why: str) -> None:
        log.warning("the changed settings are not used; the old ones stay in force", reason=why)
        self.state = replace(self.state, successful=False)

    def _files(self, settings: Settings) -> list[Path]:
        return [*([self._config] if self._config else []), *settings.packs]

    def _signature(self) -> Signature:
        return signature([*self._files(self._current.settings), *self._suspects])

    def _state_of(self, configuration: Configuration) -> ConfigState:
        return ConfigState(
            digest=_digest(self._files(configuration.settings)),
            packs=tuple(dict.fromkeys(entry.pack.name for entry in configuration.given)),
            loaded=datetime.now(UTC),
            successful=True,
        )


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:12]


class Tidier:
    """Keeps the database sound, copied, and at the size that the settings in force ask for."""

    def __init__(
        self, results: Results, settings: Callable[[], Settings], now: Callable[[], datetime]
    ) -> None:
        self._results = results
        self._settings = settings
        self._now = now
        self._last: datetime | None = None
        self._days = 0

    def check(self) -> None:
        """Look whether the database is there and pack some of it; once a day care for it.

        Raises:
            StoreLost: it is damaged or gone.
        """
        self._results.store.check_there()
        now = self._now()
        for step in (*self._daily(now), self._pack):
            try:
                step(now)
            except StoreLost:
                raise
            except StoreError as error:
                log.warning("the database is not cared for", reason=str(error))

    def _daily(self, now: datetime) -> Sequence[Callable[[datetime], None]]:
        """Return what is due; nothing, if it was done less than a day ago."""
        if self._last is not None and abs((now - self._last).total_seconds()) < EVERY_SECONDS:
            return ()
        self._last = now
        return self._look_through, self._back_up, self._remove_old

    def _look_through(self, _: datetime) -> None:
        self._results.store.check(full=self._days % FULL_DAYS == 0)
        self._days += 1
        self._results.store.numbers.look_through(NUMBERS)

    def _back_up(self, now: datetime) -> None:
        settings = self._settings()
        newest = max((one.made for one in backups_of(self._results.store.path)), default=None)
        fresh = newest is not None and 0 <= (now - newest).total_seconds() < EVERY_SECONDS
        if settings.keep_backups and not fresh:
            made = self._results.store.back_up(
                now, keep=settings.keep_backups, room_bytes=settings.backup_max_size
            )
            log.info("the database was copied", to=str(made.path), bytes=made.size_bytes)

    def _remove_old(self, now: datetime) -> None:
        settings = self._settings()
        removal, done = self._results.store.prune(
            now, evidence_seconds=settings.keep_evidence, runs_seconds=settings.keep_runs
        )
        self._results.recount()
        if not done:
            log.warning(
                "a large part of the history would be too old; nothing is removed",
                runs=removal.runs,
                of_runs=removal.of_runs,
                evidence_of_runs=removal.stripped,
                likely_cause="the clock was wrong, or keep_runs or keep_evidence was lowered",
                next_step="look with `pvebench prune`; if it is right: `pvebench prune --apply`",
            )
        elif removal.stripped or removal.runs:
            log.info("old results removed", runs=removal.runs, evidence_of_runs=removal.stripped)

    def _pack(self, _: datetime) -> None:
        # One at a time: a block takes seconds, and the next run waits for it.
        self._results.store.numbers.pack(NUMBERS, most=1)
