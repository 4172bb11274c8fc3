"""Gains that are too good to be true: an alarm, not a win."""

from __future__ import annotations

import math
import statistics
from typing import Final

from pvebench.analysis.series import History

PRESENT: Final = 5
"""Newest runs that make the present level where nothing has happened."""
DURABLE_GAIN: Final = math.log(1.25)
"""Gain of synchronous writes that no software gives: they wait for the device, or do not wait."""
ANY_GAIN: Final = math.log(2.0)
"""Gain of anything that wants a second look."""


def too_good(history: History, effect: float) -> str:
    """Return why a gain is too good to be true, or nothing."""
    if history.figure.kind == "speed" and history.figure.more_is_better:
        newest = statistics.median(point.value for point in history.points[-PRESENT:])
        if history.ceiling is not None and newest > history.ceiling:
            return "it is more than the device can do"
        if history.labels.get("durable") == "yes" and effect > DURABLE_GAIN:
            return (
                "writes that must reach the device do not become so much faster by software: "
                "they may no longer wait for it"
            )
    if history.figure.kind in {"speed", "stall"} and effect > ANY_GAIN:
        return "a gain by more than half is rarely real: something may no longer be done"
    return ""
