"""All cases of an event together: what a group shares, what is the host's noise, what is left.

A change in one package seldom hits one case. Pooling over the cases that share a bus, a cache
mode … finds a few per cent after one round. What all cases share at once is either the host
being busy or a change that hits everything, and only its own placebos can tell which.

A group against the other cases is a contrast: a difference at the same moment, blind to what the
host does to all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, np
from pvebench.analysis.case_history import LEAST_MEMBERS, LEAST_MOVED, Group, groups_of
from pvebench.analysis.difference import critical, two_sided
from pvebench.analysis.levels import LEAST, TINY, agreed, references, shifts, spread

# --- Known time: the shift after a change, judged against placebo changes.
#
# The same statistic is taken at every earlier place of the same history, where nothing is known to
# have changed. Whatever makes it large there by itself (drift, autocorrelation, modes, tails) is so
# paid for by the history, not by an assumption about it.

WINDOW: Final = 40
"""Runs before a place that make its level."""
PRIOR: Final = 8.0
"""How many independent placebos the scale of the next smaller block is worth."""
BLOCKS: Final = (1, 2, 3, 5, 8, 13, 20)
FEW: Final = 20
"""Runs before a change below which there are no placebos to speak of."""
ALIKE: Final = 4.0
"""How many runs of its own a case's noise is worth that is typical of the fleet."""
FLEET: Final = 6
"""Cases that make a fleet."""
OWN: Final = 1.5
"""A shift is new only if it is so many times the largest that the history has made by itself."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of each case's shift at one place; logarithms, plus for better.

    Attributes:
        shift, guarded: [cases] the shift, and its guarded form that one glitch cannot fake.
        scale, guarded_scale: [cases] their scales from the placebos.
        placebos, guarded_placebos: [cases, places] the same at the earlier places.
        degrees: degrees of freedom of the scales.
        runs: runs after the change.
        level, noise: [cases] level before it and scale from run to run.
    """

    shift: Matrix
    guarded: Matrix
    scale: Matrix
    guarded_scale: Matrix
    placebos: Matrix
    guarded_placebos: Matrix
    degrees: float
    runs: int
    level: Matrix
    noise: Matrix


