"""Real runs in tests: the outcomes they may have, their numbers, waits for what they do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pvebench.model.run import Outcome, Run

MEASURED: Final = frozenset({Outcome.OK, Outcome.NOISY, Outcome.IMPLAUSIBLE})
"""Of a run that was carried out: what else the machine does may make it noisy, and emulation or
a cache on the way implausible. As in JSON: a member equals its word."""


def value(run: Run, metric: str, part: str = "") -> float:
    found = [s.value for s in run.samples if s.metric == metric and part in (s.part, "")]
    assert found, f"{metric} is not among the samples: {run.outcome} {run.reason}"
    return found[0]


def cached_bytes(path: Path) -> int:
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    done = subprocess.run(command, capture_output=True, check=True)
    return int(done.stdout.split()[0])


def until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
