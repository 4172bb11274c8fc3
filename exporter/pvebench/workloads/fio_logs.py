"""fio's IOPS log: operations per second of each whole interval of the measured window.

A line is `milliseconds since the end of the ramp, IOPS of the interval that ends there,
direction, block size, priority`. Three things in it mislead (fio 3.33, `stat.c`):

- an interval without any I/O has no line: a stall is a gap, and is filled with 0 here;
- with `per_job_logs=0` the lines of the jobs follow each other: they are added up here;
- the last interval may have no line because its job ended first: it is left out here.

The ramp is not in the log, and fio does not log the partial interval at the end. Lines are
not on a fixed grid: a helper thread that wakes late makes an interval longer, and shifts the
ones after it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from pvebench.model.workload import Direction

LOG_NAME: Final = "_iops.log"
MINIMUM_INTERVALS: Final = 3
"""Fewer say nothing about variation."""
_LINE: Final = re.compile(r"(\d{1,15}), (\d{1,15}), ([012])(, |\Z)")
_DIRECTIONS: Final = (Direction.READ, Direction.WRITE, Direction.TRIM)
_Entry = tuple[int, int, Direction]


def read_intervals(
    logs: Mapping[str, str],
    directions: Iterable[Direction],
    *,
    width_ms: int,
    window_ms: float,
    ran_ms: float,
) -> tuple[dict[str, tuple[float, ...]], tuple[str, ...]]:
    """Return direction -> IOPS of each whole interval, and notes for the reader of the run.

    Args:
        logs: path or name -> content; the one whose name ends in `_iops.log` is read.
        directions: those of the workload; others in the log are ignored.
        width_ms: the `log_avg_msec` that the job asked for.
        window_ms: the window that the job asked for.
        ran_ms: fio's own runtime; longer where the last operations were slow to come back.
    """
    text = next((content for name, content in logs.items() if name.endswith(LOG_NAME)), "")
    lines = text.splitlines()
    entries = [entry for line in lines if (entry := _entry(line))]
    notes = []
    if len(entries) < len(lines):
        notes.append(f"{len(lines) - len(entries)} lines of fio's IOPS log are unreadable")
    if not entries:
        return {}, (*notes, "fio left no IOPS log: there are no intervals")
    last = max(time for time, _, _ in entries)
    if last > max(window_ms, ran_ms) + width_ms / 2:
        notes.append(
            f"fio's IOPS log ends at {last} ms, beyond its window of {window_ms:.0f} ms: "
            f"the intervals are not used"
        )
        return {}, tuple(notes)
    window = min(window_ms, ran_ms)
    inside = [entry for entry in entries if entry[0] <= window + width_ms / 2]
    return _add_up(inside, directions, width_ms, window), tuple(notes)


def _add_up(
    entries: list[_Entry], directions: Iterable[Direction], width_ms: int, window_ms: float
) -> dict[str, tuple[float, ...]]:
    indexes = _number_ticks({time for time, _, _ in entries}, width_ms)
    sums: Counter[tuple[Direction, int]] = Counter()
    lines: Counter[tuple[Direction, int]] = Counter()
    for time, value, direction in entries:
        sums[direction, indexes[time]] += value
        lines[direction, indexes[time]] += 1
    known = max(indexes.values(), default=0)
    in_window = int((window_ms + width_ms / 20) // width_ms)
    if known >= in_window and _thinner(lines, known):
        known -= 1
    # A stall that lasts to the end of the window leaves no lines; only the very last
    # interval is in doubt, because it may as well have been cut off.
    known = max(known, in_window - 1)
    return {
        str(direction): tuple(float(sums[direction, index]) for index in range(1, known + 1))
        for direction in directions
    }


def _thinner(lines: Counter[tuple[Direction, int]], last: int) -> bool:
    """Return whether the last interval lacks lines of jobs that logged in others."""
    usual: Counter[Direction] = Counter()
    for (direction, _), count in lines.items():
        usual[direction] = max(usual[direction], count)
    return any(lines[direction, last] < count for direction, count in usual.items())


def _entry(line: str) -> _Entry | None:
    match = _LINE.match(line.strip())
    return (int(match[1]), int(match[2]), _DIRECTIONS[int(match[3])]) if match else None


def _number_ticks(times: set[int], width_ms: int) -> dict[int, int]:
    """Return the interval's number, from 1, for each time at which one ended.

    Times closer than half an interval are the same tick, seen by several jobs; a longer
    gap counts as the number of intervals that fit into it best.
    """
    indexes: dict[int, int] = {}
    tick, index = 0, 0
    for time in sorted(times):
        if index == 0 or time - tick >= width_ms / 2:
            index += max(1, round((time - tick) / width_ms))
            tick = time
        indexes[time] = index
    return indexes