def known_shifts(before: Matrix, after: Matrix, counts: Matrix | None = None) -> Known:
    """Return the shift of `after` against `before`, with the placebos' judgement of it.

    Args:
        before: [cases, runs], at least two.
        after: [cases, runs after].
        counts: [cases] how many of `after` are real; fewer widen that case's scale.
    """
    if before.shape[1] < FEW:
        return _by_few(before, after, counts)
    level, noise = references(before, window=min(WINDOW, before.shape[1]), least=LEAST)
    # A block as long as half the history would leave no placebos to speak of.
    block = min(after.shape[1], max(1, (before.shape[1] - LEAST) // 2))
    mean, guard, scales = _placebos(before, level, noise, block)
    shift, guarded = shifts(after[:, -block:], level[:, -1:], noise[:, -1:], block=block)
    wider = np.ones(len(before)) if counts is None else np.sqrt(block / np.minimum(counts, block))
    return Known(
        shift=shift[:, 0],
        guarded=agreed(shift, guarded)[:, 0],
        scale=scales[0] * wider,
        guarded_scale=scales[1] * wider,
        placebos=mean,
        guarded_placebos=guard,
        degrees=mean.shape[1] / block + 2,
        runs=after.shape[1],
        level=level[:, -1],
        noise=noise[:, -1],
    )


def _by_few(before: Matrix, after: Matrix, counts: Matrix | None) -> Known:
    """Return the shift where the history is too short for placebos: by its noise alone.

    A case's noise leans on what is typical of the fleet; the interval is as wide as so few
    runs make it. Each run before stands for a placebo of what the whole host shares.
    """
    cases, runs = before.shape
    level, _ = references(before, window=runs, least=runs)
    rest = before - level[:, -1:]
    variance = (rest**2).sum(axis=1) / (runs - 1)
    degrees = runs - 1.0
    if cases >= FLEET:
        typical = float(np.median(variance))
        variance = (degrees * variance + ALIKE * typical) / (degrees + ALIKE)
        degrees += ALIKE
    noise = np.sqrt(np.maximum(variance, TINY**2))
    block = min(after.shape[1], BLOCKS[-1])
    shift, guarded = shifts(after[:, -block:], level[:, -1:], noise[:, None], block=block)
    wider = np.ones(cases) if counts is None else np.sqrt(block / np.minimum(counts, block))
    root = float(np.sqrt(1 / block + 1 / runs))
    placebos = rest * root * math.sqrt(runs / (runs - 1))
    return Known(
        shift=shift[:, 0],
        guarded=agreed(shift, guarded)[:, 0],
        scale=noise * root * wider,
        guarded_scale=noise * root * wider,
        placebos=placebos,
        guarded_placebos=placebos,
        degrees=degrees,
        runs=after.shape[1],
        level=level[:, -1],
        noise=noise,
    )


def _placebos(
    before: Matrix, level: Matrix, noise: Matrix, block: int
) -> tuple[Matrix, Matrix, tuple[Matrix, Matrix]]:
    """Return shifts and guarded shifts at the earlier places, and the scales of both.

    Long blocks leave few independent placebos. Their scale leans on that of shorter ones,
    of which there are more, and departs from it only as far as the placebos show.
    """
    learnt: list[Matrix] = []
    mean, guard = level[:, :0], level[:, :0]
    root = 1.0
    for size in (*(size for size in BLOCKS if size < block), block):
        mean, guard = (part[:, LEAST:] for part in shifts(before, level, noise, block=size))
        root = float(np.sqrt(1 / size + 1 / WINDOW))
        seen = [(spread(part) / root) ** 2 for part in (mean, guard)]
        weight = mean.shape[1] / size
        old = learnt or seen
        learnt = [
            (PRIOR * prior + weight * new) / (PRIOR + weight)
            for prior, new in zip(old, seen, strict=True)
        ]
    return mean, guard, (root * np.sqrt(learnt[0]), root * np.sqrt(learnt[1]))


GROUP_LEVEL: Final = 0.005
"""False groups an event, all groups together."""
CASE_LEVEL: Final = 0.003
"""False discovery rate of single cases."""
LEAST_RUNS: Final = 3
"""Runs after a change before a single case is confirmed; below it two glitches look like one."""
CLIP: Final = 4.0
"""One case counts in a group as if it had moved by at most so many of its scales."""
BEYOND: Final = 3.0
"""Scales that no case moves by chance, as a rule."""
MOST_GROUPS: Final = 3
MEDIAN: Final = 1.2533
"""Times as wide as a mean that a median of normal noise is."""
COMPLEMENT: Final = 2.3
"""Log of the odds (10:1) that a named group moved, rather than everything but it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShift:
    """A group of cases that moved together; effects are logarithms, plus for better.

    Attributes:
        group: what its members share; empty for all cases.
        all_but: True if the members are those that do not share it.
        members: row numbers.
        effect, low, high: shift against the other cases (of all cases: against before) and its
            95 % interval.
        p_value: adjusted for the number of groups that were looked at.
    """

    group: Group
    all_but: bool
    members: tuple[int, ...]
    effect: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, slots=True)
class FleetShift:
    """What an event did to a fleet.

    Attributes:
        groups: that moved, the clearest first.
        rest: [cases] each case's shift after the groups' effects are taken out.
        p_values: [cases] of that rest, against the host's common shift; 1 where the history
            has made as large a shift by itself.
        q_values: [cases] adjusted for the number of cases.
        common: the host's common shift at the event, logarithm.
    """

    groups: tuple[GroupShift, ...]
    rest: Matrix
    p_values: Matrix
    q_values: Matrix
    common: float


def judge_fleet(
    known: Known, labels: Sequence[Mapping[str, str]], *, strictness: float = 1.0
) -> FleetShift:
    """Return which groups moved at the event, and what each case did beyond that.

    Args:
        known: shifts of all cases, round by round.
        labels: of the same cases.
        strictness: how many such questions are asked of one event, of other figures.
    """
    rest = known.shift.copy()
    level = GROUP_LEVEL / strictness
    found = _contrasts(known, labels, rest, level)
    everything = _everything(known, rest, level)
    if everything is not None:
        found.append(everything)
        rest -= everything.effect
    p_values, common = _single(known, rest)
    return FleetShift(tuple(found), rest, p_values, adjusted(p_values), common)


def _contrasts(
    known: Known, labels: Sequence[Mapping[str, str]], rest: Matrix, level: float
) -> list[GroupShift]:
    """Find groups that moved against the other cases; take their effects out of `rest`.

    Args:
        rest: [cases] shifts; changed in place.
        level: false groups an event that are allowed, all groups together.
    """
    groups = groups_of(labels)
    if not groups:
        return []
    masks = np.array(list(groups.values()), dtype=float)
    sizes = masks.sum(axis=1)
    others = masks.shape[1] - sizes
    weights = masks / sizes[:, None] - (1 - masks) / others[:, None]
    floor = np.sqrt(1 / sizes + 1 / others)
    past = _centred(known.placebos, known)
    placebos = weights @ past
    names = list(groups)
    found: list[GroupShift] = []
    while len(found) < MOST_GROUPS:
        now_of = _centred(rest[:, None], known)[:, 0]
        now = weights @ now_of
        score = now / np.maximum(_pooled_scale(placebos, floor, known), _apart(now_of, masks))
        best = int(np.argmax(np.abs(score)))
        p_value = float(two_sided(score[best], known.degrees + PRIOR)) * len(names)
        if p_value > level:
            break
        shift = _named(_group_shift(known, rest, groups[names[best]], names[best], p_value), groups)
        rest[list(shift.members)] -= shift.effect
        found.append(shift)
    return found


def _centred(shifts: Matrix, known: Known) -> Matrix:
    """Return shifts without what all cases share at a place, in their scales, clipped.

    The share is taken out before scaling: a common shift is the same ratio for quiet and
    noisy cases, and would otherwise look like a change of the quiet ones.
    """
    own = (shifts - np.median(shifts, axis=0)) / known.scale[:, None]
    centred: Matrix = np.clip(own, -CLIP, CLIP)
    return centred


def _apart(shifts: Matrix, masks: Matrix) -> Matrix:
    """Return how far contrasts stray by what sets the cases apart at the event itself, [groups].

    What the host does to all, it does to some more than to others: a load that no placebo has
    seen moves groups apart by chance, and shows as cases that disagree within their group.
    """
    total = np.zeros(len(masks))
    for side in (masks, 1 - masks):
        count = side.sum(axis=1)
        mean = side @ shifts / count
        square = np.maximum(side @ shifts**2 / count - mean**2, 0.0)
        total += square / np.maximum(count - 1, 1)
    apart: Matrix = np.sqrt(total)
    return apart


def _pooled_scale(placebos: Matrix, floor: Matrix, known: Known) -> Matrix:
    """Return the scale of pooled scores, [groups]: never below that of independent cases."""
    ratio = (spread(placebos) / floor) ** 2
    typical = max(float(np.median(ratio)), 1.0)
    ratio = (PRIOR * typical + known.degrees * ratio) / (PRIOR + known.degrees)
    scale: Matrix = floor * np.sqrt(np.maximum(ratio, 1.0))
    return scale


def _group_shift(
    known: Known, rest: Matrix, mask: Flags, group: Group, p_value: float
) -> GroupShift:
    inside, outside = float(np.median(rest[mask])), float(np.median(rest[~mask]))
    # A contrast does not say which side moved. The host's own common shifts do.
    common = float(spread(np.median(known.placebos, axis=0)[None, :])[0])
    all_but = (outside**2 - inside**2) / (2 * common**2) > COMPLEMENT
    sign = -1.0 if all_but else 1.0
    effect = sign * (inside - outside)
    past = np.median(known.placebos[mask], axis=0) - np.median(known.placebos[~mask], axis=0)
    wide = [MEDIAN * float(np.sqrt(np.mean(known.scale[m] ** 2) / m.sum())) for m in (mask, ~mask)]
    scale = max(float(spread(past[None, :])[0]), math.hypot(*wide))
    reach = critical(0.05, known.degrees + PRIOR) * scale
    members = np.flatnonzero(~mask if all_but else mask)
    return GroupShift(
        group=group,
        all_but=all_but,
        members=tuple(int(row) for row in members),
        effect=effect,
        low=effect - reach,
        high=effect + reach,
        p_value=min(p_value, 1.0),
    )


def _named(shift: GroupShift, groups: Mapping[Group, Flags]) -> GroupShift:
    """Return a shift of all but one group as that of another, where there are only two."""
    if not shift.all_but:
        return shift
    for group, mask in groups.items():
        if tuple(mask.nonzero()[0].tolist()) == shift.members:
            return replace(shift, group=group, all_but=False)
    return shift


def _everything(known: Known, rest: Matrix, level: float) -> GroupShift | None:
    """Return the shift of all cases if it is larger than the host's common shifts ever were."""
    cases = len(rest)
    if cases < 2 * LEAST_MEMBERS:
        return None
    # A mean would call a few cases that moved far everything.
    past = np.median(np.clip(known.placebos / known.scale[:, None], -CLIP, CLIP), axis=0)[None, :]
    now = float(np.median(np.clip(rest / known.scale, -CLIP, CLIP)))
    scale = max(float(spread(past)[0]), MEDIAN * math.sqrt(1 / cases))
    p_value = float(two_sided(now / scale, known.degrees + PRIOR))
    if p_value > level:
        return None
    effect = float(np.median(rest))
    if np.mean(_moved_along(rest, known.scale, effect)) < LEAST_MOVED:
        return None
    common = float(spread(np.median(known.placebos, axis=0)[None, :])[0])
    reach = critical(0.05, known.degrees + PRIOR) * common
    return GroupShift(
        group=(),
        all_but=False,
        members=tuple(range(cases)),
        effect=effect,
        low=effect - reach,
        high=effect + reach,
        p_value=p_value,
    )


def _moved_along(rest: Matrix, scale: Matrix, effect: float) -> Flags:
    """Tell which cases moved at least half as far, or the same way beyond their own noise."""
    own = rest * np.sign(effect)
    along: Flags = (own > abs(effect) / 2) | (own > BEYOND * scale)
    return along


def _single(known: Known, rest: Matrix) -> tuple[Matrix, float]:
    """Return each case's p-value against the host's common shift, and that common shift."""
    past = known.guarded_placebos
    now = known.guarded - (known.shift - rest)
    # A guarded shift that the group's effect turns round is no shift of the case's own.
    now = np.where(np.sign(now) == np.sign(rest), now, 0.0)
    common = 0.0
    if len(rest) >= 2 * LEAST_MEMBERS:
        common = float(np.median(rest))
        past = past - np.median(known.placebos, axis=0)
        now = now - common
    past, now = past / known.guarded_scale[:, None], now / known.guarded_scale
    scale = np.maximum(spread(past), 0.8)
    p_values = two_sided(now / scale, known.degrees)
    new = np.abs(now) > OWN * np.max(np.abs(past), axis=1)
    return np.where(new, p_values, 1.0), common


def adjusted(p_values: Matrix) -> Matrix:
    """Return Benjamini and Hochberg's q-values (J. R. Stat. Soc. B 57, 1995)."""
    count = len(p_values)
    order = np.argsort(p_values)[::-1]
    q_values = np.empty(count)
    ranks = np.arange(count, 0, -1)
    q_values[order] = np.minimum.accumulate(np.minimum(p_values[order] * count / ranks, 1.0))
    return q_values
