"""Taking over changed settings and packs while running: all of a change, or nothing of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from pvebench.config import Settings
from pvebench.errors import ConfigError
from pvebench.metrics import ConfigState
from pvebench.plan import Assignment

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings and what they ask to be run."""

    settings: Settings
    given: list[Assignment]


class Reloader:
    """Looks after the files of the configuration in force.

    Args:
        config: the settings file, if there is one.
        load: reads everything anew; raises ConfigError.
        apply: puts a new configuration into force.
    """

    def __init__(
        self, config: Path | None, first: Configuration, *,
        load: Callable[[], Configuration], apply: Callable[[Configuration], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._load = load
        self._apply = apply
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

    def check(self) -> None:
        """Reload if that was asked for, or a file has changed since it was last read."""
        signature = self._signature()
        if not self._asked and signature == self._seen:
            return
        self._asked, self._seen = False, signature
        try:
            found = self._load()
            fixed = self._current.settings.fixed_differences(found.settings)
        except ConfigError as error:
            # The bad file may be one that the settings in force do not name.
            self._suspects = tuple({Path(problem.file) for problem in error.problems})
            self._seen = self._signature()
            self._refuse(str(error))
            return
        self._suspects = ()
        if fixed:
            self._refuse(f"{', '.join(fixed)}: cannot be changed while running; restart pvebench")
            return
        self._current = found
        self._seen = self._signature()  # the new settings may name other packs
        self.state = self._state_of(found)
        self._apply(found)
        log.info("settings reloaded", digest=self.state.digest)

    def _refuse(self, why: str) -> None:
        log.warning("the changed settings are not used; the old ones stay in force", reason=why)
        self.state = replace(self.state, successful=False)

    def _files(self, settings: Settings) -> list[Path]:
        return [*([self._config] if self._config else []), *settings.packs]

    def _signature(self) -> tuple[tuple[int, ...], ...]:
        files = [*self._files(self._current.settings), *self._suspects]
        return tuple(_stat(path) for path in files)

    def _state_of(self, configuration: Configuration) -> ConfigState:
        return ConfigState(
            digest=_digest(self._files(configuration.settings)),
            packs=tuple(dict.fromkeys(entry.pack.name for entry in configuration.given)),
            loaded=datetime.now(UTC), successful=True,
        )  # fmt: skip


def _stat(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:12]
