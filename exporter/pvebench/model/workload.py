"""Workload and Case as values. What a tool makes of the parameters is in `workloads/`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pvebench.model.scenario import Scenario

# --- How a pack wants its runs conducted: pauses, steadiness, what counts as noisy.


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyRule:
    """When a workload counts as steady: the rule of SNIA's solid state test specification.

    Over a window of intervals, the rate's range and the excursion of the fitted line must both
    be small against its mean.

    Attributes:
        interval_seconds: one value of the rate each.
        window: how many intervals are looked at.
        range_ratio: largest allowed (maximum - minimum) / mean.
        slope_ratio: largest allowed rise or fall of the fitted line over the window / mean.
        limit_seconds: when to stop waiting; the run is `not_steady` then.
    """

    interval_seconds: float = 5.0
    window: int = 5
    range_ratio: float = 0.20
    slope_ratio: float = 0.10
    limit_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How each run of a pack is made, beside its workload.

    Attributes:
        settle_seconds: pause between the switch and the job.
        noisy_ratio: a run whose intervals vary more (standard deviation / mean) is `noisy`.
        repeats: how many runs of a case each cycle makes.
    """

    settle_seconds: float = 0.5
    noisy_ratio: float = 0.5
    repeats: int = 1


class Direction(StrEnum):
    """Which way the data goes."""

    READ = "read"
    WRITE = "write"
    TRIM = "trim"


class Place(StrEnum):
    """What a tool can work on."""

    ANY = "any"
    DIRECTORY = "directory"
    DEVICE = "device"


class Caveat(StrEnum):
    """What a workload's numbers say beside the disk's speed, whatever the configuration."""

    CACHE = "measures cache"
    ZEROES = "measures zero handling"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is run against the disk. What follows from it is worked out once.

    Attributes:
        slug: stable name; ends in `@n` from the second definition on.
        tool: which workload room runs it (`fio` …).
        title: for people.
        parameters: the tool's own parameters, resolved: integers in base units, text, booleans.
        directions: which directions it measures.
        ramp_seconds: I/O before the measured window.
        runtime_seconds: the measured window.
        steady: what must be reached before the ramp; None: nothing.
        place: what the tool can work on.
        caveats: what a reader of the numbers must know.
        histogram: whether the tool is to give the whole distribution of its latencies as well. What
            is measured stays the same, so it is no part of the definition.
    """

    slug: str
    tool: str
    title: str
    parameters: Mapping[str, int | float | str | bool]
    directions: tuple[Direction, ...]
    ramp_seconds: float
    runtime_seconds: float
    steady: SteadyRule | None = None
    place: Place = Place.ANY
    caveats: tuple[Caveat, ...] = ()
    histogram: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))

    @property
    def spoils(self) -> bool:
        """Whether it leaves less than random data everywhere: the next case fills first.

        A tool with files of its own leaves the volume's data, or the test file, alone.
        """
        zeroes = Caveat.ZEROES in self.caveats and self.place is Place.ANY
        return Direction.TRIM in self.directions or zeroes

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the definition; the same slug with another one is an error."""
        meaning: list[Any] = [
            self.tool,
            dict(self.parameters),
            self.ramp_seconds,
            self.runtime_seconds,
        ]
        if self.steady is not None:
            meaning.append(asdict(self.steady))
        text = json.dumps(meaning, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Scenario × workload: the thing that has a history.

    Attributes:
        scale: what `--scale` multiplied the pack's sizes and times by.
    """

    scenario: Scenario
    workload: Workload
    scale: float = 1.0

    @cached_property
    def slug(self) -> str:
        """`scenario/workload`, as selectors and progress lines spell it."""
        return f"{self.scenario.slug}/{self.workload.slug}"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of both definitions: results compare only where it is equal.

        A scaled run never meets the others, even where no size or time of it came out another.
        """
        both = self.scenario.fingerprint[:8] + self.workload.fingerprint[:8]
        if self.scale == 1.0:
            return both
        return hashlib.sha256(f"{both}/{self.scale!r}".encode()).hexdigest()[:16]

    @cached_property
    def key(self) -> str:
        """Identity of the history: node, scenario, workload and the fingerprint."""
        return f"{self.scenario.node}/{self.slug}/{self.fingerprint}"
