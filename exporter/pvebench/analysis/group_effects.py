"""Effects of an event on groups of cases, noise of the host, and remaining effects of cases.

A change in one package rarely affects a single case. Pooling over the cases with the same bus,
cache mode … detects a few percent after one cycle. A common shift of all cases is either load on
the host or a change that affects everything; only placebos of the same history can separate them.

The contrast of a group with the other cases is a difference at the same time, so it is independent
of common effects of the host.
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

# --- known time: the shift after a change, compared with placebo changes ---
#
# The same statistic is computed at every earlier place of the same history without a known change.
# This accounts for drift, autocorrelation, modes and tails without assumptions about them.

WINDOW: Final = 40
"""Runs of the level before a place."""
PRIOR: Final = 8.0
"""Weight of the scale of the next smaller block, in independent placebos."""
BLOCKS: Final = (1, 2, 3, 5, 8, 13, 20)
AT_ONCE: Final = 64
"""Cases whose windows are in memory at once."""
FEW: Final = 20
"""Minimum runs before a change to compute placebos."""
ALIKE: Final = 4.0
"""Weight of the cases' typical noise, in runs of a case."""
MANY_CASES: Final = 6
"""Minimum cases of a node that are compared as many."""
OWN: Final = 1.5
"""Minimum size of a shift as a multiple of the largest placebo of the history."""


@dataclass(frozen=True, slots=True)
class PlaceShifts:
    """Shift of each case at one place; logarithms, positive is better.

    Attributes:
        shift, guarded: [cases] the shift, and its guarded form that one glitch cannot imitate.
        scale, guarded_scale: [cases] their scales from the placebos.
        placebos, guarded_placebos: [cases, places] the same shifts at the earlier places.
        degrees: degrees of freedom of the scales.
    """

    shift: Matrix
    guarded: Matrix
    scale: Matrix
    guarded_scale: Matrix
    placebos: Matrix
    guarded_placebos: Matrix
    degrees: float


def shifts_at_place(before: Matrix, after: Matrix, counts: Matrix | None = None) -> PlaceShifts:
    """Return the shift of `after` relative to `before`, with its scale from placebos.

    Args:
        before: [cases, runs], at least two runs.
        after: [cases, runs after].
        counts: [cases] number of actual runs in `after`; fewer increase the scale of the case.
    """
    past = _many if before.shape[1] >= FEW else _few
    level, noise, block, placebos, scales, degrees = past(before, after.shape[1])
    shift, guarded = shifts(after[:, -block:], level, noise, block=block)
    wider = np.ones(len(before)) if counts is None else np.sqrt(block / np.minimum(counts, block))
    return PlaceShifts(
        shift=shift[:, 0],
        guarded=agreed(shift, guarded)[:, 0],
        scale=scales[0] * wider,
        guarded_scale=scales[1] * wider,
        placebos=placebos[0],
        guarded_placebos=placebos[1],
        degrees=degrees,
    )


_PastShifts = tuple[Matrix, Matrix, int, tuple[Matrix, Matrix], tuple[Matrix, Matrix], float]
"""Level and noise before the place, runs of a block, placebos and scales of both shifts, degrees
of freedom."""


