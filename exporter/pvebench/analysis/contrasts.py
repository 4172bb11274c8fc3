"""Groups that moved against the other cases of an event.

Being a difference at the same moment, a contrast is blind to what the host does to all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pvebench.analysis.groups import Group, GroupShift, groups_of
from pvebench.analysis.levels import spread
from pvebench.analysis.placebo import Known, critical, two_sided

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pvebench.analysis.levels import Matrix

CLIP: Final = 4.0
"""One case counts in a group as if it had moved by at most so many of its scales."""
PRIOR: Final = 8.0
MOST_GROUPS: Final = 3
COMPLEMENT: Final = 2.3
"""Log of the odds (10:1) that a named group moved, rather than everything but it."""


def contrasts(
    known: Known, labels: Sequence[Mapping[str, str]], rest: Matrix, level: float
) -> list[GroupShift]:
    """Find groups that moved against the other cases; take their effects out of `rest`.

    Args:
        rest: [cases] shifts; changed in place.
        level: false groups an event that are allowed, all groups together.
    """
    import numpy as np

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
        now = weights @ _centred(rest[:, None], known)
        score = now[:, 0] / _pooled_scale(placebos, floor, known)
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
    import numpy as np

    own = (shifts - np.median(shifts, axis=0)) / known.scale[:, None]
    centred: Matrix = np.clip(own, -CLIP, CLIP)
    return centred


def _pooled_scale(placebos: Matrix, floor: Matrix, known: Known) -> Matrix:
    """Return the scale of pooled scores, [groups]: never below that of independent cases."""
    import numpy as np

    ratio = (spread(placebos) / floor) ** 2
    typical = max(float(np.median(ratio)), 1.0)
    ratio = (PRIOR * typical + known.degrees * ratio) / (PRIOR + known.degrees)
    scale: Matrix = floor * np.sqrt(np.maximum(ratio, 1.0))
    return scale


def _group_shift(
    known: Known, rest: Matrix, mask: NDArray[np.bool_], group: Group, p_value: float
) -> GroupShift:
    import numpy as np

    inside, outside = float(np.median(rest[mask])), float(np.median(rest[~mask]))
    # A contrast does not say which side moved. The host's own common shifts do.
    common = float(spread(np.median(known.placebos, axis=0)[None, :])[0])
    all_but = (outside**2 - inside**2) / (2 * common**2) > COMPLEMENT
    sign = -1.0 if all_but else 1.0
    effect = sign * (inside - outside)
    past = np.median(known.placebos[mask], axis=0) - np.median(known.placebos[~mask], axis=0)
    # 1.2533: a median is that much wider than a mean.
    wide = [1.2533 * float(np.sqrt(np.mean(known.scale[m] ** 2) / m.sum())) for m in (mask, ~mask)]
    scale = max(float(spread(past[None, :])[0]), math.hypot(*wide))
    reach = critical(0.05, known.degrees + PRIOR) * scale
    members = np.flatnonzero(~mask if all_but else mask)
    return GroupShift(
        group=group, all_but=all_but, members=tuple(int(row) for row in members),
        effect=effect, low=effect - reach, high=effect + reach, p_value=min(p_value, 1.0),
    )  # fmt: skip


def _named(shift: GroupShift, groups: Mapping[Group, NDArray[np.bool_]]) -> GroupShift:
    """Return a shift of all but one group as that of another, where there are only two."""
    if not shift.all_but:
        return shift
    for group, mask in groups.items():
        if tuple(mask.nonzero()[0].tolist()) == shift.members:
            return replace(shift, group=group, all_but=False)
    return shift
