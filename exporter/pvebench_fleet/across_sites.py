"""Effects of upgrades across the sites of a fleet. Only the hub of a fleet uses it.

Each node gives the effect of each of its upgrades on each group of cases, and the same numbers at
times without an upgrade. Sites are independent, nodes of a site are not: a site has one effect.

An upgrade is blamed if at least two sites, and a quarter of those that passed it, moved the same
way: by the partial conjunction of their p-values with Fisher's statistic (Benjamini and Heller,
Biometrics 64, 2008), adjusted for all upgrades and groups. A site's noise is that of its times
without an upgrade. What most sites without an upgrade at that time show is subtracted: also those
that passed it earlier or will pass it later. An effect counts beyond the standard error of that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pvebench.analysis.arrays import np
from pvebench.analysis.case_history import Group
from pvebench.analysis.change import FactDifference
from pvebench.analysis.difference import critical, two_sided
from pvebench.analysis.group_effects import adjusted
from pvebench.analysis.levels import MAD_TO_SIGMA
from pvebench.model.figure import VerdictFigure
from pvebench.model.run_metrics import JUDGED
from pvebench_fleet.node_effects import EVERY_SECONDS, NodeEffect

NORMAL: Final = 1.96
LEAST_SITES: Final = 3
"""Minimum sites that passed an upgrade, and that are compared with them."""
COMPARED_SHARE: Final = 1 / 3
"""Minimum sites that are compared, as a share of those that passed the upgrade."""
DOUBT: Final = 1.0
"""Standard errors of what is usual that an effect must exceed: they move all sites at once."""
BLAMED_SHARE: Final = 0.25
LEAST_BLAMED: Final = 2
BLAMED: Final = 0.01
"""Largest q-value of a blamed upgrade."""
DEGREES: Final = 6.0
"""Degrees of freedom of a site's noise: times a week apart share most of their runs."""
LEAST_QUIET: Final = 8
"""Minimum times without an upgrade that show whether errors of a site are larger."""
LEAST_P: Final = 1e-12
"""Smallest p-value of a site: more certainty would be that of a formula."""
SAME: Final = 0.5
"""Minimum own shift of a group, as a share of the one relative to the other cases."""


@dataclass(frozen=True, slots=True)
class SiteEffect:
    """Shift of a site behind an upgrade, less what other sites show; logarithms.

    Attributes:
        noise: standard error of the site's own shift.
        doubt: standard error of what other sites show; it moves all sites at once.
    """

    site: str
    time: float
    effect: float
    noise: float
    doubt: float
    own: float

    @property
    def error(self) -> float:
        """Standard error of the effect."""
        return math.hypot(self.noise, self.doubt)

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

    difference: FactDifference
    figure: VerdictFigure
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
    also: tuple[FactDifference, ...] = field(default=())

    @property
    def worse(self) -> bool:
        """Whether the sites that moved got worse."""
        return sum(site.high < 0 for site in self.sites) >= sum(site.low > 0 for site in self.sites)

    @property
    def moved(self) -> tuple[SiteEffect, ...]:
        """The sites whose interval excludes zero, in the direction of the effect."""
        return tuple(site for site in self.sites if (site.high < 0 if self.worse else site.low > 0))

    @property
    def moves_itself(self) -> bool:
        """Whether the group moved, not only the cases that it is compared with."""
        relative = statistics.fmean(effect.effect for effect in self.moved)
        return statistics.fmean(effect.own for effect in self.moved) / relative > SAME


def fleet_effects(effects: Mapping[str, Sequence[Sequence[NodeEffect]]]) -> list[FleetEffect]:
    """Return the upgrades that are blamed, the most certain first; of each only one group.

    Args:
        effects: site -> effects of each of its nodes.
    """
    passed: dict[tuple[FactDifference, str, Group], dict[str, NodeEffect]] = {}
    quiet: dict[tuple[str, Group], dict[str, dict[float, NodeEffect]]] = {}
    for site, nodes in effects.items():
        for (time, different, figure, group), point in _of_site(nodes).items():
            for difference in different:
                passed.setdefault((difference, figure, group), {}).setdefault(site, point)
            if not different:
                quiet.setdefault((figure, group), {}).setdefault(site, {})[time] = point
    usual = {key: _usual(sites) for key, sites in quiet.items()}
    tested = [
        _across(*key, sites, quiet.get(key[1:], {}), usual.get(key[1:], {}))
        for key, sites in passed.items()
        if len(sites) >= LEAST_SITES
    ]
    return _blamed(tested)


def _of_site(
    nodes: Sequence[Sequence[NodeEffect]],
) -> dict[tuple[float, tuple[FactDifference, ...], str, Group], NodeEffect]:
    """Return the effects of a site; nodes that passed the same upgrade count once."""
    grouped: dict[tuple[tuple[FactDifference, ...] | float, str, Group], list[NodeEffect]] = {}
    for node in nodes:
        for effect in node:
            key = effect.differences or effect.time, effect.figure, effect.group
            grouped.setdefault(key, []).append(effect)
    merged = [_merged(effects) for effects in grouped.values()]
    return {(m.time, m.differences, m.figure, m.group): m for m in merged}


