"""A pack's file as it is written: every key, its type and its rules."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from pvebench.config.options import Axes, Options
from pvebench.config.workloads import Entry
from pvebench.fields import Duration, Ratio, Scale, Size, Slug, Strict, Text
from pvebench.model.conduct import SteadyRule
from pvebench.model.layout import DEFAULT_FILE
from pvebench.model.units import MIB

MOST_CASES: Final = 20_000
"""At ten seconds each, more than two days without a pause."""


class VolumeOptions(Strict):
    """The test volume; its sizes are multiplied by the pack's scale.

    Attributes:
        file: with a filesystem, size of the test file; None: half the volume.
        file_name: its name in the root of the filesystem.
        fill: how often everything is written before it is measured.
        compress: how many per cent of that data can be compressed away.
    """

    size: Size
    fill: StrictInt = Field(default=1, ge=1, le=5)
    compress: StrictInt = Field(default=0, ge=0, le=99)
    file: Size | None = None
    file_name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = DEFAULT_FILE

    @field_validator("size")
    @classmethod
    def _not_tiny(cls, size: int) -> int:
        if size < 16 * MIB:
            raise ValueError(f"{size} bytes is too small to measure a disk; use at least 16M")
        return size


class GuestOptions(Strict):
    """The VM around the disk."""

    memory: Size = 768 * MIB
    cpus: StrictInt = Field(default=1, ge=1, le=64)


class SteadyOptions(Strict):
    """Run the workload until it is steady before measuring; see `model.conduct.SteadyRule`."""

    interval: Duration = 5.0
    window: StrictInt = Field(default=5, ge=3, le=100)
    range: Ratio = 0.20
    slope: Ratio = 0.10
    limit: Duration = 600.0

    @model_validator(mode="after")
    def _long_enough(self) -> SteadyOptions:
        if self.interval < 0.5:
            raise ValueError("interval: less than half a second is mostly noise; use at least 1s")
        if self.limit < self.interval * self.window:
            raise ValueError("limit: shorter than one window of intervals")
        return self

    def rule(self) -> SteadyRule:
        """Return it as a value of the model."""
        return SteadyRule(
            interval_seconds=self.interval,
            window=self.window,
            range_ratio=self.range,
            slope_ratio=self.slope,
            limit_seconds=self.limit,
        )


class MeasureOptions(Strict):
    """How each run is measured; times in seconds.

    Attributes:
        ramp: I/O before the window, not counted.
        runtime: the measured window.
        settle: pause between the switch and the job.
        scale: multiplies volume size, ramp and runtime, so one pack serves quick and thorough use.
        steady: wait for steady state before each fio run; None: measure right after the ramp.
        noisy: intervals that vary more (standard deviation / mean) make a run `noisy`.
        repeats: runs of each case in a cycle.
    """

    ramp: Duration = 2.0
    runtime: Duration = 8.0
    settle: Duration = 0.5
    scale: Scale = 1.0
    steady: SteadyOptions | None = None
    noisy: Ratio = 0.5
    repeats: StrictInt = Field(default=1, ge=1, le=100)

    @field_validator("runtime")
    @classmethod
    def _some_time(cls, runtime: float) -> float:
        if runtime < 1:
            raise ValueError("less than one second measures nothing; use at least 1s")
        return runtime


class PackFile(Strict):
    """The file as written; `Pack` is what it means.

    Attributes:
        axes: swept in full: every value with every other.
        exclude: combinations to leave out.
        variants: options to try one entry at a time, over the first value of each axis.
        source: where the set-up comes from, for packs that reproduce somebody's.
        published: name of the published table that the results can be shown beside.
        relative_to: slug of the scenario whose results the others are shown relative to.
        host: whether the host itself runs the workloads too, without a VM, on each storage.
        lxc: whether a container runs them too, on each storage.
    """

    pack: Slug
    title: Text
    source: Text = ""
    published: Slug | None = None
    relative_to: Text = ""
    tier: Literal["wall", "core", "full"] = "core"
    every: Duration
    seed: StrictInt = 1
    axes: Axes
    fixed: Options = Options()
    exclude: tuple[Options, ...] = ()
    variants: tuple[Options, ...] = ()
    host: StrictBool = False
    lxc: StrictBool = False
    volume: VolumeOptions
    guest: GuestOptions = GuestOptions()
    measure: MeasureOptions = MeasureOptions()
    workloads: tuple[Entry, ...]

    @field_validator("workloads")
    @classmethod
    def _some(cls, workloads: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if not workloads:
            raise ValueError("no workloads: nothing would be run")
        return workloads

    @field_validator("every")
    @classmethod
    def _not_at_once(cls, every: float) -> float:
        if every < 1:
            raise ValueError("less than one second leaves no time for a run; use at least 1s")
        return every

    @model_validator(mode="after")
    def _not_too_many(self) -> PackFile:
        scenarios = math.prod(len(values) for values in self.axes.given().values())
        cases = (scenarios + len(self.variants)) * sum(len(one.options) for one in self.workloads)
        if cases > MOST_CASES:
            raise ValueError(f"axes: {cases} cases; at most {MOST_CASES} can be looked after")
        return self

    @model_validator(mode="after")
    def _each_option_once(self) -> PackFile:
        both = sorted(set(self.axes.given()) & set(self.fixed.given()))
        if both:
            raise ValueError(f"both an axis and fixed: {', '.join(both)}; keep one of the two")
        present = {*self.axes.given(), *self.fixed.given()}
        absent = [key for key in ("bus", "format", "cache") if key not in present]
        if absent:
            raise ValueError(f"{', '.join(absent)}: give each as an axis or under fixed")
        if any(not exclude.given() for exclude in self.exclude):
            raise ValueError("an empty entry of exclude would exclude everything")
        if any(not variant.given() for variant in self.variants):
            raise ValueError("an empty entry of variants would vary nothing")
        return self
