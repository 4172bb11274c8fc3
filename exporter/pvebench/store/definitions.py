"""Which definition of a case is in force, and since when: a slug may have meant other things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.units import format_size
from pvebench.store import CaseRecord

_SIZES: Final = ("volume_bytes", "memory_bytes", "file_bytes", "bs", "size")
SHOWN: Final = 4
"""Differences that are named in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionChange:
    """A case means something else than before; its earlier runs are another history.

    Attributes:
        key: of the present case.
        at: start of the first run with the present definition.
        earlier_runs: how many runs there are with earlier definitions, of all outcomes.
    """

    key: str
    at: datetime
    before: Definition
    now: Definition
    earlier_runs: int

    @property
    def text(self) -> str:
        """What changed and when, in a sentence."""
        found = [
            f"{name} {_text(name, old)} → {_text(name, new)}"
            for name, old, new in self.now.differences(self.before)
        ]
        found = found or ["something that is not recorded"]
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return (
            f"{self.now.name} on {self.now.node} means something else since "
            f"{self.at:%Y-%m-%d %H:%M} UTC: {', '.join(found[:SHOWN])}{more}; "
            f"earlier runs ({self.earlier_runs}) are another history and are not compared"
        )


def _text(name: str, value: str) -> str:
    if name in _SIZES and value.isdigit():
        return format_size(int(value))
    return value or "unset"


def current_keys(
    cases: Mapping[str, CaseRecord], planned: Iterable[tuple[str, Definition]] = ()
) -> dict[tuple[str, str, str], str]:
    """Return place (node, scenario, workload) -> key of the definition that is in force.

    What the present packs plan is in force. Elsewhere it is what was tried last, a scaled run
    only where there is no other.
    """
    newest = {
        record.definition.place: key
        for key, record in sorted(cases.items(), key=lambda one: _rank(one[1]))
    }
    return newest | {definition.place: key for key, definition in planned}


def _rank(record: CaseRecord) -> tuple[bool, datetime, int]:
    last = record.last
    return last.definition.scale == 1.0, last.finished, last.number


def definition_changes(
    cases: Mapping[str, CaseRecord], keys: Iterable[str]
) -> tuple[DefinitionChange, ...]:
    """Return what has become of the cases `keys`, which are in force; the newest change first.

    A case's scaled runs are no earlier definition of it: somebody tried it out.
    """
    by_place: dict[tuple[str, str, str], list[CaseRecord]] = {}
    for record in cases.values():
        by_place.setdefault(record.definition.place, []).append(record)
    found = [
        change
        for key in keys
        if key in cases
        and (change := _change(key, cases[key], by_place[cases[key].definition.place])) is not None
    ]
    return tuple(sorted(found, key=lambda one: one.at, reverse=True))


def _change(
    key: str, present: CaseRecord, all_of_place: Sequence[CaseRecord]
) -> DefinitionChange | None:
    now = present.definition
    earlier = [
        one
        for one in all_of_place
        if one.key != key
        and one.definition.scale == now.scale
        and one.first_started < present.first_started
    ]
    if not earlier:
        return None
    last = max(earlier, key=lambda one: one.last.finished)
    return DefinitionChange(
        key=key,
        at=present.first_started,
        before=last.definition,
        now=now,
        earlier_runs=sum(sum(one.outcomes.values()) for one in earlier),
    )