def _merged(effects: Sequence[NodeEffect]) -> NodeEffect:
    """Return the mean effect of nodes that passed the same upgrade, with its first time."""
    return replace(
        effects[0],
        time=min(effect.time for effect in effects),
        effect=sum(effect.effect for effect in effects) / len(effects),
        error=math.sqrt(sum(effect.error**2 for effect in effects) / len(effects)),
        own=sum(effect.own for effect in effects) / len(effects),
    )


def _across(
    different: FactDifference,
    figure: str,
    group: Group,
    sites: Mapping[str, NodeEffect],
    quiet: Mapping[str, Mapping[float, NodeEffect]],
    usual: Mapping[float, _Usual],
) -> FleetEffect:
    # Fewer would lend their own noise to all that passed it.
    least = max(LEAST_SITES, COMPARED_SHARE * len(sites))
    usual = {time: one for time, one in usual.items() if one.sites >= least}
    usuals: list[_Usual] = []
    points: list[SiteEffect] = []
    for site, point in sorted(sites.items()):
        usuals.append(_usual_at(usual, point.time))
        scores = [
            abs(one.effect - usual.get(time, _NOTHING_USUAL).shift) / one.error
            for time, one in quiet.get(site, {}).items()
        ]
        points.append(_site_effect(site, point, usuals[-1], scores))
    p_value = min(1.0, 2 * min(_conjunction(_chances(points, sign)) for sign in (-1, 1)))
    mean, reach, between = _random_effects(points)
    return FleetEffect(
        difference=different,
        figure=JUDGED[figure],
        group=group,
        sites=tuple(points),
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        between=between,
        others=min(one.sites for one in usuals),
        shift=statistics.fmean(one.shift for one in usuals),
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


def _usual(quiet: Mapping[str, Mapping[float, NodeEffect]]) -> dict[float, _Usual]:
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


def _usual_at(usual: Mapping[float, _Usual], time: float) -> _Usual:
    """Return what is usual at a time, between those of the grid: a busy week moves on by days."""
    first = math.floor(time / EVERY_SECONDS) * EVERY_SECONDS
    ends = [usual[at] for at in (first, first + EVERY_SECONDS) if at in usual]
    if len(ends) < 2:
        return usual.get(round(time / EVERY_SECONDS) * EVERY_SECONDS, _NOTHING_USUAL)
    later = (time - first) / EVERY_SECONDS
    shift, variance = (
        (1 - later) * begin + later * end
        for begin, end in zip(*((one.shift, one.variance) for one in ends), strict=True)
    )
    return _Usual(min(one.sites for one in ends), shift, variance)


def _site_effect(
    site: str, point: NodeEffect, usual: _Usual, scores: Sequence[float]
) -> SiteEffect:
    """Return the effect of a site; `scores` of its quiet times show how large errors are."""
    few = len(scores) < LEAST_QUIET
    scale = 1.0 if few else max(1.0, MAD_TO_SIGMA * statistics.median(scores))
    return SiteEffect(
        site,
        point.time,
        point.effect - usual.shift,
        scale * point.error,
        math.sqrt(usual.variance),
        point.own,
    )


def _chances(points: Sequence[SiteEffect], sign: int) -> list[float]:
    """Return the p-value of each site that it moved; `sign`: 1 to the better, -1 to the worse."""
    scores = np.array(
        [(sign * point.effect - DOUBT * point.doubt) / point.noise for point in points]
    )
    halves = two_sided(scores, DEGREES) / 2
    return [
        float(half) if score > 0 else 1 - float(half)
        for half, score in zip(halves, scores, strict=True)
    ]


def _conjunction(p_values: Sequence[float]) -> float:
    """Return the p-value of "at least two sites moved": without the most certain one.

    The smaller of Fisher's, for all sites a little, and of the share that is blamed, for a few.
    """
    rest = sorted(max(p_value, LEAST_P) for p_value in p_values)[LEAST_BLAMED - 1 :]
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
    effects = np.array([point.effect for point in points])
    variances = np.array([point.error**2 for point in points])
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
    q_values = adjusted(np.array([fleet_effect.p_value for fleet_effect in tested]))
    certain = [
        replace(fleet_effect, q_value=float(q_value))
        for fleet_effect, q_value in zip(tested, q_values, strict=True)
        if q_value <= BLAMED
        and len(fleet_effect.moved) >= max(LEAST_BLAMED, BLAMED_SHARE * len(fleet_effect.sites))
        and fleet_effect.moves_itself
    ]
    certain.sort(
        key=lambda fleet_effect: (
            fleet_effect.p_value,
            -len(fleet_effect.moved),
            len(fleet_effect.group),
        )
    )
    effects: list[FleetEffect] = []
    for effect in certain:
        place = next(
            (at for at, other_effect in enumerate(effects) if _overlaps(effect, other_effect)), None
        )
        if place is None:
            effects.append(effect)
        elif _passed(effect) == _passed(effects[place]):
            differences = {effects[place].difference, *effects[place].also}
            more = () if effect.difference in differences else (effect.difference,)
            effects[place] = replace(effects[place], also=(*effects[place].also, *more))
    return effects


def _passed(effect: FleetEffect) -> set[tuple[str, float]]:
    return {(site.site, site.time) for site in effect.sites}


def _overlaps(effect: FleetEffect, other: FleetEffect) -> bool:
    return bool(_passed(effect) & _passed(other))
