"""Noise with a name: hours that are always slow, stretches that are slow now and then, two levels.

None of them is a level or an event: it says what the case's neighbours do to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.hours import hours_of_week, spread_out
from pvebench.analysis.levels.difference import size_text
from pvebench.analysis.levels.robust import MAD_TO_SIGMA

if TYPE_CHECKING:
    from pvebench.analysis.levels.robust import Matrix

NEWEST: Final = 300
"""Runs that are looked at."""
LEAST_RUNS: Final = 60
"""Runs that it takes to speak of a habit."""
LEAST: Final = 0.05
"""Loss, as logarithm, that is worth a word."""
CLEAR: Final = 4.0
"""Scales by which runs must be slow."""
TIMES: Final = 3
"""Times that it must have happened."""
LONGEST: Final = 15
"""Runs in a row beyond which it is a level."""
RARE: Final = 0.4
"""Share of the runs beyond which it is the other part that is told apart."""


def slow_hours(logs: Matrix, times: Sequence[float]) -> str:
    """Return at which hours of the day a case is slow, in how many of its runs, by how much.

    Args:
        logs: [runs], plus for better, with known steps levelled out.
        times: when they ended, seconds since the epoch, UTC.

    Returns:
        `8 % of its runs, around 02:00 UTC, are 40 % slower`; empty where there are no such hours.
    """
    import numpy as np

    if len(logs) < LEAST_RUNS or not spread_out(times):
        return ""
    away, scale = _away(logs)
    hours = hours_of_week(times) % 24
    slow = [hour for hour in range(24) if _is_slow(away[hours == hour], scale)]
    hit = np.isin(hours, slow)
    if not slow or hit.mean() > RARE:
        return ""
    share, loss = 100 * float(hit.mean()), -float(np.median(away[hit]))
    return f"{share:.0f} % of its runs, around {_around(slow)} UTC, are {_per_cent(loss)} slower"


def slow_stretches(logs: Matrix) -> str:
    """Return how often, for how long and by how much a case is slow and comes back by itself.

    Args:
        logs: [runs], plus for better, with known steps and what the hours do taken out.

    Returns:
        `now and then (5 times in 300 runs) some 4 runs in a row are 20 % slower`, or nothing.
    """
    import numpy as np

    if len(logs) < LEAST_RUNS:
        return ""
    away, scale = _away(logs)
    slow = away < -max(LEAST, CLEAR * scale)
    stretches: list[Matrix] = []
    place = 0
    for hit, runs in groupby(slow.tolist()):
        end = place + len(list(runs))
        # What has not ended yet may be a change.
        if hit and 2 <= end - place <= LONGEST and end < len(logs):
            stretches.append(away[place:end])
        place = end
    if len(stretches) < TIMES or sum(map(len, stretches)) > RARE * len(logs):
        return ""
    length = statistics.median(len(one) for one in stretches)
    loss = -float(np.median(np.concatenate(stretches)))
    often = f"{len(stretches)} times in {len(logs)} runs"
    return f"now and then ({often}) some {length:.0f} runs in a row are {_per_cent(loss)} slower"


def two_levels(history: CaseHistory, mode: CaseStep) -> str:
    """Return the two levels that a case goes to and fro between, and their shares.

    Args:
        mode: the newest step, which leads to the one it is at now.
    """
    import numpy as np

    logs = history.logs()[-NEWEST:]
    at = history.split(mode.time) - len(history.points) + len(logs)
    now = float(np.median(logs[max(0, at) :]))
    other = now - mode.effect
    share = float(np.mean(np.abs(logs - now) < np.abs(logs - other)))
    upper, lower = (share, 1 - share) if mode.effect > 0 else (1 - share, share)
    return (
        f"goes to and fro between two levels {size_text(abs(mode.effect))} apart, "
        f"{100 * upper:.0f} % of its runs at the better and {100 * lower:.0f} % at the worse one"
    )


def _away(logs: Matrix) -> tuple[Matrix, float]:
    import numpy as np

    away = logs - np.median(logs)
    return away, MAD_TO_SIGMA * float(np.median(np.abs(away)))


def _is_slow(away: Matrix, scale: float) -> bool:
    """Tell whether nearly all runs of an hour are slow, and not by chance."""
    import numpy as np

    if len(away) < TIMES:
        return False
    return bool(np.quantile(away, 0.8) < -max(LEAST, CLEAR * scale / len(away) ** 0.5))


def _around(hours: Sequence[int]) -> str:
    """Return hours of the day in words: `02:00`, or `02:00 and 14:00`."""
    texts = [f"{hour:02}:00" for hour in hours]
    if len(hours) > 2 and hours[-1] - hours[0] == len(hours) - 1:
        return f"{texts[0]} to {texts[-1]}"
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _per_cent(loss: float) -> str:
    return f"{-100 * math.expm1(-loss):.0f} %"
