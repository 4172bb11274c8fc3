"""Shifts of groups of cases of a node at its upgrades, and at times without one.

Only the hub of a fleet uses them: `across_sites` compares them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, LEAST_MEMBERS, CaseHistory, Group
from pvebench.analysis.change import FactDifference
from pvebench.analysis.difference import widening
from pvebench.analysis.events import Event
from pvebench.analysis.levels import MAD_TO_SIGMA, TINY
from pvebench.model.units import DAY

COMPARED: Final = ("throughput", "cpu_cost")
"""Metrics that are compared across sites; the others follow them, or are too rare."""
PAIRED: Final = ("storage", "rw")
"""Labels that make a group together with another label."""
WINDOW: Final = 20
"""Maximum runs of a case on each side."""
LEAST_AFTER: Final = 3
EVERY_SECONDS: Final = 7 * DAY
"""Interval of the times without an upgrade, whose grid all sites share."""
LONGEST_SECONDS: Final = 200 * DAY
"""Age of the oldest effects, by the newest run."""
FARTHEST: Final = 3.0
"""Distance of an outlier from the level of a case, in standard deviations."""


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """Shift of a group of cases of a node at a time; logarithms, positive is better.

    Attributes:
        time: of the event, or of the grid; UNIX seconds.
        differences: of the event; empty: there was none.
        effect: of a group relative to the other cases.
        error: standard error of the effect, by the noise of typical times.
        own: shift of the group itself.
    """

    time: float
    differences: tuple[FactDifference, ...]
    figure: str
    group: Group
    effect: float
    error: float
    own: float
    cases: int


@dataclass(frozen=True, slots=True)
class _Shift:
    """Shift of a group at a time; `variance` of one run, `share` of it in that of the shift."""

    group: Group
    effect: float
    variance: float
    share: float
    own: float
    cases: int


_Found = tuple[float, tuple[FactDifference, ...], str, _Shift]
"""Time, differences of its event, metric and shift of a group."""


def node_effects(histories: Sequence[CaseHistory], events: Sequence[Event]) -> list[NodeEffect]:
    """Return the effects of a node's events, and those of the grid between them."""
    newest = max((history.times()[-1] for history in histories if history.points), default=0.0)
    first = newest - LONGEST_SECONDS
    times = [(event.time, event.differences) for event in events if event.time > first]
    grid = np.arange(math.ceil(first / EVERY_SECONDS), newest // EVERY_SECONDS) * EVERY_SECONDS
    times += [(float(at), ()) for at in grid]
    borders = [event.time for event in events]
    return _with_errors([*_found(histories, times, borders)])


def _found(
    histories: Sequence[CaseHistory],
    times: Sequence[tuple[float, tuple[FactDifference, ...]]],
    borders: Sequence[float],
) -> Iterator[_Found]:
    """Yield the shifts at all times, by the runs up to the next event on each side."""
    for name in COMPARED:
        of_metric = [history for history in histories if history.figure.name == name]
        groups = _groups([history.labels for history in of_metric])
        logs = [history.logs() for history in of_metric]
        for at, different in times:
            begin = max((border for border in borders if border < at), default=-math.inf)
            end = min((border for border in borders if border > at), default=math.inf)
            for shift in _shifts(*_sides(of_metric, logs, (begin, at, end)), groups):
                yield at, different, name, shift


def _with_errors(found: Sequence[_Found]) -> list[NodeEffect]:
    """Return shifts with the error of typical times.

    The runs around one time show it too little: a busy week or another load among them makes it
    several times as large, which hides a loss at that site.
    """
    variances: dict[tuple[str, Group], list[float]] = {}
    for _, _, figure, shift in found:
        variances.setdefault((figure, shift.group), []).append(shift.variance)
    typical = {key: statistics.median(seen) for key, seen in variances.items()}
    return [
        NodeEffect(
            time, different, figure, one.group, one.effect,
            max(TINY, math.sqrt(typical[figure, one.group] * one.share)), one.own, one.cases,
        )
        for time, different, figure, one in found
    ]  # fmt: skip


def _groups(labels: Sequence[Mapping[str, str]]) -> dict[Group, Flags]:
    """Return each group of one label, or of two with a `PAIRED` one -> its cases; first: all."""
    groups: dict[Group, list[int]] = {(): [*range(len(labels))]}
    for place, own in enumerate(labels):
        pairs = sorted(own.items())
        for pair in pairs:
            groups.setdefault((pair,), []).append(place)
        for one, other in itertools.combinations(pairs, 2):
            if one[0] in PAIRED or other[0] in PAIRED:
                groups.setdefault((one, other), []).append(place)
    places = np.arange(len(labels))
    return {
        group: np.isin(places, members)
        for group, members in groups.items()
        if len(members) >= LEAST_MEMBERS
    }


def _sides(
    histories: Sequence[CaseHistory], logs: Sequence[Matrix], times: tuple[float, float, float]
) -> tuple[Matrix, Matrix]:
    """Return [cases, WINDOW] runs before and after a time, relative to the level before.

    Runs stand next to that time. NaN: no run; all of a case, if it has too few on a side.
    """
    before = np.full((len(logs), WINDOW), np.nan)
    after = before.copy()
    for place, (history, values) in enumerate(zip(histories, logs, strict=True)):
        begin, at, end = map(history.split, times)
        begin, end = max(begin, at - WINDOW), min(end, at + WINDOW)
        if at - begin >= LEAST_BASELINE and end - at >= LEAST_AFTER:
            before[place, WINDOW - (at - begin) :] = values[begin:at]
            after[place, : end - at] = values[at:end]
    able = ~np.isnan(before[:, -1])
    before[able], middle = _clipped(before[able])
    after[able] = _clipped(after[able])[0]
    return before - _column(middle, able), after - _column(middle, able)


def _column(middle: Matrix, able: Flags) -> Matrix:
    column = np.full((len(able), 1), np.nan)
    column[able, 0] = middle
    return column


def _clipped(side: Matrix) -> tuple[Matrix, Matrix]:
    """Return runs with outliers moved to the border of the usual noise, and their medians."""
    middle = _medians(side)
    reach = FARTHEST * MAD_TO_SIGMA * _medians(np.abs(side - middle[:, None]))
    reach = np.where(reach > 0, reach, np.inf)[:, None]
    return np.clip(side, middle[:, None] - reach, middle[:, None] + reach), middle


def _medians(table: Matrix) -> Matrix:
    """Return the median of each row without its NaN; each has a number."""
    ordered, counts = np.sort(table, axis=1), np.sum(~np.isnan(table), axis=1)
    rows = np.arange(len(table))
    medians: Matrix = (ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) / 2
    return medians


def _shifts(before: Matrix, after: Matrix, groups: Mapping[Group, Flags]) -> Iterator[_Shift]:
    """Yield the shift of each group.

    What the cases share counts once: a group is the mean of its cases, run by run. Its shift is
    relative to the other cases, if there are enough: noise of the host is in both.
    """
    able = ~np.isnan(before[:, -1])
    if not groups or np.sum(able) < LEAST_MEMBERS:
        return
    inside = np.array([members[able] for members in groups.values()], dtype=float)
    cases = inside.sum(axis=1)
    alone = (np.sum(able) - cases < LEAST_MEMBERS)[:, None]
    own, rest = zip(*(_means(inside, side[able]) for side in (before, after)), strict=True)
    compared = [np.where(alone, one, one - other) for one, other in zip(own, rest, strict=True)]
    numbers = zip(*_difference(*compared), _level(own[1]) - _level(own[0]), strict=True)
    for group, count, (effect, variance, share, moved) in zip(groups, cases, numbers, strict=True):
        if count >= LEAST_MEMBERS and share > 0:
            yield _Shift(
                group, float(effect), float(variance), float(share), float(moved), int(count)
            )


def _means(inside: Matrix, side: Matrix) -> tuple[Matrix, Matrix]:
    """Return [groups, WINDOW] the means of the cases in each group, and of the others.

    Args:
        inside: [groups, cases] 1: in the group.
        side: [cases, WINDOW], NaN: no run.
    """
    measured = ~np.isnan(side)
    values = np.where(measured, side, 0.0)
    sums, counts = inside @ values, inside @ measured.astype(float)
    rest, others = values.sum(axis=0) - sums, measured.sum(axis=0) - counts
    means = (
        np.where(count > 0, total / np.maximum(count, 1), np.nan)
        for total, count in ((sums, counts), (rest, others))
    )
    own, other = means
    return own, other


def _difference(*sides: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return the shift of each row, the variance of a run and its share in that of the shift.

    As in `difference`, autocorrelation widens the variance. Both sides are clipped already, so that
    means do. The share is 0 where runs are too few.
    """
    counts = [np.sum(~np.isnan(side), axis=1) for side in sides]
    rests = [np.nan_to_num(side - _level(side)[:, None]) for side in sides]
    power = sum((np.sum(rest**2, axis=1) for rest in rests), np.zeros(len(sides[0])))
    products = sum((np.sum(rest[:, 1:] * rest[:, :-1], axis=1) for rest in rests), 0 * power)
    total = np.maximum(counts[0] + counts[1], 3)
    variance = widening(power, products, total) * power / (total - 2)
    enough = (counts[0] >= LEAST_BASELINE) & (counts[1] >= LEAST_AFTER)
    share = np.where(enough, sum(1 / np.maximum(count, 1) for count in counts), 0.0)
    return _level(sides[1]) - _level(sides[0]), variance, share


def _level(side: Matrix) -> Matrix:
    """Return the mean of each row without its NaN."""
    level: Matrix = np.nansum(side, axis=1) / np.maximum(np.sum(~np.isnan(side), axis=1), 1)
    return level
