"""Effects of upgrades across the sites of a fleet. Only the hub of a fleet uses it.

Each node gives the effect of each of its upgrades on each group of cases, and the same numbers at
times without an upgrade. Sites are independent, nodes of a site are not: a site has one effect.

An upgrade is blamed if at least two sites, and a quarter of those that passed it, moved the same
way: by the partial conjunction of their p-values with Fisher's statistic (Benjamini and Heller,
Biometrics 64, 2008), adjusted for all upgrades and groups. A site's noise is that of its times
without an upgrade. What most sites without an upgrade in that week show is subtracted: also those
that passed it earlier or will pass it later.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, np
from pvebench.analysis.case_history import (
    FIGURES,
    LEAST_BASELINE,
    LEAST_MEMBERS,
    CaseHistory,
    Figure,
    Group,
)
from pvebench.analysis.change import Difference
from pvebench.analysis.difference import critical, difference, two_sided
from pvebench.analysis.events import Event
from pvebench.analysis.group_effects import adjusted
from pvebench.analysis.levels import MAD_TO_SIGMA, TINY

# --- Effects at one node.

COMPARED: Final = ("throughput", "cpu_cost")
"""Metrics that are compared across sites; the others follow them, or are too rare."""
PAIRED: Final = ("storage", "rw")
"""Labels that make a group together with another label."""
WINDOW: Final = 20
"""Maximum runs of a case on each side."""
LEAST_AFTER: Final = 3
EVERY_SECONDS: Final = 7 * 86400.0
"""Interval of the times without an upgrade, whose grid all sites share."""
LONGEST_SECONDS: Final = 200 * 86400.0
"""Age of the oldest effects, by the newest run."""
NORMAL: Final = 1.96
FARTHEST: Final = 3.0
"""Distance of an outlier from the level of a case, in standard deviations."""


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """Shift of a group of cases of a node at a time; logarithms, positive is better.

    Attributes:
        time: of the event, or of the grid; UNIX seconds.
        differences: of the event; empty: there was none.
        effect: of a group relative to the other cases.
        error: half of the 95% confidence interval of the effect, as a standard error.
        own: shift of the group itself.
    """

    time: float
    differences: tuple[Difference, ...]
    figure: str
    group: Group
    effect: float
    error: float
    own: float
    cases: int


def node_effects(histories: Sequence[CaseHistory], events: Sequence[Event]) -> list[NodeEffect]:
    """Return the effects of a node's events, and those of the grid between them."""
    newest = max((history.times()[-1] for history in histories if history.points), default=0.0)
    first = newest - LONGEST_SECONDS
    known = [(event.time, event.differences) for event in events if event.time > first]
    borders = [event.time for event in events]
    grid = np.arange(math.ceil(first / EVERY_SECONDS), newest // EVERY_SECONDS) * EVERY_SECONDS
    known += [(float(at), ()) for at in grid]
    found: list[NodeEffect] = []
    for name in COMPARED:
        own = [history for history in histories if history.figure.name == name]
        groups = _groups([history.labels for history in own])
        logs = [history.logs() for history in own]
        for at, different in known:
            begin = max((border for border in borders if border < at), default=-math.inf)
            end = min((border for border in borders if border > at), default=math.inf)
            rows = [_around(*one, (begin, at, end)) for one in zip(own, logs, strict=True)]
            found += _effects(rows, groups, at, different, name)
    return found


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


def _around(
    history: CaseHistory, logs: Matrix, times: tuple[float, float, float]
) -> tuple[Matrix, Matrix] | None:
    """Return the runs of a case before and after a time, relative to its level before."""
    begin, at, end = map(history.split, times)
    before, after = logs[max(begin, at - WINDOW) : at], logs[at : min(end, at + WINDOW)]
    if len(before) < LEAST_BASELINE or len(after) < LEAST_AFTER:
        return None
    level = np.median(before)
    return _clipped(before - level), _clipped(after - level)


def _clipped(side: Matrix) -> Matrix:
    """Return runs with outliers moved to the border of the usual noise."""
    middle = np.median(side)
    reach = FARTHEST * MAD_TO_SIGMA * np.median(np.abs(side - middle))
    clipped: Matrix = np.clip(side, middle - reach, middle + reach) if reach > 0 else side
    return clipped


def _effects(
    rows: Sequence[tuple[Matrix, Matrix] | None],
    groups: Mapping[Group, Flags],
    at: float,
    different: tuple[Difference, ...],
    figure: str,
) -> Iterator[NodeEffect]:
    """Yield the shift of each group: of the mean of its cases, run by run.

    What the cases share counts once. The shift is relative to the other cases, if there are enough:
    noise of the host is in both.
    """
    able = [place for place, row in enumerate(rows) if row is not None]
    if len(able) < LEAST_MEMBERS:
        return
    inside = np.array([members[able] for members in groups.values()], dtype=float)
    table = [row for row in rows if row is not None]
    sides = [_means(inside, side) for side in (_before(table), _after(table))]
    cases = inside.sum(axis=1)
    for place, group in enumerate(groups):
        if cases[place] < LEAST_MEMBERS:
            continue
        own, rest = ([side[number][place] for side in sides] for number in (0, 1))
        compared = own
        if len(able) - cases[place] >= LEAST_MEMBERS:
            compared = [one - other for one, other in zip(own, rest, strict=True)]
        before, after = (side[~np.isnan(side)] for side in compared)
        if len(before) < LEAST_BASELINE or len(after) < LEAST_AFTER:
            continue
        shift = difference(before, after)
        error = max(TINY, (shift.high - shift.low) / 2 / NORMAL)
        moved = float(np.nanmean(own[1]) - np.nanmean(own[0]))
        count = int(cases[place])
        yield NodeEffect(at, different, figure, group, shift.effect, error, moved, count)


def _before(rows: Sequence[tuple[Matrix, Matrix]]) -> Matrix:
    """Return [cases, WINDOW] runs before a time, aligned at it; NaN: no run."""
    table = np.full((len(rows), WINDOW), np.nan)
    for place, (before, _) in enumerate(rows):
        table[place, WINDOW - len(before) :] = before
    return table


def _after(rows: Sequence[tuple[Matrix, Matrix]]) -> Matrix:
    """Return the same of the runs after it."""
    table = np.full((len(rows), WINDOW), np.nan)
    for place, (_, after) in enumerate(rows):
        table[place, : len(after)] = after
    return table


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


# --- The sites together.

LEAST_SITES: Final = 3
"""Minimum sites that passed an upgrade, and that are compared with them."""
COMPARED_SHARE: Final = 1 / 3
"""Minimum sites that are compared, as a share of those that passed the upgrade."""
DOUBT: Final = 0.5
"""Standard errors of what is usual that an effect must exceed."""
BLAMED_SHARE: Final = 0.25
LEAST_BLAMED: Final = 2
BLAMED: Final = 0.01
"""Largest q-value of a blamed upgrade."""
FEW_DEGREES: Final = 10.0
"""Degrees of freedom of a site with few times without an upgrade."""
LEAST_QUIET: Final = 8
LEAST_P: Final = 1e-12
"""Smallest p-value of a site: more certainty would be that of a formula."""
SAME: Final = 0.5
"""Minimum own shift of a group, as a share of the one relative to the other cases."""


@dataclass(frozen=True, slots=True)
class SiteEffect:
    """Shift of a site behind an upgrade, less what other sites show; logarithms."""

    site: str
    time: float
    effect: float
    error: float
    own: float
    p_worse: float
    p_better: float

    @property
    def low(self) -> float:
        """Lower end of the 95% confidence interval."""
        return self.effect - NORMAL * self.error

    @property
    def high(self) -> float:
        """Upper end of it."""
        return self.effect + NORMAL * self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEffect:
    """Effect of an upgrade on a group of cases at all sites that passed it; logarithms.

    Attributes:
        mean, low, high: random-effects mean over the sites, and its 95% confidence interval.
        between: standard deviation between the sites, without their noise.
        others: number of sites without an upgrade in that week; `shift`: what most of them show.
        also: differences that the same sites passed at the same times.
    """

    difference: Difference
    figure: Figure
    group: Group
    sites: tuple[SiteEffect, ...]
    mean: float
    low: float
    high: float
    between: float
    others: int
    shift: float
    p_value: float
    q_value: float = 1.0
    also: tuple[Difference, ...] = field(default=())

    @property
    def worse(self) -> bool:
        """Whether the sites that moved got worse."""
        return sum(one.high < 0 for one in self.sites) >= sum(one.low > 0 for one in self.sites)

    @property
    def moved(self) -> tuple[SiteEffect, ...]:
        """The sites whose interval excludes zero, in the direction of the effect."""
        return tuple(one for one in self.sites if (one.high < 0 if self.worse else one.low > 0))

    @property
    def moves_itself(self) -> bool:
        """Whether the group moved, not only the cases that it is compared with."""
        relative = statistics.fmean(one.effect for one in self.moved)
        return statistics.fmean(one.own for one in self.moved) / relative > SAME


@dataclass(frozen=True, slots=True)
class _Point:
    time: float
    effect: float
    error: float
    own: float


def fleet_effects(effects: Mapping[str, Sequence[Sequence[NodeEffect]]]) -> list[FleetEffect]:
    """Return the upgrades that are blamed, the most certain first; of each only one group.

    Args:
        effects: site -> effects of each of its nodes.
    """
    passed: dict[tuple[Difference, str, Group], dict[str, _Point]] = {}
    quiet: dict[tuple[str, Group], dict[str, dict[float, _Point]]] = {}
    for site, nodes in effects.items():
        for (time, different, figure, group), point in _of_site(nodes).items():
            for one in different:
                passed.setdefault((one, figure, group), {}).setdefault(site, point)
            if not different:
                quiet.setdefault((figure, group), {}).setdefault(site, {})[time] = point
    tested = [
        _across(*key, sites, quiet.get(key[1:], {}))
        for key, sites in passed.items()
        if len(sites) >= LEAST_SITES
    ]
    return _blamed(tested)


def _of_site(
    nodes: Sequence[Sequence[NodeEffect]],
) -> dict[tuple[float, tuple[Difference, ...], str, Group], _Point]:
    """Return the effects of a site; nodes that passed the same upgrade count once."""
    grouped: dict[tuple[tuple[Difference, ...] | float, str, Group], list[NodeEffect]] = {}
    for node in nodes:
        for one in node:
            key = one.differences or one.time, one.figure, one.group
            grouped.setdefault(key, []).append(one)
    return {
        (min(one.time for one in found), found[0].differences, *key[1:]): _Point(
            min(one.time for one in found),
            statistics.fmean(one.effect for one in found),
            math.sqrt(statistics.fmean(one.error**2 for one in found)),
            statistics.fmean(one.own for one in found),
        )
        for key, found in grouped.items()
    }


def _across(
    different: Difference,
    figure: str,
    group: Group,
    sites: Mapping[str, _Point],
    quiet: Mapping[str, Mapping[float, _Point]],
) -> FleetEffect:
    # Fewer would lend their own noise to all that passed it.
    least = max(LEAST_SITES, COMPARED_SHARE * len(sites))
    usual = {time: one for time, one in _usual(quiet).items() if one.sites >= least}
    found: list[_Usual] = []
    points: list[SiteEffect] = []
    for site, point in sorted(sites.items()):
        at = round(point.time / EVERY_SECONDS) * EVERY_SECONDS
        found.append(usual.get(at, _NOTHING_USUAL))
        scores = [
            abs(one.effect - usual.get(time, _NOTHING_USUAL).shift) / one.error
            for time, one in quiet.get(site, {}).items()
        ]
        points.append(_site_effect(site, point, found[-1], scores))
    chances = ([one.p_worse for one in points], [one.p_better for one in points])
    p_value = min(1.0, 2 * min(map(_conjunction, chances)))
    mean, reach, between = _random_effects(points)
    return FleetEffect(
        difference=different,
        figure=FIGURES[figure],
        group=group,
        sites=tuple(points),
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        between=between,
        others=min(one.sites for one in found),
        shift=statistics.fmean(one.shift for one in found),
        p_value=p_value,
    )


@dataclass(frozen=True, slots=True)
class _Usual:
    """What most sites without an upgrade show at a time, such as a busy week.

    The median: in that week, the load of one of them may change for good.
    """

    sites: int
    shift: float
    variance: float


_NOTHING_USUAL: Final = _Usual(0, 0.0, 0.0)


def _usual(quiet: Mapping[str, Mapping[float, _Point]]) -> dict[float, _Usual]:
    at: dict[float, list[float]] = {}
    for points in quiet.values():
        for time, point in points.items():
            at.setdefault(time, []).append(point.effect)
    return {time: _usual_of(found) for time, found in at.items() if len(found) >= LEAST_SITES}


def _usual_of(found: Sequence[float]) -> _Usual:
    shift = statistics.median(found)
    spread = MAD_TO_SIGMA * statistics.median(abs(one - shift) for one in found)
    # The variance of a median is pi / 2 times that of a mean.
    return _Usual(len(found), shift, math.pi / 2 * spread**2 / len(found))


def _site_effect(site: str, point: _Point, usual: _Usual, scores: Sequence[float]) -> SiteEffect:
    """Return the effect of a site; `scores` of its quiet times show how large errors are."""
    few = len(scores) < LEAST_QUIET
    scale = 1.0 if few else max(1.0, MAD_TO_SIGMA * statistics.median(scores))
    own = scale * point.error
    effect = point.effect - usual.shift
    degrees = FEW_DEGREES if few else float(len(scores))
    # An error of what is usual moves all sites at once, so it counts against each.
    doubt = DOUBT * math.sqrt(usual.variance)
    worse, better = (_tail(sign * effect - doubt, own, degrees) for sign in (-1, 1))
    error = math.hypot(own, math.sqrt(usual.variance))
    return SiteEffect(site, point.time, effect, error, point.own, worse, better)


def _tail(effect: float, error: float, degrees: float) -> float:
    """Return the p-value of an effect above zero."""
    half = float(two_sided(effect / error, degrees)) / 2
    return half if effect > 0 else 1 - half


def _conjunction(p_values: Sequence[float]) -> float:
    """Return the p-value of "at least two sites moved": without the most certain one.

    The smaller of Fisher's, for all sites a little, and of the share that is blamed, for a few.
    """
    rest = sorted(max(one, LEAST_P) for one in p_values)[LEAST_BLAMED - 1 :]
    half = -sum(math.log(one) for one in rest)
    # The chi-squared distribution with an even number of degrees of freedom.
    terms = (half**place / math.factorial(place) for place in range(len(rest)))
    few = max(1, math.ceil(BLAMED_SHARE * len(p_values)) - 1)
    below, count = rest[few - 1], len(rest)
    ranked = sum(
        math.comb(count, hits) * below**hits * (1 - below) ** (count - hits)
        for hits in range(few, count + 1)
    )
    return 2 * min(math.exp(-half) * sum(terms), ranked)


def _random_effects(points: Sequence[SiteEffect]) -> tuple[float, float, float]:
    """Return mean, reach of its interval, and spread between sites.

    DerSimonian and Laird (1986) with the interval of Hartung and Knapp (2001).
    """
    effects = np.array([one.effect for one in points])
    variances = np.array([one.error**2 for one in points])
    weights = 1 / variances
    middle = float(np.sum(weights * effects) / np.sum(weights))
    excess = float(np.sum(weights * (effects - middle) ** 2)) - (len(points) - 1)
    scale = float(np.sum(weights) - np.sum(weights**2) / np.sum(weights))
    between = max(0.0, excess / scale)
    weights = 1 / (variances + between)
    mean = float(np.sum(weights * effects) / np.sum(weights))
    degrees = len(points) - 1
    squares = float(np.sum(weights * (effects - mean) ** 2)) / degrees
    # Never narrower than the errors of the sites allow.
    error = math.sqrt(max(1.0, squares) / float(np.sum(weights)))
    return mean, critical(0.05, degrees) * error, math.sqrt(between)


def _blamed(tested: Sequence[FleetEffect]) -> list[FleetEffect]:
    if not tested:
        return []
    q_values = adjusted(np.array([one.p_value for one in tested]))
    certain = [
        replace(one, q_value=float(q_value))
        for one, q_value in zip(tested, q_values, strict=True)
        if q_value <= BLAMED
        and len(one.moved) >= max(LEAST_BLAMED, BLAMED_SHARE * len(one.sites))
        and one.moves_itself
    ]
    certain.sort(key=lambda one: (one.p_value, -len(one.moved), len(one.group)))
    found: list[FleetEffect] = []
    for one in certain:
        place = next((at for at, other in enumerate(found) if _overlaps(one, other)), None)
        if place is None:
            found.append(one)
        elif _passed(one) == _passed(found[place]):
            known = {found[place].difference, *found[place].also}
            more = () if one.difference in known else (one.difference,)
            found[place] = replace(found[place], also=(*found[place].also, *more))
    return found


def _passed(one: FleetEffect) -> set[tuple[str, float]]:
    return {(site.site, site.time) for site in one.sites}


def _overlaps(one: FleetEffect, other: FleetEffect) -> bool:
    return bool(_passed(one) & _passed(other))
