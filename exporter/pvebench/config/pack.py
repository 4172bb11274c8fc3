"""Packs: what is measured. One YAML file under `scenarios/` each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from pvebench.config.document import Document, read_document, unknown_key, validate
from pvebench.config.fields import Duration, Scale, Size, Slug, Strict
from pvebench.errors import ConfigError, Problem
from pvebench.model.disk import Aio, Bus, Cache, Format
from pvebench.model.scenario import Machine
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Direction, Workload
from pvebench.workloads import ROOMS

OptionValue = Bus | Format | Cache | Aio | bool | str
DEFAULT_STORAGE: Final = "local"


class Options(Strict):
    """Disk options, each at most once: `fixed`, and the entries of `exclude`."""

    storage: Slug | None = None
    bus: Bus | None = None
    format: Format | None = None
    cache: Cache | None = None
    aio: Aio | None = None
    iothread: StrictBool | None = None
    detect_zeroes: StrictBool | None = None

    def given(self) -> dict[str, OptionValue]:
        """Return the options that are set."""
        return {key: value for key, value in self if value is not None}


class Axes(Strict):
    """Swept options: each is a list of the values to go through."""

    storage: tuple[Slug, ...] | None = None
    bus: tuple[Bus, ...] | None = None
    format: tuple[Format, ...] | None = None
    cache: tuple[Cache, ...] | None = None
    aio: tuple[Aio, ...] | None = None
    iothread: tuple[StrictBool, ...] | None = None
    detect_zeroes: tuple[StrictBool, ...] | None = None

    @field_validator("*")
    @classmethod
    def _some_and_once(cls, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if values is None:
            return None
        if not values:
            raise ValueError("an axis without values makes an empty matrix; name at least one")
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            raise ValueError(f"value given twice: {', '.join(twice)}")
        return values

    def given(self) -> dict[str, tuple[OptionValue, ...]]:
        """Return the axes that are set, in the order of the model's fields."""
        return {key: values for key, values in self if values is not None}


class VolumeOptions(Strict):
    """The test volume. `size` is multiplied by the pack's scale."""

    size: Size

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


class MeasureOptions(Strict):
    """How each run is measured; times in seconds.

    Attributes:
        ramp: I/O before the window, not counted.
        runtime: the measured window.
        settle: pause between the switch and the job.
        scale: multiplies volume size, ramp and runtime, so one pack serves quick and thorough use.
    """

    ramp: Duration = 2.0
    runtime: Duration = 8.0
    settle: Duration = 0.5
    scale: Scale = 1.0

    @field_validator("runtime")
    @classmethod
    def _some_time(cls, runtime: float) -> float:
        if runtime < 1:
            raise ValueError("less than one second measures nothing; use at least 1s")
        return runtime


class PackFile(Strict):
    """The file as written; `Pack` is what it means."""

    pack: Slug
    title: StrictStr
    tier: Literal["wall", "core", "full"] = "core"
    every: Duration
    seed: StrictInt = 1
    axes: Axes
    fixed: Options = Options()
    exclude: tuple[Options, ...] = ()
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
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A pack, resolved: what is measured, how, and how often.

    Attributes:
        axes: option -> values; fixed options are axes with one value. Includes `storage`.
        excludes: combinations that the pack leaves out on purpose.
        every_seconds: how often each case is due.
    """

    name: str
    title: str
    tier: str
    path: Path
    every_seconds: float
    seed: int
    axes: Mapping[str, tuple[OptionValue, ...]]
    excludes: tuple[Mapping[str, OptionValue], ...]
    volume_bytes: int
    machine: Machine
    settle_seconds: float
    workloads: tuple[Workload, ...]


def load_pack(path: Path, *, scale: float = 1.0) -> Pack:
    """Return the pack in `path`; `scale` multiplies the pack's own scale.

    Raises:
        ConfigError: with every fault of the file.
    """
    document = read_document(path)
    file = validate(document, PackFile)
    factor = file.measure.scale * scale
    fixed = {"storage": DEFAULT_STORAGE, **file.fixed.given()}
    axes = {key: (value,) for key, value in fixed.items()} | file.axes.given()
    return Pack(
        name=file.pack,
        title=file.title,
        tier=file.tier,
        path=path,
        every_seconds=file.every,
        seed=file.seed,
        axes=axes,
        excludes=tuple(exclude.given() for exclude in file.exclude),
        # Whole MiB, so that every format and sector size fits.
        volume_bytes=max(16, round(file.volume.size * factor / MIB)) * MIB,
        machine=Machine(memory_bytes=file.guest.memory // KIB * KIB, cpus=file.guest.cpus),
        settle_seconds=file.measure.settle,
        workloads=_workloads(document, file, factor),
    )


def _workloads(document: Document, file: PackFile, factor: float) -> tuple[Workload, ...]:
    workloads: list[Workload] = []
    problems: list[Problem] = []
    for index, entry in enumerate(file.workloads):
        try:
            workloads.append(_workload(entry, file.measure, factor))
        except ValueError as error:
            problems.append(_workload_problem(document, index, entry, str(error)))
    problems += _repeated(document, workloads) if not problems else []
    if not file.workloads:
        problems.append(document.problem(("workloads",), "no workloads: nothing would be run"))
    if problems:
        raise ConfigError(problems)
    return tuple(workloads)


def _workload(entry: dict[str, Any], measure: MeasureOptions, factor: float) -> Workload:
    if len(entry) != 1:
        raise ValueError("wants exactly one key, the tool's name, with its options below it")
    tool, options = next(iter(entry.items()))
    if tool not in ROOMS:
        raise ValueError(unknown_key(str(tool), sorted(ROOMS)))
    if not isinstance(options, dict):
        raise ValueError(f"{tool}: wants a mapping of keys to values, found {options!r}")  # noqa: TRY004 # all complaints about a file are ValueErrors
    workload = ROOMS[tool].resolve(
        options,
        ramp_seconds=measure.ramp * factor,
        runtime_seconds=max(1.0, measure.runtime * factor),
    )
    if Direction.TRIM in workload.directions:
        raise ValueError("rw: trim needs a disk with discard on, which packs cannot ask for yet")
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


def _repeated(document: Document, workloads: list[Workload]) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for index, workload in enumerate(workloads):
        if workload.slug in first:
            message = f"same workload as entry {first[workload.slug] + 1}: {workload.slug}"
            problems.append(document.problem(("workloads", index), message))
        first.setdefault(workload.slug, index)
    return problems
