"""How a pack wants its runs conducted: pauses, steadiness, what counts as noisy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyRule:
    """When a workload counts as steady: the rule of SNIA's solid state test specification.

    Over a window of intervals, the rate's range and the excursion of the fitted line must both
    be small against its mean.

    Attributes:
        interval_seconds: one value of the rate each.
        window: how many intervals are looked at.
        range_ratio: largest allowed (maximum - minimum) / mean.
        slope_ratio: largest allowed rise or fall of the fitted line over the window / mean.
        limit_seconds: when to stop waiting; the run is `not_steady` then.
    """

    interval_seconds: float = 5.0
    window: int = 5
    range_ratio: float = 0.20
    slope_ratio: float = 0.10
    limit_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How each run of a pack is made, beside its workload.

    Attributes:
        settle_seconds: pause between the switch and the job.
        noisy_ratio: a run whose intervals vary more (standard deviation / mean) is `noisy`.
        repeats: how many runs of a case each cycle makes.
    """

    settle_seconds: float = 0.5
    noisy_ratio: float = 0.5
    repeats: int = 1
