"""Other methods on the same histories: PELT and apache-otava.

apache-otava pins its libraries to versions that pvebench does not use, and depends on 35 packages;
its analysis needs none of them. So it and ruptures are installed without dependencies, apart
from the environment of pvebench, when the comparison is asked for.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from testing.noise import Series, Vector

HERE: Final = Path(__file__).parent
TARGET: Final = HERE.parents[1] / ".venv" / "rivals"
FIRST: Final = 30
"""Runs before the first online analysis."""
PeltSetting = tuple[int, float, float]
"""Runs of a level, penalty in units of sigma² log n, smallest change."""
PELT_GRID: Final[tuple[PeltSetting, ...]] = tuple(
    itertools.product((10, 14, 20), (10, 20, 40), (0.015, 0.03))
)
ONLINE: Final[tuple[PeltSetting, ...]] = ((14, 20, 0.015), (10, 40, 0.015))
OTAVA_DEFAULT: Final = (1e-3, 0.0)
OTAVA_GRID: Final = tuple((p, size) for p in (1e-3, 1e-4, 1e-6) for size in (0.0, 0.03, 0.05))
"""Highest p-value, smallest change."""


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


def otava(series: Series, *, p_value: float, size: float) -> list[int]:
    """Return the change points of apache-otava in a whole history."""
    from otava.analysis import compute_change_points  # noqa: PLC0415 # only there if installed

    values = np.exp(series.logs).tolist()
    found, _ = compute_change_points(values, max_pvalue=p_value, min_magnitude=size)
    return [point.index for point in found]


def pelt(logs: Vector, setting: PeltSetting) -> list[int]:
    """Return the change points of ruptures' PELT with an l2 cost in a whole history.

    Outliers are limited to two sigma from a running median, without which its F1 is 0.05 less.
    With a linear kernel the kernel's cost is l2, and this implementation is the fast one.
    """
    from ruptures import KernelCPD  # noqa: PLC0415 # only there if installed

    least, penalty, size = setting
    near, wide = _running_median(logs, 5), _running_median(logs, 15)
    differences = np.median(np.abs(np.diff(logs))) / np.sqrt(2)
    sigma = 1.4826 * max(differences, np.median(np.abs(logs - wide))) + 1e-6
    values = np.clip(logs, near - 2 * sigma, near + 2 * sigma)
    search = KernelCPD(kernel="linear", min_size=least)
    found = search.fit_predict(values[:, None], pen=penalty * sigma**2 * np.log(len(logs)))
    return large(logs, [int(place) for place in found[:-1]], size)


def _running_median(logs: Vector, reach: int) -> Vector:
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(logs, reach, "edge"), 2 * reach + 1)
    return np.asarray(np.median(windows, axis=-1), dtype=float)


def large(logs: Vector, places: Sequence[int], size: float) -> list[int]:
    """Return the change points without those between levels that differ less than `size`."""
    left = list(places)
    while left:
        levels = [float(part.mean()) for part in np.split(logs, left)]
        steps = np.abs(np.diff(levels))
        smallest = int(np.argmin(steps))
        if steps[smallest] >= size:
            break
        del left[smallest]
    return left


def online(logs: Vector, setting: PeltSetting) -> list[tuple[int, int]]:
    """Return (first run of a change, run after which PELT reports it); each change once."""
    reported: list[tuple[int, int]] = []
    for runs in range(FIRST, len(logs) + 1):
        for place in pelt(logs[:runs], setting):
            if all(abs(place - old) > setting[0] for old, _ in reported):
                reported.append((place, runs))
    return reported
