"""Gains that are too good to be true: more often something is no longer done."""

from __future__ import annotations

import math
import statistics
from typing import Final

from pvebench.analysis.case_history import CaseHistory

NEWEST: Final = 5
"""Newest runs that must be beyond what the device can do."""
DURABLE_GAIN: Final = math.log(1.25)
"""Gain of synchronous writes that no software gives: they wait for the device, or do not wait."""
ANY_GAIN: Final = math.log(2.0)
"""Gain of anything that wants a second look."""


def too_good(history: CaseHistory, effect: float) -> str:
    """Return why a gain is too good to be true, or nothing."""
    if history.figure.kind == "speed" and history.figure.more_is_better:
        newest = statistics.median(point.value for point in history.points[-NEWEST:])
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