def _many(before: Matrix, after: int) -> _PastShifts:
    # A block as long as half of the history would leave too few placebos.
    block = min(after, max(1, (before.shape[1] - LEAST) // 2))
    rows = range(0, len(before), AT_ONCE)
    parts = [_of_cases(before[row : row + AT_ONCE], block) for row in rows]
    level, noise, mean, guard, *scales = (np.concatenate(part) for part in zip(*parts, strict=True))
    degrees = mean.shape[1] / block + 2
    return level, noise, block, (mean, guard), (scales[0], scales[1]), degrees


def _of_cases(before: Matrix, block: int) -> tuple[Matrix, ...]:
    level, noise = references(before, window=min(WINDOW, before.shape[1]), least=LEAST)
    mean, guard, scales = _placebos(before, level, noise, block)
    return level[:, -1:], noise[:, -1:], mean, guard, *scales


def _few(before: Matrix, after: int) -> _PastShifts:
    """Return what a history that is too short for placebos shows, with its noise as the scale.

    The noise of a case is shrunk towards the cases' typical noise; the interval reflects the
    number of runs. Each run before is a placebo of the common shift of the host.
    """
    cases, runs = before.shape
    level, _ = references(before, window=runs, least=runs)
    rest = before - level[:, -1:]
    variance = (rest**2).sum(axis=1) / (runs - 1)
    degrees = runs - 1.0
    if cases >= MANY_CASES:
        typical = float(np.median(variance))
        variance = (degrees * variance + ALIKE * typical) / (degrees + ALIKE)
        degrees += ALIKE
    noise = np.sqrt(np.maximum(variance, TINY**2))
    block = min(after, BLOCKS[-1])
    root = float(np.sqrt(1 / block + 1 / runs))
    placebos, scale = rest * root * math.sqrt(runs / (runs - 1)), noise * root
    return level[:, -1:], noise[:, None], block, (placebos, placebos), (scale, scale), degrees


def _placebos(
    before: Matrix, level: Matrix, noise: Matrix, block: int
) -> tuple[Matrix, Matrix, tuple[Matrix, Matrix]]:
    """Return shifts and guarded shifts at the earlier places, and the scales of both.

    Long blocks leave few independent placebos, so their scale is shrunk towards that of shorter
    blocks.
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


# --- the host: what all cases share at a cycle ---

UNEVEN: Final = 0.15
"""Spread of how much a load of the host affects its cases, as a share of the load."""


@dataclass(frozen=True, slots=True)
class Common:
    """What all cases of a host share at a change; logarithms, positive is better.

    Attributes:
        shift, scale: shift at hours that also occur before it, and its scale.
        degrees: degrees of freedom of the scale.
        load: shift at all hours, which affects some cases more than others.
        most: least shift that no earlier hour had; infinite: there are no like hours.
    """

    shift: float
    scale: float
    degrees: float
    load: float
    most: float


NOTHING: Final = Common(0.0, TINY, 1.0, 0.0, math.inf)
"""Of few cases: nothing is known to be shared."""


# --- groups and single cases ---

GROUP_LEVEL: Final = 0.005
"""False positive rate of groups per event, over all groups."""
CASE_LEVEL: Final = 0.003
"""False discovery rate of single cases."""
LEAST_RUNS: Final = 3
"""Minimum runs after a change to confirm a single case; with fewer, two glitches look like one."""
CLIP: Final = 4.0
"""Limit of the shift of one case within a group, in its scales."""
BEYOND: Final = 3.0
"""Shift in scales that rarely occurs by chance."""
MOST_GROUPS: Final = 3
MEDIAN: Final = 1.2533
"""Standard error of a median of normal noise relative to that of a mean."""
COMPLEMENT: Final = 2.3
"""Logarithm of the odds (10:1) that all cases except a group shifted, rather than the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShift:
    """A group of cases that shifted together; effects are logarithms, positive is better.

    Attributes:
        group: common labels of its members; empty for all cases.
        all_but: True if the members are the cases without these labels.
        members: row numbers.
        cases: of the rows; empty: not named yet.
        effect, low, high: shift relative to the other cases (for all cases: relative to before)
            and its 95% confidence interval.
        p_value: adjusted for the number of tested groups.
    """

    group: Group
    all_but: bool
    members: tuple[int, ...]
    effect: float
    low: float
    high: float
    p_value: float
    cases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeShift:
    """Effect of an event on the cases of a node.

    Attributes:
        groups: groups that shifted, the most significant first.
        p_values: [cases] of the shift without the effects of the groups of a case, relative to the
            common shift of the host; 1 if the history has equally large placebos.
        q_values: [cases] adjusted for the number of cases.
        common: shift of a case that is none of its own, a logarithm.
    """

    groups: tuple[GroupShift, ...]
    p_values: Matrix
    q_values: Matrix
    common: float


def judge_cases(
    known: PlaceShifts,
    labels: Sequence[Mapping[str, str]],
    *,
    host: Common = NOTHING,
    strictness: float = 1.0,
) -> NodeShift:
    """Return the groups that shifted at the event, and the remaining shift of each case.

    Args:
        known: shifts of all cases, without what they share.
        labels: labels of the same cases.
        host: what they share.
        strictness: number of metrics that are tested for the event.
    """
    uneven = UNEVEN * abs(host.load)
    known = replace(
        known,
        scale=np.hypot(known.scale, uneven),
        guarded_scale=np.hypot(known.guarded_scale, uneven),
    )
    rest = known.shift.copy()
    level = GROUP_LEVEL / strictness
    groups = _contrasts(known, labels, rest, level, host)
    p_values, common = _single(known, rest)
    everything = _everything(known, rest, level, host)
    if everything is not None:
        groups.append(everything)
        common -= everything.effect
    return NodeShift(tuple(groups), p_values, adjusted(p_values), common)


def _contrasts(
    known: PlaceShifts,
    labels: Sequence[Mapping[str, str]],
    rest: Matrix,
    level: float,
    host: Common,
) -> list[GroupShift]:
    """Find groups that shifted relative to the other cases; remove their effects from `rest`.

    Args:
        rest: [cases] shifts; changed in place.
        level: false positive rate per event, over all groups.
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
    contrasts: list[GroupShift] = []
    while len(contrasts) < MOST_GROUPS:
        now_of = _centred(rest[:, None], known)[:, 0]
        now = weights @ now_of
        score = now / np.maximum(_pooled_scale(placebos, floor, known), _apart(now_of, masks))
        best = int(np.argmax(np.abs(score)))
        p_value = float(two_sided(score[best], known.degrees + PRIOR)) * len(names)
        if p_value > level:
            break
        shift = _group_shift(known, rest, groups[names[best]], names[best], p_value, host)
        shift = _named(shift, groups)
        contrasts.append(shift)
        rest[list(shift.members)] -= shift.effect
    return contrasts


def _centred(shifts: Matrix, known: PlaceShifts) -> Matrix:
    """Return the shifts without their common part at a place, in scales of the cases, clipped.

    The common part is removed before scaling: it is the same ratio for quiet and noisy cases, and
    would otherwise look like a change of the quiet ones.
    """
    own = (shifts - np.median(shifts, axis=0)) / known.scale[:, None]
    centred: Matrix = np.clip(own, -CLIP, CLIP)
    return centred


def _apart(shifts: Matrix, masks: Matrix) -> Matrix:
    """Return the standard error of contrasts from differences of the cases at the event, [groups].

    A host affects some cases more than others: a load without placebos separates groups by chance,
    and appears as disagreement between the cases within a group.
    """
    total = np.zeros(len(masks))
    for side in (masks, 1 - masks):
        count = side.sum(axis=1)
        mean = side @ shifts / count
        square = np.maximum(side @ shifts**2 / count - mean**2, 0.0)
        total += square / np.maximum(count - 1, 1)
    apart: Matrix = np.sqrt(total)
    return apart


def _pooled_scale(placebos: Matrix, floor: Matrix, known: PlaceShifts) -> Matrix:
    """Return the scale of pooled scores, [groups]: at least that of independent cases."""
    ratio = (spread(placebos) / floor) ** 2
    typical = max(float(np.median(ratio)), 1.0)
    ratio = (PRIOR * typical + known.degrees * ratio) / (PRIOR + known.degrees)
    scale: Matrix = floor * np.sqrt(np.maximum(ratio, 1.0))
    return scale


def _group_shift(
    known: PlaceShifts, rest: Matrix, mask: Flags, group: Group, p_value: float, host: Common
) -> GroupShift:
    inside, outside = float(np.median(rest[mask])), float(np.median(rest[~mask]))
    # A contrast does not show which side shifted. The common shifts of the host do.
    common = max(host.scale, host.most) if host.most < math.inf else math.inf
    moved = [(side + host.shift) ** 2 for side in (inside, outside)]
    all_but = (moved[1] - moved[0]) / (2 * common**2) > COMPLEMENT
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
    """Return a shift of all cases except a group as the shift of another equal group, if any."""
    if not shift.all_but:
        return shift
    for group, mask in groups.items():
        if tuple(mask.nonzero()[0].tolist()) == shift.members:
            return replace(shift, group=group, all_but=False)
    return shift


def _everything(known: PlaceShifts, rest: Matrix, level: float, host: Common) -> GroupShift | None:
    """Return the shift of all cases if it exceeds the common placebo shifts of the host."""
    cases = len(rest)
    if cases < 2 * LEAST_MEMBERS:
        return None
    # Groups that shifted have moved the median of all cases.
    own = rest + host.shift
    effect = float(np.median(own))
    scale = max(host.scale, MEDIAN * float(np.median(known.scale)) / math.sqrt(cases))
    p_value = float(two_sided(effect / scale, host.degrees + PRIOR))
    if p_value > level or abs(effect) <= host.most:
        return None
    if np.mean(_moved_along(own, known.scale, effect)) < LEAST_MOVED:
        return None
    reach = critical(0.05, host.degrees + PRIOR) * scale
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
    """Return which cases shifted at least half as far, or in the same direction beyond noise."""
    own = rest * np.sign(effect)
    along: Flags = (own > abs(effect) / 2) | (own > BEYOND * scale)
    return along


def _single(known: PlaceShifts, rest: Matrix) -> tuple[Matrix, float]:
    """Return the p-value of each case relative to the host's common shift, and that shift."""
    past = known.guarded_placebos
    now = known.guarded - (known.shift - rest)
    # A guarded shift that changes sign without the group's effect is no shift of the case.
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
