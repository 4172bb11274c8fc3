"""The result tables: bus × cache of each storage, format and workload. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pvebench.analysis.verdict import Verdict
from pvebench.analysis.words import change_text
from pvebench.judging.rows import verdict_sign
from pvebench.model.definition import Definition
from pvebench.model.disk import Cache
from pvebench.model.run import Outcome
from pvebench.results import PlannedCase, View
from pvebench.store import CaseRecord
from pvebench.web.numbers import Number, figure_of, numbers_of
from pvebench.web.present import case_url
from pvebench.web.texts import iso, outcome_text, show_age

STALE_INTERVALS: Final = 2.5
"""As in the alerts and dashboards: of two runs neither came."""
CACHES: Final = tuple(map(str, Cache))
"""From the safest to the least safe; others follow by name."""


@dataclass(frozen=True, slots=True)
class Note:
    """A word beside a number, with the sign that goes before it, and where it leads."""

    sign: str
    word: str
    url: str = ""
    good: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One case in a table.

    Attributes:
        absent: what to say instead of numbers.
        age: of the last good run; empty if there is none.
    """

    url: str
    numbers: tuple[Number, ...]
    absent: str
    age: str
    finished: str
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A bus and the further options that differ from their defaults."""

    bus: str
    options: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Bus × cache of one storage, format and workload."""

    anchor: str
    title: str
    place: str
    caches: tuple[str, ...]
    rows: tuple[Row, ...]


def shown_cases(content: View) -> dict[str, Definition]:
    """Return key -> definition: of the present packs, or of all results where no pack is known."""
    if content.planned:
        return {key: case.definition for key, case in content.planned.items()}
    return {key: content.cases[key].definition for key in content.current().values()}


def is_stale(planned: PlannedCase | None, state: CaseRecord, now: datetime) -> bool:
    """Return whether a case's last good run is older than two and a half of its intervals."""
    if planned is None or state.good is None:
        return False
    age = (now - state.good.finished).total_seconds()
    return age > STALE_INTERVALS * planned.every_seconds


def tables_view(
    content: View, shown: Mapping[str, Definition], now: datetime, changed: Mapping[str, Verdict]
) -> tuple[Table, ...]:
    """Return the tables of the shown cases, in a stable order.

    Args:
        changed: case key -> what is confirmed of it.
    """
    groups: dict[tuple[str, str, str, str], dict[str, Definition]] = {}
    for key, definition in shown.items():
        group = (definition.node, definition.storage, definition.workload, definition.format)
        groups.setdefault(group, {})[key] = definition
    several = len({node for node, *_ in groups}) > 1
    return tuple(
        _table(content, group, groups[group], now, changed, name_node=several)
        for group in sorted(groups)
    )


def _table(
    content: View,
    group: tuple[str, str, str, str],
    cases: Mapping[str, Definition],
    now: datetime,
    changed: Mapping[str, Verdict],
    *,
    name_node: bool,
) -> Table:
    node, storage, _, form = group
    grid: dict[tuple[str, tuple[str, ...]], dict[str, Cell]] = {}
    title = ""
    for key, definition in cases.items():
        title = definition.title
        cell = _cell(content, key, now, changed.get(key))
        row = grid.setdefault((definition.bus, other_options(definition.labels)), {})
        row[definition.cache] = cell
    caches = sorted({cache for row in grid.values() for cache in row}, key=_cache_order)
    place = f"storage {storage}, format {form}"
    return Table(
        anchor="table-" + re.sub(r"[^A-Za-z0-9]+", "-", "-".join(group)).lower(),
        title=title,
        place=f"node {node}, {place}" if name_node else place,
        caches=tuple(caches),
        rows=tuple(
            Row(bus, options, tuple(grid[bus, options].get(cache) for cache in caches))
            for bus, options in sorted(grid)
        ),
    )


def _cache_order(cache: str) -> tuple[int, str]:
    return (CACHES.index(cache) if cache in CACHES else len(CACHES), cache)


def other_options(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a scenario's slug says after its first four parts, such as `aio-native`.

    Read from the slug, so that an option needs to be known only where slugs are made.
    """
    head = ".".join(labels[name] for name in ("storage", "bus", "format", "cache"))
    tail = labels["scenario"].removeprefix(head)
    return tuple(part for part in tail.split(".") if part)


def _cell(content: View, key: str, now: datetime, changed: Verdict | None) -> Cell:
    state = content.cases.get(key)
    if state is None:
        return Cell(
            url=case_url(key), numbers=(), absent="not measured yet", age="", finished="", notes=()
        )
    notes = [] if changed is None else [_change(changed)]
    if state.last.outcome is not Outcome.OK:
        word = outcome_text(state.last.outcome)
        notes.append(Note("×", word, f"/runs/{state.last.number}"))
    definition = content.definition(key)
    if definition is not None and definition.is_warm:
        notes.append(Note("~", "warm cache"))
    if is_stale(content.planned.get(key), state, now):
        notes.append(Note("!", "stale"))
    good = state.good
    return Cell(
        url=case_url(key),
        numbers=numbers_of(content.trends.get(key)),
        absent=figure_of(state) or "no result",
        age="" if good is None else show_age((now - good.finished).total_seconds()),
        finished="" if good is None else iso(good.finished),
        notes=tuple(notes),
    )


def _change(verdict: Verdict) -> Note:
    sign = verdict_sign(verdict.state)
    text = change_text(verdict.effect, verdict.history.figure)
    return Note(sign, f"suspicious: {text}" if sign == "!" else text, good=sign == "▲")
