"""A history from a CSV file of somebody else's benchmark; complaints with file:line:column."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.figures import Figure
from pvebench.analysis.judge import Material
from pvebench.errors import ConfigError, Problem
from pvebench.files import read_text
from pvebench.model.units import MIB, plain_number

COLUMNS: Final = ("time", "value", "environment", "case")
"""`time` and `value` must be there."""
MOST_BYTES: Final = 16 * MIB
MOST_RUNS: Final = 50_000
MOST_CASES: Final = 500
MOST_ENVIRONMENTS: Final = 300
"""Of one file. More of each would take minutes; a run an hour are 8,766 a year."""
MOST_PROBLEMS: Final = 50


def read_csv(path: Path, figure: Figure) -> Material:
    """Return the histories in a file: one line a run, with a header.

    Times are ISO 8601 (UTC if they do not say) or seconds since the epoch; values positive
    numbers. A change of `environment` is an event; lines without `case` are one case.

    Raises:
        ConfigError: with every fault of the file.
    """
    problems: list[Problem] = []
    cases: dict[str, list[GoodRun]] = {}
    for line, row in _rows(path, problems):
        point = _point(path, line, row, problems)
        if point is not None:
            cases.setdefault(row.get("case") or path.stem, []).append(point)
        if len(problems) >= MOST_PROBLEMS:
            break
    problems += _too_many(path, cases)
    if not problems and not cases:
        problems.append(Problem(str(path), 2, 1, "there are no runs below the header"))
    if problems:
        raise ConfigError(problems)
    histories = [
        CaseHistory(
            case=name,
            of=name,
            name=name,
            figure=figure,
            labels={},
            points=GoodRuns(sorted(points, key=lambda point: point.time)),
        )
        for name, points in cases.items()
    ]
    timeline = sorted({(p.time, p.environment) for one in histories for p in one.points})
    facts = {name: {"environment": name} for _, name in timeline}
    return Material(node="", histories=histories, timeline=timeline, facts=facts)


def _too_many(path: Path, cases: dict[str, list[GoodRun]]) -> Iterator[Problem]:
    found = {
        "runs": (sum(len(points) for points in cases.values()), MOST_RUNS),
        "cases": (len(cases), MOST_CASES),
        "environments": (
            len({point.environment for points in cases.values() for point in points}),
            MOST_ENVIRONMENTS,
        ),
    }
    for what, (count, most) in found.items():
        if count > most:
            message = f"has more than {most} {what}; split it, or leave out the oldest"
            yield Problem(str(path), 0, 0, message)


Row = dict[str, str]


def _rows(path: Path, problems: list[Problem]) -> Iterator[tuple[int, Row]]:
    """Yield (line, column -> text); the header must be right."""
    line = 1
    text = read_text(path, most=MOST_BYTES, encoding="utf-8-sig")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        problems += _header_problems(path, header)
        if problems:
            return
        for cells in itertools.islice(reader, MOST_RUNS + 1):
            line = reader.line_num
            if any(cell.strip() for cell in cells):
                yield line, _row(path, line, header, cells, problems)
    except csv.Error as error:
        problems.append(Problem(str(path), line + 1, 1, f"is not CSV: {error}"))


def _row(
    path: Path, line: int, header: list[str], cells: list[str], problems: list[Problem]
) -> Row:
    if len(cells) != len(header):
        message = f"has {len(cells)} values; the header has {len(header)} columns"
        problems.append(Problem(str(path), line, 1, message))
    return {name: cell.strip() for name, cell in zip(header, cells, strict=False)} | {
        "\0columns": ",".join(str(place) for place in _columns(header, cells))
    }


def _columns(header: list[str], cells: list[str]) -> list[int]:
    """Return at which column of its line each of COLUMNS begins, as far as it is there."""
    starts, place = [], 1
    for cell in cells:
        starts.append(place)
        place += len(cell) + 1
    found = dict(zip(header, starts, strict=False))
    return [found.get(name, 1) for name in COLUMNS]


def _header_problems(path: Path, header: list[str]) -> list[Problem]:
    unknown = [name for name in header if name not in COLUMNS]
    missing = [name for name in COLUMNS[:2] if name not in header]
    known = ", ".join(COLUMNS)
    found = [f"unknown column {name[:50]!r}; known: {known}" for name in unknown[:MOST_PROBLEMS]]
    found += [f"missing column {name!r}" for name in missing]
    return [Problem(str(path), 1, 1, message) for message in found]


def _point(path: Path, line: int, row: Row, problems: list[Problem]) -> GoodRun | None:
    columns = [int(place) for place in row["\0columns"].split(",")]
    time, value = _time(row.get("time", "")), _value(row.get("value", ""))
    if time is None:
        text = f"{row.get('time', '')[:50]!r} is not a time: write 2026-03-01T12:00:00Z or seconds"
        problems.append(Problem(str(path), line, columns[0], text))
    if value is None:
        text = f"{row.get('value', '')[:50]!r} is not a positive number"
        problems.append(Problem(str(path), line, columns[1], text))
    if time is None or value is None:
        return None
    return GoodRun(time, row.get("environment", ""), value)


def _time(text: str) -> float | None:
    seconds = plain_number(text)
    try:
        found = datetime.fromtimestamp(_iso(text) if seconds is None else seconds, UTC)
    except (ValueError, OverflowError, OSError):  # beyond any calendar
        return None
    return found.timestamp()


def _iso(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _value(text: str) -> float | None:
    value = plain_number(text)
    return value if value is not None and math.isfinite(value) and value > 0 else None
