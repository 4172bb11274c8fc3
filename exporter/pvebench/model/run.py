"""The buckets that latencies are counted in, the same for every case and node: they add up.

Each holds twice the time of the one before. Tools that count in binary bins (fio) have an edge of
theirs at every one of them, so no operation is between two buckets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from pvebench.model.environment import Environment
from pvebench.model.workload import Case, Direction

# --- Run, Sample, Outcome, Evidence: what one measured execution of a case leaves behind.


class Outcome(StrEnum):
    """How a run ended. Only `ok` counts as a good result; every other carries its reason."""

    OK = "ok"
    NOISY = "noisy"
    NOT_STEADY = "not_steady"
    IMPLAUSIBLE = "implausible"
    INVALID = "invalid"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        """Whether the run's numbers are published; all but `ok` with their reason."""
        return self in (Outcome.OK, Outcome.NOISY, Outcome.NOT_STEADY)


class Unit(StrEnum):
    """Base units; a sample has exactly one."""

    IOPS = "iops"
    BYTES_PER_SECOND = "bytes_per_second"
    SECONDS = "seconds"
    RATIO = "ratio"
    CORES = "cores"
    BYTES = "bytes"
    OPERATIONS = "operations"
    CELSIUS = "celsius"


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a run.

    Attributes:
        metric: name without prefix, such as `iops`, `bandwidth`, `clat_percentile`.
        direction: what it concerns, or None for the run as a whole.
        value: in `unit`.
        unit: base unit.
        part: what tells samples of one metric apart: a percentile (`99.9`), a CPU
            component (`qemu`); empty otherwise.
    """

    metric: str
    direction: Direction | None
    value: float
    unit: Unit
    part: str = ""


def rates(samples: Iterable[Sample]) -> dict[Direction, float]:
    """Return direction -> I/O per second, or bytes per second where the tool counts no I/O."""
    values = {(one.metric, one.direction): one.value for one in samples}
    found: dict[Direction, float] = {}
    for metric in ("bandwidth", "iops"):
        found |= {way: values[metric, way] for way in Direction if (metric, way) in values}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured execution of one case, finished.

    Attributes:
        uid: unique, made before the run starts.
        started, finished: UTC.
        samples: empty unless the tool's output could be read.
        evidence: name -> text: the job, raw output, effective configuration, host figures, log.
        written_bytes: to the test disk, by everything that the run did: fill, ramp and job.
        retryable: of a failed run: whether the same attempt may work when made again. Not stored.
        pass_number: which run of its case in its cycle, from 1; 0: not counted, as of a run that
            was skipped.
    """

    uid: str
    case: Case
    environment: Environment
    cycle: str
    started: datetime
    finished: datetime
    outcome: Outcome
    reason: str = ""
    samples: tuple[Sample, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)
    written_bytes: int = 0
    retryable: bool = False
    pass_number: int = 0

    @property
    def duration_seconds(self) -> float:
        """Wall time of the run, switching and settling included."""
        return (self.finished - self.started).total_seconds()


_EDGES: Final = tuple(1 << bit for bit in range(15, 31))
"""Nanoseconds: 33 us to 1.07 s."""
LATENCY_BOUNDS: Final = (*(repr(edge / 1e9) for edge in _EDGES), "+Inf")
"""Upper bounds in seconds, as Prometheus spells them."""
SUM: Final = "sum"
"""Part of a sample beside those of the buckets: all latencies together, in seconds."""


def latency_bound(nanoseconds: int) -> str:
    """Return the upper bound of the bucket that a latency is counted in."""
    return LATENCY_BOUNDS[bisect_right(_EDGES, nanoseconds)]
