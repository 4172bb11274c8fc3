"""The result tables: bus × cache of each storage, format and workload. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pvebench.analysis.verdict import Verdict
from pvebench.analysis.wording import change_text
from pvebench.judging.rows import verdict_sign
from pvebench.model.run import Outcome
from pvebench.web.board import CaseState, Content, Number, PlannedCase
from pvebench.web.present import case_url
from pvebench.web.texts import iso, outcome_text, show_age

STALE_INTERVALS: Final = 2
CACHES: Final = ("none", "directsync", "writethrough", "writeback", "unsafe")
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


def shown_cases(content: Content) -> dict[str, Mapping[str, Any]]:
    """Return key -> definition: of the present packs, or of all results where no pack is known."""
    if content.planned:
        return {key: case.definition for key, case in content.planned.items()}
    return {key: state.last.definition for key, state in content.states.items()}


def is_stale(planned: PlannedCase | None, state: CaseState, now: datetime) -> bool:
    """Return whether a case's last good run is older than two of its intervals."""
    if planned is None or state.good is None:
        return False
    age = (now - state.good.finished).total_seconds()
    return age > STALE_INTERVALS * planned.every_seconds


def tables_view(
    content: Content, shown: Mapping[str, Mapping[str, Any]], now: datetime,
    changed: Mapping[str, Verdict],
) -> tuple[Table, ...]:  # fmt: skip
    """Return the tables of the shown cases, in a stable order.

    Args:
        changed: case key -> what is confirmed of it.
    """
    groups: dict[tuple[str, str, str, str], dict[str, Mapping[str, Any]]] = {}
    for key, definition in shown.items():
        labels = definition["labels"]
        group = (labels["node"], labels["storage"], labels["workload"], labels["format"])
        groups.setdefault(group, {})[key] = definition
    several = len({node for node, *_ in groups}) > 1
    return tuple(
        _table(content, group, groups[group], now, changed, name_node=several)
        for group in sorted(groups)
    )


def _table(
    content: Content, group: tuple[str, str, str, str], cases: Mapping[str, Mapping[str, Any]],
    now: datetime, changed: Mapping[str, Verdict], *, name_node: bool,
) -> Table:  # fmt: skip
    node, storage, _, form = group
    grid: dict[tuple[str, tuple[str, ...]], dict[str, Cell]] = {}
    title = ""
    for key, definition in cases.items():
        labels = definition["labels"]
        title = str(definition["workload"]["title"])
        cell = _cell(
            key, content.planned.get(key), content.states.get(key), now, changed.get(key)
        )  # fmt: skip
        row = grid.setdefault((labels["bus"], other_options(labels)), {})
        # Two cases in one cell are two definitions of one slug: the younger result counts.
        if labels["cache"] not in row or cell.finished > row[labels["cache"]].finished:
            row[labels["cache"]] = cell
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


def _cell(
    key: str, planned: PlannedCase | None, state: CaseState | None, now: datetime,
    changed: Verdict | None,
) -> Cell:  # fmt: skip
    if state is None:
        return Cell(
            url=case_url(key), numbers=(), absent="not measured yet", age="", finished="", notes=()
        )
    notes = [] if changed is None else [_change(changed)]
    if state.last.outcome is not Outcome.OK:
        word = outcome_text(state.last.outcome)
        notes.append(Note("×", word, f"/runs/{state.last.number}"))
    if is_stale(planned, state, now):
        notes.append(Note("!", "stale"))
    good = state.good
    return Cell(
        url=case_url(key),
        numbers=state.numbers,
        absent=state.figure or "no result",
        age="" if good is None else show_age((now - good.finished).total_seconds()),
        finished="" if good is None else iso(good.finished),
        notes=tuple(notes),
    )


def _change(verdict: Verdict) -> Note:
    sign = verdict_sign(verdict.state)
    text = change_text(verdict.effect, verdict.history.figure)
    return Note(sign, f"suspicious: {text}" if sign == "!" else text, good=sign == "▲")
