"""Changes of a part of the runs: a slow part appeared, or became more frequent.

The level of the other runs stays, so that the scan for levels does not report it.
"""

from __future__ import annotations

import math
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, Places, np
from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.difference import difference, two_sided
from pvebench.analysis.levels import MAD_TO_SIGMA, TINY

NEWEST: Final = 600
"""Number of latest runs to examine."""
LEAST_BEFORE: Final = 40
LEAST_AFTER: Final = 20
"""Minimum runs on each side."""
LEAST: Final = 0.05
"""Minimum slowdown of a slow run, as a logarithm …"""
CLEAR: Final = 4.0
"""… and in scales of single runs."""
SURE: Final = 12.0
"""Minimum log-likelihood ratio: periods at random intervals rarely reach 8 by chance."""
MORE: Final = 0.1
"""Minimum increase of the share of slow runs."""
MOST: Final = 0.6
"""Maximum share of slow runs; more are a level."""
LEAST_PERIODS: Final = 5
"""Minimum slow periods: fewer may be an exception."""
LONG: Final = 2.0
"""Mean length, in runs, from which slow periods are bursts."""


def partial_change(history: CaseHistory, since: float) -> CaseStep | None:
    """Return a change of a part of the latest runs, or None.

    Args:
        history: with known steps leveled out.
        since: ignore changes up to this time.
    """
    if history.figure.name != "throughput" or len(history.points) < LEAST_BEFORE + LEAST_AFTER:
        return None
    first = max(0, len(history.points) - NEWEST)
    times = history.times()[first:]
    logs = history.logs()[first:]
    away = logs - np.median(logs)
    slow = away < -max(LEAST, CLEAR * MAD_TO_SIGMA * float(np.median(np.abs(away))))
    place, ratio = _onset(slow)
    if ratio < SURE or times[place] <= since:
        return None
    before, after = slow[:place], slow[place:]
    share = float(after.mean())
    if not before.mean() + MORE <= share <= MOST or _starts(after).sum() < LEAST_PERIODS:
        return None
    size = difference(logs[:place][~before], logs[place:][after])
    return CaseStep(
        time=times[place],
        known=False,
        effect=size.effect,
        low=size.low,
        high=size.high,
        p_value=float(two_sided(math.sqrt(2 * ratio), math.inf)),
        runs=len(after),
        kind="bursts" if after.sum() >= LONG * _starts(after).sum() else "mode",
        share=share,
    )


def _starts(slow: Flags) -> Flags:
    """Return which runs begin a slow period: the runs of one period depend on each other."""
    starts: Flags = slow & ~np.concatenate([[False], slow[:-1]])
    return starts


def _onset(slow: Flags) -> tuple[int, float]:
    """Return from where slow periods are more frequent, and the log-likelihood ratio of that."""
    count = len(slow)
    counts = np.concatenate([[0], np.cumsum(_starts(slow))])
    places = np.arange(LEAST_BEFORE, count - LEAST_AFTER + 1)
    early, late = counts[places], counts[-1] - counts[places]
    ratio = (
        _likelihood(early, places)
        + _likelihood(late, count - places)
        - _likelihood(counts[-1:], np.array([count]))
    )
    ratio = np.where(late / (count - places) > early / places, ratio, 0.0)
    best = int(np.argmax(ratio))
    return int(places[best]), float(ratio[best])


def _likelihood(hits: Places, runs: Places) -> Matrix:
    """Return the log-likelihood of a number of periods at their own rate."""
    rate = np.clip(hits / runs, TINY, 1 - TINY)
    found: Matrix = hits * np.log(rate) + (runs - hits) * np.log1p(-rate)
    return found
