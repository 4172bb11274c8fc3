"""Current definitions of the cases, and their changes: a slug can have had other definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.units import format_size, whole_number
from pvebench.store.records import CaseRecord

_SIZES: Final = ("volume_bytes", "memory_bytes", "file_bytes", "bs", "size")
SHOWN: Final = 4
"""Maximum number of differences in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionChange:
    """A changed definition of a case; earlier runs belong to another history.

    Attributes:
        key: key of the current case.
        at: start of the first run with the current definition.
        earlier_runs: number of runs with earlier definitions, of all outcomes.
    """

    key: str
    at: datetime
    before: Definition
    now: Definition
    earlier_runs: int

    @property
    def text(self) -> str:
        """Sentence with the differences and the time of the change."""
        differences = [
            f"{name} {_text(name, old)} → {_text(name, new)}"
            for name, old, new in self.now.differences(self.before)
        ]
        differences = differences or ["unrecorded differences"]
        more = f" and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        return (
            f"the definition of {self.now.name} on {self.now.node} changed at "
            f"{self.at:%Y-%m-%d %H:%M} UTC: {', '.join(differences[:SHOWN])}{more}; "
            f"earlier runs ({self.earlier_runs}) are not compared"
        )


def _text(name: str, value: str) -> str:
    size = whole_number(value) if name in _SIZES else None
    return (value or "unset") if size is None else format_size(size)


def current_keys(
    cases: Mapping[str, CaseRecord], planned: Iterable[tuple[str, Definition]] = ()
) -> dict[tuple[str, str, str], str]:
    """Return place (node, scenario, workload) -> key of its current definition.

    That is the one that the current packs plan. Elsewhere it is the one of the last run, of a
    scaled run only if there is no other.
    """
    newest = {
        record.definition.place: key
        for key, record in sorted(cases.items(), key=lambda item: _rank(item[1]))
    }
    return newest | {definition.place: key for key, definition in planned}


def _rank(record: CaseRecord) -> tuple[bool, datetime, int]:
    last = record.last
    return last.definition.scale == 1.0, last.finished, last.number


def definition_changes(
    cases: Mapping[str, CaseRecord], keys: Iterable[str]
) -> tuple[DefinitionChange, ...]:
    """Return the changed definitions of the current cases `keys`, newest change first.

    Scaled runs of a case, made as a trial, are no earlier definition of it.
    """
    by_place: dict[tuple[str, str, str], list[CaseRecord]] = {}
    for record in cases.values():
        by_place.setdefault(record.definition.place, []).append(record)
    changes = [
        change
        for key in keys
        if key in cases
        and (change := _change(key, cases[key], by_place[cases[key].definition.place])) is not None
    ]
    return tuple(sorted(changes, key=lambda change: change.at, reverse=True))


def _change(
    key: str, current: CaseRecord, all_of_place: Sequence[CaseRecord]
) -> DefinitionChange | None:
    now = current.definition
    earlier = [
        record
        for record in all_of_place
        if record.key != key
        and record.definition.scale == now.scale
        and record.first_started < current.first_started
    ]
    if not earlier:
        return None
    last = max(earlier, key=lambda record: record.last.finished)
    return DefinitionChange(
        key=key,
        at=current.first_started,
        before=last.definition,
        now=now,
        earlier_runs=sum(sum(record.outcomes.values()) for record in earlier),
    )
