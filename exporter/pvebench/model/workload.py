"""Workload and case as values. `workloads/` has the tools that use the parameters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from pvebench.model.scenario import Scenario

# --- operations on the disk or its storage while a workload runs


@dataclass(frozen=True, slots=True)
class DiskOperation:
    """Operation while a workload runs.

    Attributes:
        words: description.
        copies: maximum number of copies of the volume that it creates.
        in_storage: whether it works within the storage of the volume, with a snapshot; else it
            writes its copies to its target.
    """

    words: str
    copies: int = 1
    in_storage: bool = False


FLEECING: Final = "backup-fleecing"
SNAPSHOT_RAM: Final = "snapshot-ram"
NEIGHBOR: Final = "neighbor"
"""The load of another VM on the same storage."""
DISK_OPERATIONS: Final[Mapping[str, DiskOperation]] = {
    "backup": DiskOperation("a backup"),
    FLEECING: DiskOperation("a backup with fleecing", copies=2),
    "move": DiskOperation("a move of the disk"),
    "restore": DiskOperation("the restore of a backup", copies=2),
    "snapshot": DiskOperation("a snapshot", in_storage=True),
    SNAPSHOT_RAM: DiskOperation("a snapshot with the memory of the VM", in_storage=True),
    "delete-snapshot": DiskOperation("the removal of a snapshot", in_storage=True),
    NEIGHBOR: DiskOperation("another VM", copies=0),
}
"""`during` of a workload -> its operation."""
SNAPSHOT_OPERATIONS: Final = tuple(n for n, kind in DISK_OPERATIONS.items() if kind.in_storage)
COPIES: Final = tuple(n for n in DISK_OPERATIONS if n not in {*SNAPSHOT_OPERATIONS, NEIGHBOR})
MAX_VMS: Final = 8
"""Maximum number of VMs that run a workload at the same time; memory limits it before."""


def operation_words(during: str) -> str:
    """Return the description of an operation; runs of others may have more than are known."""
    return DISK_OPERATIONS[during].words if during in DISK_OPERATIONS else during


def operation_copies(during: str) -> int:
    """Return the maximum number of copies of the volume that an operation creates."""
    known = DISK_OPERATIONS.get(during, DiskOperation(during))
    return known.copies if during else 0


# --- conduct of a pack's runs: pauses, steadiness, noise limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyRule:
    """Rule for a steady workload, from SNIA's solid state test specification.

    Over a window of intervals, the rate's range and the excursion of the fitted line must both be
    small relative to its mean.

    Attributes:
        interval_seconds: time per value of the rate.
        window: number of intervals.
        range_ratio: maximum of (maximum - minimum) / mean.
        slope_ratio: maximum rise or fall of the fitted line over the window / mean.
        limit_seconds: maximum wait; the run is `not_steady` then.
    """

    interval_seconds: float = 5.0
    window: int = 5
    range_ratio: float = 0.20
    slope_ratio: float = 0.10
    limit_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """Conduct of each run of a pack, independent of its workload.

    Attributes:
        settle_seconds: pause between the switch and the job.
        noisy_ratio: a run whose intervals vary more (standard deviation / mean) is `noisy`.
        repeats: runs of a case per cycle.
    """

    settle_seconds: float = 0.5
    noisy_ratio: float = 0.5
    repeats: int = 1


class Direction(StrEnum):
    """Direction of I/O."""

    READ = "read"
    WRITE = "write"
    TRIM = "trim"


class WorksOn(StrEnum):
    """Object that a tool can work on."""

    ANY = "any"
    DIRECTORY = "directory"
    DEVICE = "device"


class Caveat(StrEnum):
    """Influence on a workload's numbers other than the disk's speed, in every configuration."""

    CACHE = "measures cache"
    ZEROES = "measures zero handling"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Workload of the disk. Derived values are computed once.

    Attributes:
        slug: stable name; ends in `@n` from the second definition on.
        tool: name of its tool (`fio` …).
        title: display name.
        parameters: the tool's own parameters, resolved: integers in base units, text, booleans.
        directions: directions that it measures.
        ramp_seconds: I/O before the measured window.
        runtime_seconds: the measured window; 0: its length is part of the result.
        steady: rule to be met before the ramp; None: none.
        place: object that the tool can work on.
        caveats: other influences on its numbers.
        histogram: whether the tool also returns the distribution of its latencies. It does not
            change the workload, so it is not part of the definition.
    """

    slug: str
    tool: str
    title: str
    parameters: Mapping[str, int | float | str | bool]
    directions: tuple[Direction, ...]
    ramp_seconds: float = 0.0
    runtime_seconds: float = 0.0
    steady: SteadyRule | None = None
    place: WorksOn = WorksOn.ANY
    caveats: tuple[Caveat, ...] = ()
    histogram: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))

    @property
    def first_touch(self) -> bool:
        """Whether nothing was written since the newest snapshot when it begins."""
        return self.parameters.get("touch") == "first"

    @property
    def during(self) -> str:
        """Operation on the disk while the workload runs; empty: none."""
        return str(self.parameters.get("during", ""))

    @property
    def vms(self) -> int:
        """Number of VMs that run it at the same time."""
        return int(self.parameters.get("vms", 1))

    @property
    def further_vms(self) -> int:
        """Number of VMs beside the benchmark VM, a neighbor included."""
        return self.vms - 1 + (self.during == NEIGHBOR)

    @property
    def spoils(self) -> bool:
        """Whether it leaves anything but random data, so that the next case must fill first.

        A tool that creates its own files does not change the volume's data or the test file.
        """
        zeroes = Caveat.ZEROES in self.caveats and self.place is WorksOn.ANY
        return Direction.TRIM in self.directions or zeroes

    @property
    def as_loaded(self) -> Workload:
        """The workload with the shortest steady phase in its ramp, for estimates."""
        if self.steady is None:
            return self
        shortest = self.steady.interval_seconds * self.steady.window
        return replace(self, ramp_seconds=self.ramp_seconds + shortest)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the definition; one slug with two digests is an error."""
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
    """Scenario × workload; each case has a history.

    Attributes:
        scale: factor of `--scale` for the pack's sizes and times.
    """

    scenario: Scenario
    workload: Workload
    scale: float = 1.0

    @property
    def copied_bytes(self) -> int:
        """Maximum bytes that its operation writes."""
        memory = self.scenario.machine.memory_bytes * (self.workload.during == SNAPSHOT_RAM)
        return self.scenario.volume_bytes * operation_copies(self.workload.during) + memory

    @cached_property
    def slug(self) -> str:
        """`scenario/workload`, as in selectors and progress lines."""
        return f"{self.scenario.slug}/{self.workload.slug}"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of both definitions: results are comparable only if it is equal.

        A scaled run is never compared with others, even if scaling changed none of its sizes and
        times.
        """
        both = self.scenario.fingerprint[:8] + self.workload.fingerprint[:8]
        if self.scale == 1.0:
            return both
        return hashlib.sha256(f"{both}/{self.scale!r}".encode()).hexdigest()[:16]

    @cached_property
    def key(self) -> str:
        """Identity of the history: node, scenario, workload and the fingerprint."""
        return case_key(self.scenario.node, self.slug, self.fingerprint)


def case_key(node: str, slug: str, fingerprint: str) -> str:
    """Return the key of a case; `slug`: `scenario/workload`."""
    return f"{node}/{slug}/{fingerprint}"
