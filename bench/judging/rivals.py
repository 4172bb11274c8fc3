"""Other methods to compare with, as functions that return the runs that raise an alarm.

apache-otava pins its libraries to versions that pvebench does not use, and depends on 35 packages;
its analysis needs none of them. So it and ruptures are installed without dependencies, apart
from the environment of pvebench, when the comparison is asked for.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from scipy.stats import ttest_ind

from judging.series import Vector

HERE: Final = Path(__file__).parent
TARGET: Final = HERE.parents[1] / ".venv" / "rivals"
Alarms = Callable[[Vector], list[int]]
"""Logarithms, oldest first -> runs that raise an alarm, each judged with the runs up to it."""
NEAR: Final = 5
"""Distance in runs within which a change point counts as already reported."""
WINDOW: Final = 30


def install() -> str:
    """Make the other methods importable; return the error if that fails, otherwise empty."""
    if not (TARGET / "otava").exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        lock = ["--no-deps", "--require-hashes", "-r", str(HERE / "rivals.lock")]
        done = subprocess.run(
            [*pip, "--target", str(TARGET), *lock], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    sys.path.append(str(TARGET))
    return ""


def otava_once(
    *, max_pvalue: float = 0.001, min_magnitude: float = 0.0
) -> Callable[[Vector], list[int]]:
    """Return apache-otava: a history -> its change points."""
    from otava.analysis import compute_change_points  # noqa: PLC0415 # only there if installed

    def points(values: Vector) -> list[int]:
        found, _ = compute_change_points(
            np.exp(values).tolist(), max_pvalue=max_pvalue, min_magnitude=min_magnitude
        )
        return [point.index for point in found]

    return points


def otava(*, max_pvalue: float = 0.001, min_magnitude: float = 0.0) -> Alarms:
    """Return apache-otava, executed after every run."""
    return _newly(otava_once(max_pvalue=max_pvalue, min_magnitude=min_magnitude))


def pelt() -> Alarms:
    """Return PELT, executed after every run."""
    return _newly(pelt_once())


def pelt_once() -> Callable[[Vector], list[int]]:
    """Return ruptures' PELT with an l2 cost and a penalty of 6 sigma² log n, min_size 3.

    With a linear kernel the kernel's cost is l2, and this implementation is the fast one.
    """
    from ruptures import KernelCPD  # noqa: PLC0415 # only there if installed

    def points(values: Vector) -> list[int]:
        sigma = np.median(np.abs(np.diff(values))) / 0.6745 / np.sqrt(2)
        penalty = 6 * sigma**2 * np.log(len(values))
        search = KernelCPD(kernel="linear", min_size=3)
        found: list[int] = search.fit_predict(values[:, None], pen=penalty)
        return found[:-1]

    return points


def _newly(points: Callable[[Vector], list[int]]) -> Alarms:
    def alarms(values: Vector) -> list[int]:
        known: list[int] = []
        raised = []
        for run in range(WINDOW, len(values) + 1):
            new = [
                place
                for place in points(values[:run])
                if all(abs(place - old) > NEAR for old in known)
            ]
            known += new
            raised += [run - 1] * bool(new)
        return raised

    return alarms


def _last_value(odd: Callable[[Vector, float], bool]) -> Alarms:
    def alarms(values: Vector) -> list[int]:
        return [
            run
            for run in range(WINDOW, len(values))
            if odd(values[run - WINDOW : run], float(values[run]))
        ]

    return alarms


def _beyond_fence(before: Vector, now: float) -> bool:
    low, high = np.percentile(before, [25, 75])
    reach = 3 * (high - low)
    return bool(now < low - reach or now > high + reach)


def _windows_differ(values: Vector) -> list[int]:
    """Return alarms as in Perfherder: 12 runs against 12 before, |t| above 7; each change once."""
    raised: list[int] = []
    for run in range(23, len(values)):
        score = abs(ttest_ind(values[run - 11 : run + 1], values[run - 23 : run - 11]).statistic)
        if score > 7 and (not raised or run - raised[-1] > 12):
            raised.append(run)
    return raised


SIMPLE: Final[Mapping[str, Alarms]] = {
    "last against mean ± 3 sigma": _last_value(
        lambda before, now: bool(abs(now - before.mean()) > 3 * before.std(ddof=1))
    ),
    "last against mean ± 10%": _last_value(
        lambda before, now: bool(abs(np.exp(now - before.mean()) - 1) > 0.1)
    ),
    "quartile fence": _last_value(_beyond_fence),
    "t-test of windows": _windows_differ,
}
