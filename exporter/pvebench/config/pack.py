"""Packs: what is measured. One YAML file under `scenarios/` each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from pvebench.config.document import Document, read_document, unknown_key, validate
from pvebench.config.fields import Duration, Ratio, Scale, Size, Slug, Strict
from pvebench.config.options import Axes, Options, OptionValue
from pvebench.errors import ConfigError, Problem
from pvebench.model.conduct import Conduct, SteadyRule
from pvebench.model.layout import DEFAULT_FILE
from pvebench.model.scenario import Machine
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Workload
from pvebench.workloads import ROOMS

DEFAULT_STORAGE: Final = "local"


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
            interval_seconds=self.interval, window=self.window, range_ratio=self.range,
            slope_ratio=self.slope, limit_seconds=self.limit,
        )  # fmt: skip


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
    """

    pack: Slug
    title: StrictStr
    source: StrictStr = ""
    published: Slug | None = None
    relative_to: StrictStr = ""
    tier: Literal["wall", "core", "full"] = "core"
    every: Duration
    seed: StrictInt = 1
    axes: Axes
    fixed: Options = Options()
    exclude: tuple[Options, ...] = ()
    variants: tuple[Options, ...] = ()
    host: StrictBool = False
    volume: VolumeOptions
    guest: GuestOptions = GuestOptions()
    measure: MeasureOptions = MeasureOptions()
    workloads: tuple[dict[str, Any], ...]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A pack, resolved: what is measured, how, and how often.

    Attributes:
        source, published: of a pack that reproduces a published test; else empty.
        relative_to: slug of the scenario that results are shown relative to; empty: none.
        axes: option -> values; fixed options are axes with one value. Includes `storage`.
        excludes: combinations that the pack leaves out on purpose.
        variants: options put over the first value of each axis; one more scenario each.
        host: whether each storage has a row of the host itself.
        every_seconds: how often each case is due.
        file_name, file_bytes: the test file of scenarios with a filesystem.
        fill_passes, fill_compress: how the volume or the file is filled.
    """

    name: str
    title: str
    source: str
    published: str
    relative_to: str
    tier: str
    path: Path
    every_seconds: float
    seed: int
    axes: Mapping[str, tuple[OptionValue, ...]]
    excludes: tuple[Mapping[str, OptionValue], ...]
    variants: tuple[Mapping[str, OptionValue], ...]
    host: bool
    volume_bytes: int
    machine: Machine
    file_name: str
    file_bytes: int
    fill_passes: int
    fill_compress: int
    conduct: Conduct
    workloads: tuple[Workload, ...]


def load_pack(path: Path, *, scale: float = 1.0) -> Pack:
    """Return the pack in `path`; `scale` multiplies the pack's own scale.

    Raises:
        ConfigError: with every fault of the file.
    """
    document = read_document(path)
    file = validate(document, PackFile)
    factor = file.measure.scale * scale
    measure = file.measure
    volume_bytes = _whole_mib(file.volume.size * factor, least=16)
    file_bytes = file.volume.file or file.volume.size // 2
    fixed = {"storage": DEFAULT_STORAGE, **file.fixed.given()}
    axes = {key: (value,) for key, value in fixed.items()} | file.axes.given()
    return Pack(
        name=file.pack,
        title=file.title,
        source=" ".join(file.source.split()),
        published=file.published or "",
        relative_to=file.relative_to,
        tier=file.tier,
        path=path,
        every_seconds=file.every,
        seed=file.seed,
        axes=axes,
        excludes=tuple(exclude.given() for exclude in file.exclude),
        variants=tuple(variant.given() for variant in file.variants),
        host=file.host,
        volume_bytes=volume_bytes,
        machine=Machine(memory_bytes=file.guest.memory // KIB * KIB, cpus=file.guest.cpus),
        file_name=file.volume.file_name,
        file_bytes=min(_whole_mib(file_bytes * factor, least=8), volume_bytes),
        fill_passes=file.volume.fill,
        fill_compress=file.volume.compress,
        conduct=Conduct(
            settle_seconds=measure.settle, noisy_ratio=measure.noisy, repeats=measure.repeats
        ),
        workloads=_workloads(document, file, factor),
    )


def _whole_mib(size: float, *, least: int) -> int:
    """Return whole MiB in bytes, so that every format and sector size fits."""
    return max(least, round(size / MIB)) * MIB


def _workloads(document: Document, file: PackFile, factor: float) -> tuple[Workload, ...]:
    workloads: list[tuple[int, Workload]] = []
    problems: list[Problem] = []
    for index, entry in enumerate(file.workloads):
        try:
            made = [_workload(one, file.measure, factor) for one in _swept(entry)]
            workloads += [(index, workload) for workload in made]
        except ValueError as error:
            problems.append(_workload_problem(document, index, entry, str(error)))
    problems += _repeated(document, workloads) if not problems else []
    if not file.workloads:
        problems.append(document.problem(("workloads",), "no workloads: nothing would be run"))
    if problems:
        raise ConfigError(problems)
    return tuple(workload for _, workload in workloads)


def _swept(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one entry for each combination of options that are lists: a sweep in one line."""
    tool, options = next(iter(entry.items())) if len(entry) == 1 else ("", None)
    if not isinstance(options, dict):
        return [entry]
    lists = {key: value for key, value in options.items() if isinstance(value, list)}
    if empty := [key for key, value in lists.items() if not value]:
        raise ValueError(f"{empty[0]}: a sweep over no values measures nothing")
    return [
        {tool: {**options, **dict(zip(lists, values, strict=True))}}
        for values in itertools.product(*lists.values())
    ]


def _workload(entry: dict[str, Any], measure: MeasureOptions, factor: float) -> Workload:
    if len(entry) != 1:
        raise ValueError("wants exactly one key, the tool's name, with its options below it")
    tool, options = next(iter(entry.items()))
    if tool not in ROOMS:
        raise ValueError(unknown_key(str(tool), sorted(ROOMS)))
    if not isinstance(options, dict):
        raise ValueError(f"{tool}: wants a mapping of keys to values, found {options!r}")  # noqa: TRY004 # all complaints about a file are ValueErrors
    room = ROOMS[tool]
    workload = room.resolve(
        options,
        ramp_seconds=measure.ramp * factor,
        runtime_seconds=max(1.0, measure.runtime * factor),
    )
    if measure.steady is not None and room.open_ended:
        return replace(workload, steady=measure.steady.rule())
    return workload


def _workload_problem(
    document: Document, index: int, entry: dict[str, Any], message: str
) -> Problem:
    """Point at the option that the room complains about (`option: message`), or at the entry."""
    option = message.partition(":")[0]
    for tool, options in entry.items():
        if isinstance(options, dict) and option in options:
            return document.problem(("workloads", index, tool, option), f"{tool}.{message}")
    return document.problem(("workloads", index), message)


def _repeated(document: Document, workloads: list[tuple[int, Workload]]) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for index, workload in workloads:
        if workload.slug in first:
            message = f"same workload as entry {first[workload.slug] + 1}: {workload.slug}"
            problems.append(document.problem(("workloads", index), message))
        first.setdefault(workload.slug, index)
    return problems
