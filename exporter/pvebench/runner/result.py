"""Result of a run, filled step by step: its outcome, samples and evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pvebench.model import figures
from pvebench.model.run import Outcome, Sample
from pvebench.model.workload import Conduct, Direction
from pvebench.runner.prepare import Evidence
from pvebench.runner.steady import Settled, steadiness
from pvebench.workloads import Parsed

_VARIATIONS: Final = (figures.IOPS_VARIATION.name, figures.VMS_VARIATION.name)
NOISY_INTERVALS: Final = 5
"""Minimum number of intervals for the outcome `noisy`."""


@dataclass(slots=True)
class Result:
    """Result of a run, filled step by step."""

    outcome: Outcome = Outcome.OK
    reason: str = ""
    retryable: bool = False
    filled: bool = True
    samples: list[Sample] = field(default_factory=list)
    evidence: Evidence = field(default_factory=dict)
    written_bytes: int = 0

    def demote(self, outcome: Outcome, reason: str) -> None:
        """Lower a successful outcome; keep the first reason, unless the new one is a failure."""
        if self.outcome is Outcome.OK or (self.outcome.good and not outcome.good):
            self.outcome, self.reason = outcome, reason

    def fail(self, outcome: Outcome, reason: str) -> None:
        """Set a failed outcome and its reason; drop the samples, which do not count."""
        self.outcome, self.reason = outcome, reason
        self.samples.clear()

    def settled(self, settled: Settled) -> None:
        """Add the samples and rates of the settle phase."""
        self.samples += settled.samples()
        self.evidence["steady_rates"] = "\n".join(f"{rate:.1f}" for rate in settled.rates)
        if not settled.steady:
            self.demote(Outcome.NOT_STEADY, settled.reason())

    def check_noise(self, conduct: Conduct, parsed: Parsed) -> None:
        """Set the outcome `noisy` if the intervals of the run, or of one VM, differ too much."""
        enough = [len(values) >= NOISY_INTERVALS for values in parsed.intervals.values()]
        every = (*parsed.samples, *self.samples)
        variations = [s.value for s in every if s.metric in _VARIATIONS]
        worst = max(variations, default=0.0)
        if all(enough) and worst > conduct.noisy_ratio:
            variation = f"interval variation {_over(worst, conduct.noisy_ratio)}"
            self.demote(Outcome.NOISY, f"{variation}; raise `runtime`, or reduce other load")


def _over(value: float, limit: float) -> str:
    """Return `52% exceeds 50%`, with decimals where both would look alike."""
    pairs = [(f"{value:.{digits}%}", f"{limit:.{digits}%}") for digits in range(4)]
    shown, most = next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])
    return f"{shown} exceeds {most}"


def slopes(parsed: Parsed) -> list[Sample]:
    """Return the slope of the rate within the measured window, for each direction."""
    series = {name: steadiness(values) for name, values in parsed.intervals.items()}
    return [
        figures.IOPS_SLOPE.sample(steady.slope_ratio, Direction(name))
        for name, steady in series.items()
        if steady is not None
    ]
