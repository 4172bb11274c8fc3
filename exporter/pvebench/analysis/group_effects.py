"""Effects of an event on groups of cases, and on each case without those of its groups.

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
from pvebench.analysis.case_history import (
    LEAST_MEMBERS,
    LEAST_MOVED,
    CaseHistory,
    CaseStep,
    Group,
    GroupShift,
    groups_of,
)
from pvebench.analysis.difference import critical, two_sided
from pvebench.analysis.levels import TINY
from pvebench.analysis.placebos import PRIOR, PlaceShifts, spread

# --- the host: what all cases share at a cycle ---

UNEVEN: Final = 0.15
"""Spread of how much a load of the host affects its cases, as a share of the load. With 0, of 36
upgrades that slowed one bus below a load, 2 are named with cases of others; with it none."""


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
OWN: Final = 1.5
"""Minimum size of a shift of a single case as a multiple of the largest placebo of its history."""
CLIP: Final = 4.0
"""Limit of the shift of one case within a group, in its scales. Without it, of 8 upgrades that cost
one bus 10%, 6 are named after one cycle; with it all."""
BEYOND: Final = 3.0
"""Shift in scales that rarely occurs by chance."""
MOST_GROUPS: Final = 3
MEDIAN: Final = 1.2533
"""Standard error of a median of normal noise relative to that of a mean."""
COMPLEMENT: Final = 2.3
"""Logarithm of the odds (10:1) that all cases except a group shifted, rather than the group."""


Found = tuple[GroupShift, Flags]
"""A group that shifted, and which cases are its members."""


def shift_of_cases(
    known: PlaceShifts,
    histories: Sequence[CaseHistory],
    at: float,
    *,
    host: Common = NOTHING,
    strictness: float = 1.0,
) -> dict[str, CaseStep]:
    """Return case -> its step at the event, confirmed or not, with the group that it belongs to.

    Args:
        known: shifts of all cases, without what they share.
        histories: of the same cases.
        at: time of the event.
        host: what the cases share.
        strictness: number of metrics that are tested for the event.
    """
    known = replace(known, scale=np.hypot(known.scale, UNEVEN * abs(host.load)))
    node = _Node(known, histories, host, GROUP_LEVEL / strictness)
    least = histories[0].figure.least_effect
    contrasts = node.contrasts()
    p_values, common = node.single()
    everything, wider = node.everything(), 0.0
    if everything is not None:
        # The common shift of the whole host is noise, unless it was detected as an effect.
        common, wider = common - everything.effect, everything.high - everything.effect
    effects = known.shift[0] - common
    groups = [
        (shift.of(float(np.median(effects[members])), wider), members)
        for shift, members in contrasts
        if abs(shift.effect) >= least
    ]
    if everything is not None and abs(everything.effect) >= least:
        groups.append((everything, np.ones(len(histories), dtype=bool)))
    q_values = adjusted(p_values)
    reaches = critical(0.05, known.degrees) * known.scale[0]
    steps = {}
    for row, history in enumerate(histories):
        effect, reach, runs = float(effects[row]), float(reaches[row]), int(known.counts[row])
        # A case that moved the other way did not shift with its group.
        own = (shift for shift, members in groups if members[row] and shift.effect * effect > 0)
        group = next(own, None)
        alone = runs >= LEAST_RUNS and q_values[row] <= CASE_LEVEL / strictness
        steps[history.case] = CaseStep(
            time=at,
            known=True,
            runs=runs,
            effect=effect,
            low=effect - reach,
            high=effect + reach,
            p_value=float(p_values[row]),
            confirmed=abs(effect) >= least and bool(alone or group is not None),
            group=group,
        )
    return steps


def _shift(
    labels: Group, effect: float, reach: float, p_value: float, *, all_but: bool = False
) -> GroupShift:
    return GroupShift(
        labels=labels,
        all_but=all_but,
        effect=effect,
        low=effect - reach,
        high=effect + reach,
        p_value=min(p_value, 1.0),
    )


class _Node:
    """Shifts of the cases of a node at an event.

    Args:
        level: false positive rate of groups.
    """

    def __init__(
        self, known: PlaceShifts, histories: Sequence[CaseHistory], host: Common, level: float
    ) -> None:
        self._known, self._histories, self._host, self._level = known, histories, host, level
        self._rest = known.shift[0].copy()
        """[cases] shifts without those of the groups."""
        self._degrees = known.degrees + PRIOR

    def contrasts(self) -> list[Found]:
        """Find groups that shifted relative to the other cases; remove their effects."""
        groups = groups_of([history.labels for history in self._histories])
        if not groups:
            return []
        masks = np.array(list(groups.values()), dtype=float)
        sizes = masks.sum(axis=1)
        others = masks.shape[1] - sizes
        weights = masks / sizes[:, None] - (1 - masks) / others[:, None]
        floor = np.sqrt(1 / sizes + 1 / others)
        scale = self._pooled_scale(weights @ self._centred(self._known.placebos[0]), floor)
        contrasts: list[Found] = []
        while len(contrasts) < MOST_GROUPS:
            now = self._centred(self._rest[:, None])[:, 0]
            score = weights @ now / np.maximum(scale, _apart(now, masks))
            best = int(np.argmax(np.abs(score)))
            p_value = float(two_sided(score[best], self._degrees)) * len(groups)
            if p_value > self._level:
                break
            contrasts.append(self._contrast(list(groups)[best], groups, p_value))
        return contrasts

    def everything(self) -> GroupShift | None:
        """Return the shift of all cases if it exceeds the common placebo shifts of the host."""
        cases, host = len(self._rest), self._host
        if cases < 2 * LEAST_MEMBERS:
            return None
        # Groups that shifted have moved the median of all cases.
        own, scales = self._rest + host.shift, self._known.scale[0]
        effect = float(np.median(own))
        scale = max(host.scale, MEDIAN * float(np.median(scales)) / math.sqrt(cases))
        degrees = host.degrees + PRIOR
        p_value = float(two_sided(effect / scale, degrees))
        along = own * np.sign(effect)
        moved = (along > abs(effect) / 2) | (along > BEYOND * scales)
        if p_value > self._level or abs(effect) <= host.most or np.mean(moved) < LEAST_MOVED:
            return None
        return _shift((), effect, critical(0.05, degrees) * scale, p_value)

    def single(self) -> tuple[Matrix, float]:
        """Return the p-value of each case relative to the host's common shift, and that shift.

        It is 1 if the history has equally large placebos.
        """
        (shift, now), (_, scale), (plain, past) = (
            self._known.shift,
            self._known.scale,
            self._known.placebos,
        )
        now = now - (shift - self._rest)
        # A guarded shift that changes sign without the group's effect is no shift of the case.
        now = np.where(np.sign(now) == np.sign(self._rest), now, 0.0)
        common = 0.0
        if len(now) >= 2 * LEAST_MEMBERS:
            common = float(np.median(self._rest))
            past = past - np.median(plain, axis=0)
            now = now - common
        past, now = past / scale[:, None], now / scale
        p_values = two_sided(now / np.maximum(spread(past), 0.8), self._known.degrees)
        new = np.abs(now) > OWN * np.max(np.abs(past), axis=1)
        return np.where(new, p_values, 1.0), common

    def _centred(self, shifts: Matrix) -> Matrix:
        """Return shifts without their common part at a place, in scales of the cases, clipped.

        The common part is removed before scaling: it is the same ratio for quiet and noisy cases,
        and would otherwise look like a change of the quiet ones.
        """
        own = (shifts - np.median(shifts, axis=0)) / self._known.scale[0][:, None]
        centred: Matrix = np.clip(own, -CLIP, CLIP)
        return centred

    def _pooled_scale(self, placebos: Matrix, floor: Matrix) -> Matrix:
        """Return the scale of pooled scores, [groups]: at least that of independent cases."""
        ratio = (spread(placebos) / floor) ** 2
        typical = max(float(np.median(ratio)), 1.0)
        ratio = (PRIOR * typical + self._known.degrees * ratio) / self._degrees
        scale: Matrix = floor * np.sqrt(np.maximum(ratio, 1.0))
        return scale

    def _contrast(self, group: Group, groups: Mapping[Group, Flags], p_value: float) -> Found:
        """Return the shift of a group, or of all cases but it, and remove it from the rest."""
        mask = groups[group]
        inside, outside = (float(np.median(self._rest[side])) for side in (mask, ~mask))
        # A contrast does not show which side shifted. The common shifts of the host do.
        host = self._host
        common = max(host.scale, host.most)
        moved = [(side + host.shift) ** 2 for side in (inside, outside)]
        effect, members, past = inside - outside, mask, self._known.placebos[0]
        placebos = np.median(past[mask], axis=0) - np.median(past[~mask], axis=0)
        errors = [
            MEDIAN * float(np.sqrt(np.mean(self._known.scale[0][side] ** 2) / side.sum()))
            for side in (mask, ~mask)
        ]
        if (moved[1] - moved[0]) / (2 * common**2) > COMPLEMENT:
            effect, members = -effect, ~mask
            # The other cases may be a group themselves.
            equal = (name for name, other in groups.items() if (other == members).all())
            group = next(equal, group)
        scale = max(float(spread(placebos)), math.hypot(*errors))
        self._rest[members] -= effect
        reach = critical(0.05, self._degrees) * scale
        all_but = not (groups[group] == members).all()
        return _shift(group, effect, reach, p_value, all_but=all_but), members


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


def adjusted(p_values: Matrix) -> Matrix:
    """Return Benjamini and Hochberg's q-values (J. R. Stat. Soc. B 57, 1995)."""
    count = len(p_values)
    order = np.argsort(p_values)[::-1]
    q_values = np.empty(count)
    ranks = np.arange(count, 0, -1)
    q_values[order] = np.minimum.accumulate(np.minimum(p_values[order] * count / ranks, 1.0))
    return q_values
