"""All cases of an event together: what a group shares, what is the host's noise, what is left.

A change in one package seldom hits one case. Pooling over the cases that share a bus, a cache
mode … finds a few per cent after one round. What all cases share at once is either the host
being busy or a change that hits everything, and only its own placebos can tell which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.analysis.contrasts import CLIP, PRIOR, contrasts
from pvebench.analysis.groups import LEAST_MEMBERS, GroupShift
from pvebench.analysis.levels import spread
from pvebench.analysis.placebo import OWN, Known, critical, two_sided

if TYPE_CHECKING:
    from pvebench.analysis.levels import Matrix

GROUP_LEVEL: Final = 0.005
"""False groups an event, all groups together."""
CASE_LEVEL: Final = 0.003
"""False discovery rate of single cases."""
LEAST_RUNS: Final = 3
"""Runs after a change before a single case is confirmed; below it two glitches look like one."""


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
    found = contrasts(known, labels, rest, level)
    everything = _everything(known, rest, level)
    if everything is not None:
        found.append(everything)
        rest -= everything.effect
    p_values, common = _single(known, rest)
    return FleetShift(tuple(found), rest, p_values, adjusted(p_values), common)


def _everything(known: Known, rest: Matrix, level: float) -> GroupShift | None:
    """Return the shift of all cases if it is larger than the host's common shifts ever were."""
    import numpy as np

    cases = len(rest)
    if cases < 2 * LEAST_MEMBERS:
        return None
    past = np.clip(known.placebos / known.scale[:, None], -CLIP, CLIP).mean(axis=0)[None, :]
    now = np.clip(rest / known.scale, -CLIP, CLIP).mean()
    scale = max(float(spread(past)[0]), float(np.sqrt(1 / cases)))
    p_value = float(two_sided(now / scale, known.degrees + PRIOR))
    if p_value > level:
        return None
    effect = float(np.median(rest))
    common = float(spread(np.median(known.placebos, axis=0)[None, :])[0])
    reach = critical(0.05, known.degrees + PRIOR) * common
    return GroupShift(
        group=(), all_but=False, members=tuple(range(cases)),
        effect=effect, low=effect - reach, high=effect + reach, p_value=p_value,
    )  # fmt: skip


def _single(known: Known, rest: Matrix) -> tuple[Matrix, float]:
    """Return each case's p-value against the host's common shift, and that common shift."""
    import numpy as np

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
    import numpy as np

    count = len(p_values)
    order = np.argsort(p_values)[::-1]
    q_values = np.empty(count)
    ranks = np.arange(count, 0, -1)
    q_values[order] = np.minimum.accumulate(np.minimum(p_values[order] * count / ranks, 1.0))
    return q_values
