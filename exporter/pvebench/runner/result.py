"""What comes of a run, and the reasons for which a run that ended well counts less."""

from __future__ import annotations

import dataclasses
from typing import Final

from pvebench.model.conduct import Conduct
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.workload import Direction
from pvebench.runner.setup import Evidence
from pvebench.runner.steady import Settled, steadiness
from pvebench.workloads import Parsed

NOISY_INTERVALS: Final = 5
"""Fewer intervals say too little to call a run noisy."""


@dataclasses.dataclass(slots=True)
class Result:
    """What comes of a run, filled as it goes."""

    outcome: Outcome = Outcome.OK
    reason: str = ""
    retryable: bool = False
    filled: bool = True
    samples: list[Sample] = dataclasses.field(default_factory=list)
    evidence: Evidence = dataclasses.field(default_factory=dict)
    written_bytes: int = 0

    def demote(self, outcome: Outcome, reason: str) -> None:
        """Lower a good outcome; the first reason stays, unless the new one ends being good."""
        if self.outcome is Outcome.OK or (self.outcome.good and not outcome.good):
            self.outcome, self.reason = outcome, reason

    def fail(self, outcome: Outcome, reason: str) -> None:
        """End it with a reason; numbers of a run that went wrong are none."""
        self.outcome, self.reason = outcome, reason
        self.samples.clear()

    def settled(self, settled: Settled) -> None:
        """Take over what was seen while the disk settled."""
        self.samples += settled.samples()
        self.evidence["steady_rates"] = "\n".join(f"{rate:.1f}" for rate in settled.rates)
        if not settled.steady:
            self.demote(Outcome.NOT_STEADY, settled.reason())

    def judge_noise(self, conduct: Conduct, parsed: Parsed) -> None:
        """Call it noisy if its own intervals differ too much."""
        enough = [len(values) >= NOISY_INTERVALS for values in parsed.intervals.values()]
        variations = [one.value for one in parsed.samples if one.metric == "iops_variation"]
        worst = max(variations, default=0.0)
        if all(enough) and worst > conduct.noisy_ratio:
            self.demote(
                Outcome.NOISY,
                f"the intervals vary by {worst:.0%} of their mean, "
                f"more than {conduct.noisy_ratio:.0%}",
            )


def slopes(parsed: Parsed) -> list[Sample]:
    """Return how much the rate still moved within the measured window, for each direction."""
    found = {name: steadiness(values) for name, values in parsed.intervals.items()}
    return [
        Sample("iops_slope", Direction(name), one.slope_ratio, Unit.RATIO)
        for name, one in found.items()
        if one is not None
    ]
