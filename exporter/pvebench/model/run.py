"""Run, its samples and outcome, and the buckets of latency histograms."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from pvebench.model.environment import Environment
from pvebench.model.workload import Case, Direction

# --- run, samples, outcome


class Outcome(StrEnum):
    """Outcome of a run; every one except `ok` has a reason."""

    OK = "ok"
    NOISY = "noisy"
    NOT_STEADY = "not_steady"
    IMPLAUSIBLE = "implausible"
    INVALID = "invalid"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        """Whether the run was successful: its numbers are published, with the reason if any."""
        return self in (Outcome.OK, Outcome.NOISY, Outcome.NOT_STEADY)


class Unit(StrEnum):
    """Base unit of a sample."""

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
    """Number of a run.

    Attributes:
        metric: name without prefix, such as `iops`, `bandwidth`, `clat_percentile`.
        direction: the direction of its I/O, or None for the run as a whole.
        value: in `unit`.
        unit: base unit.
        part: distinguishes samples of one metric: a percentile (`99.9`), a CPU component
            (`qemu`); empty otherwise.
    """

    metric: str
    direction: Direction | None
    value: float
    unit: Unit
    part: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Metric, direction or empty text, part: unique within a run."""
        return self.metric, str(self.direction or ""), self.part


@dataclass(slots=True, kw_only=True)
class Run:
    """Execution of one case. Runner and worker fill it step by step until it is stored.

    Attributes:
        uid: unique, assigned before the run starts.
        started, finished: UTC.
        samples: empty unless the tool's output could be read.
        evidence: name -> text: the job, raw output, effective configuration, host counters, log.
        written_bytes: to the test disk, by the whole run: fill, ramp and job.
        copies: storage -> maximum bytes that its operation wrote there. Stored as a sum per hour.
        retryable: whether a failed run may succeed when repeated. Not stored.
        pass_number: number of the run among those of its case in the cycle, from 1; 0: not
            counted, as for a skipped run.
    """

    uid: str
    case: Case
    environment: Environment
    cycle: str
    started: datetime
    finished: datetime
    outcome: Outcome = Outcome.OK
    reason: str = ""
    samples: tuple[Sample, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)
    written_bytes: int = 0
    copies: Mapping[str, int] = field(default_factory=dict)
    retryable: bool = False
    pass_number: int = 0

    @property
    def duration_seconds(self) -> float:
        """Wall time of the run, switching and settling included."""
        return (self.finished - self.started).total_seconds()

    def add(self, samples: Iterable[Sample]) -> None:
        """Add samples."""
        self.samples = (*self.samples, *samples)

    def demote(self, outcome: Outcome, reason: str) -> None:
        """Lower a successful outcome; keep the first reason, unless the new one is a failure."""
        if self.outcome is Outcome.OK or (self.outcome.good and not outcome.good):
            self.outcome, self.reason = outcome, reason

    def fail(self, outcome: Outcome, reason: str) -> None:
        """Set a failed outcome and its reason; drop the samples, which do not count."""
        self.outcome, self.reason, self.samples = outcome, reason, ()


# --- latency buckets, the same for every case and node, so that they can be added
#
# Each is twice as long as the one before. Tools that count in binary bins (fio) have a bin edge at
# each bucket edge, so no operation is between two buckets.

_EDGES: Final = tuple(1 << bit for bit in range(15, 31))
"""Nanoseconds: 33 us to 1.07 s."""
LATENCY_BOUNDS: Final = (*(repr(edge / 1e9) for edge in _EDGES), "+Inf")
"""Upper bounds in seconds, as Prometheus spells them."""
SUM: Final = "sum"
"""Part of the sample with the sum of all latencies, in seconds."""


def latency_bound(nanoseconds: int) -> str:
    """Return the upper bound of a latency's bucket."""
    return LATENCY_BOUNDS[bisect_right(_EDGES, nanoseconds)]
