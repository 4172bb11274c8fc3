"""The table that CrystalDiskMark made known: four loads, read and write, in MB/s.

Its numbers are the best of several passes; the median stands beside, since the best of five is
as much luck as speed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pvebench.report.table import ResultRow

_NAME: Final = re.compile(r"(SEQ|RND)\w+ Q\d+T\d+\Z")
MEGABYTE: Final = 1_000_000
"""That program counts in steps of 1000."""


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """One load on one configuration; MB/s, None where it was not measured."""

    name: str
    scenario: str
    passes: int
    read_best: float | None = None
    read_median: float | None = None
    write_best: float | None = None
    write_median: float | None = None


def profile(rows: Iterable[ResultRow]) -> list[ProfileLine]:
    """Return the lines of the rows whose titles are of that form: `SEQ1M Q8T1`."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    passes: dict[tuple[str, str], int] = {}
    for row in rows:
        title, direction = str(row["title"]), str(row["direction"])
        if not _NAME.match(title):
            continue
        key = (str(row["scenario"]), title)
        passes[key] = max(passes.get(key, 0), int(row["good_runs"] or 0))
        for which in ("best", "median"):
            speed = _speed(row, which)
            if speed is not None:
                found.setdefault(key, {})[f"{direction}_{which}"] = speed
    ordered = sorted(found, key=lambda key: (key[0], _rank(key[1])))
    return [
        ProfileLine(
            name=title, scenario=scenario, passes=passes[scenario, title], **found[scenario, title]
        )
        for scenario, title in ordered
    ]


def _speed(row: ResultRow, which: str) -> float | None:
    value, block = row[which], row["block_size_bytes"]
    if not isinstance(value, int | float) or not isinstance(block, int):
        return None
    return value * (block if row["best_metric"] == "iops" else 1) / MEGABYTE


def _rank(title: str) -> tuple[bool, int]:
    """Sequential first, deep queues first: the order that people know."""
    depth = re.search(r"Q(\d+)T", title)
    return title.startswith("RND"), -int(depth[1]) if depth else 0
