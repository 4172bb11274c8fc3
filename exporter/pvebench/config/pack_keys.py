"""Schema of pack files: every key, its type and its rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import Field as DataField
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from pvebench.drivers.vm_lifecycle import GUEST_SYSTEMS
from pvebench.fields import (
    Duration,
    FilePath,
    OneOf,
    Ratio,
    Scale,
    Size,
    Slug,
    Strict,
    Text,
    WholeMib,
    require_once,
)
from pvebench.model.disk import Disk
from pvebench.model.scenario import DEFAULT_FILE, LAYOUT_OPTIONS, LINUX, Layout
from pvebench.model.units import GIB, MIB, format_size
from pvebench.model.workload import SteadyRule
from pvebench.plugins import plugins
from pvebench.workloads import TOOLS, Tool, ToolOptions

# --- Options that a pack may fix, exclude or sweep, generated from the model's fields.

OptionValue = bool | int | str
_STRICT: Final = {bool: StrictBool, int: StrictInt, str: StrictStr}


def _kind(field: DataField[Any], hint: Any) -> Any:
    """Return the type of an option in a pack."""
    rules = field.metadata
    plain = next((member for member in get_args(hint) if member is not type(None)), hint)
    kind = Size if rules.get("size") else _STRICT.get(plain, plain)
    if rules.get("low") is not None:
        kind = Annotated[kind, Field(ge=rules["low"], le=rules["high"])]
    return Annotated[kind, AfterValidator(rules["check"])] if rules.get("check") else kind


def _kinds(of: type[Disk | Layout]) -> dict[str, Any]:
    hints = get_type_hints(of)
    return {field.name: _kind(field, hints[field.name]) for field in fields(of)}


_LAYOUT: Final = _kinds(Layout)
_OPTIONS: Final[dict[str, Any]] = {
    "storage": Slug,
    **_kinds(Disk),
    **{name: _LAYOUT[name] for name in _LAYOUT if name in LAYOUT_OPTIONS},
}


class OptionsBase(Strict):
    """Options, each at most once."""

    def explicit(self) -> dict[str, OptionValue]:
        """Return the options that the file sets."""
        return {key: value for key, value in self if value is not None}


class AxesBase(Strict):
    """Swept options, each with a list of values."""

    @field_validator("*")
    @classmethod
    def _some_and_once(cls, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if values is None:
            return None
        if not values:
            raise ValueError("axis without values; add at least one")
        require_once(values, "duplicate value")
        return values

    def explicit(self) -> dict[str, tuple[OptionValue, ...]]:
        """Return the axes that the file sets, in the order of the model's fields."""
        return {key: values for key, values in self if values is not None}


if TYPE_CHECKING:
    Options = OptionsBase
    Axes = AxesBase

else:  # the type checker cannot see through create_model
    Options = create_model(
        "Options",
        __base__=OptionsBase,
        __doc__=OptionsBase.__doc__,
        **{key: (kind | None, None) for key, kind in _OPTIONS.items()},
    )
    Axes = create_model(
        "Axes",
        __base__=AxesBase,
        __doc__=AxesBase.__doc__,
        **{key: (tuple[kind, ...] | None, None) for key, kind in _OPTIONS.items()},
    )


# --- Entries of `workloads:`, each with the options of one tool, or lists of options.

MAX_COMBINATIONS: Final = 10_000


def _combinations(entry: Any) -> list[Any]:
    """Return the options of each combination of an entry's lists."""
    if not isinstance(entry, dict):
        return [entry]
    lists = {key: value for key, value in entry.items() if isinstance(value, list)}
    if empty := [key for key, value in lists.items() if not value]:
        raise ValueError(f"{empty[0]}: empty list; add at least one value")
    if (count := math.prod(len(values) for values in lists.values())) > MAX_COMBINATIONS:
        raise ValueError(f"{count} combinations in one entry; use at most {MAX_COMBINATIONS}")
    return [
        {**entry, **dict(zip(lists, values, strict=True))}
        for values in itertools.product(*lists.values())
    ]


class _Swept:
    """A tool's options, of which each may be a list. The schema is slow, and rarely needed."""

    def __init__(self, options: type[ToolOptions]) -> None:
        self._options = options

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        schema = self._options.model_json_schema()
        schema["properties"] = {
            key: {"anyOf": [value, {"type": "array", "items": value, "minItems": 1}]}
            for key, value in schema["properties"].items()
        }
        return schema


def _field(tool: Tool) -> tuple[Any, Any]:
    kind = Annotated[
        tuple[tool.options, ...],  # type: ignore[name-defined] # known at run time
        BeforeValidator(_combinations),
        _Swept(tool.options),
    ]
    return kind, ()


class EntryBase(Strict):
    """One entry: the name of a tool, with its options below it."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _one_tool(self) -> EntryBase:
        if len(self.model_fields_set) != 1:
            raise ValueError("expected exactly one key: a tool's name, with its options below it")
        return self

    @property
    def tool(self) -> str:
        """The tool's name."""
        return next(iter(self.model_fields_set))

    @property
    def options(self) -> tuple[ToolOptions, ...]:
        """The tool's options, once per combination."""
        return tuple(getattr(self, self.tool))


if TYPE_CHECKING:
    Entry = EntryBase

else:  # the type checker cannot see through create_model
    Entry = create_model(
        "Entry",
        __base__=EntryBase,
        __doc__=EntryBase.__doc__,
        **{name: _field(tool) for name, tool in TOOLS.items()},
    )


# --- The other keys.

MAX_CASES: Final = 20_000
"""At ten seconds each, more than two days without a pause."""


def _least(limit: int, problem: str) -> AfterValidator:
    """Return a validator that rejects a value below a limit; `problem` may name the value."""

    def check(value: float) -> float:
        if value < limit:
            raise ValueError(problem.format(value))
        return value

    return AfterValidator(check)


_BENCHMARK: Final = _least(16 * MIB, "{} bytes are too small for a benchmark; use at least 16M")


class VolumeOptions(Strict):
    """The test volume. The pack's scale multiplies its sizes.

    Attributes:
        size: size of the volume.
        fill: number of complete fills before the first run.
        compress: compressible share of the filled data, in percent.
        file: size of the test file on a filesystem; default: half of the volume.
        file_name: name of the test file in the root of the filesystem.
    """

    size: Annotated[WholeMib, _BENCHMARK] = GIB
    fill: StrictInt = Field(default=1, ge=1, le=5)
    compress: StrictInt = Field(default=0, ge=0, le=99)
    file: WholeMib | None = None
    file_name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = DEFAULT_FILE


MIN_MEMORY: Final = 512 * MIB
"""Smallest memory of the VM. The guest image is unpacked to a tmpfs while its archive is also in
memory, and a tmpfs gets half of the rest (`size` in tmpfs(5)). With less, no VM ever answers."""


class GuestOptions(Strict):
    """The benchmark VM.

    Attributes:
        memory: memory size, at least `MIN_MEMORY`.
        cpus: number of virtual CPUs.
        os: system of the guest: `linux` is the guest image of pvebench.
        image: disk image that another system boots from, through an overlay; driver `qemu`.
        template: ID of a template, or of a VM that is off, to clone; driver `proxmox`.
        fio: `fio.exe` to copy into another system that has none.
    """

    memory: WholeMib = 768 * MIB
    cpus: StrictInt = Field(default=1, ge=1, le=64)
    os: Annotated[str, OneOf(LINUX, *GUEST_SYSTEMS.names)] = LINUX
    image: FilePath | None = None
    template: Annotated[StrictInt, Field(ge=100, le=999_999_999)] | None = None
    fio: FilePath | None = None

    @model_validator(mode="after")
    def _boots(self) -> GuestOptions:
        system = GUEST_SYSTEMS.get(self.os)
        least = system.min_memory if system else MIN_MEMORY
        if self.memory < least:
            raise ValueError(
                f"memory: the guest does not boot with {format_size(self.memory)}; use at least "
                f"{format_size(least)}"
            )
        origins = {"image": self.image, "template": self.template, "fio": self.fio}
        given = [name for name, value in origins.items() if value is not None]
        if system is None and given:
            raise ValueError(f"{given[0]}: os linux boots pvebench's own guest image; remove it")
        if system is not None and len({*given} - {"fio"}) != 1:
            raise ValueError(
                f"os: {self.os} needs image, the file of an installed disk, or template, the ID of "
                "a VM; give one of them, not both"
            )
        return self


class SteadyOptions(Strict):
    """Steady-state rule: the workload runs until it is steady, then the measurement starts.

    Attributes:
        interval: length of one interval, in seconds.
        window: number of intervals that must be steady.
        range: maximum difference of the window's intervals, as a share of their mean.
        slope: maximum trend over the window, as a share of the mean.
        limit: maximum time in seconds; without a steady window, the run is `not_steady`.
    """

    interval: Duration = 5.0
    window: StrictInt = Field(default=5, ge=3, le=100)
    range: Ratio = 0.20
    slope: Ratio = 0.10
    limit: Duration = 600.0

    @model_validator(mode="after")
    def _long_enough(self) -> SteadyOptions:
        if self.interval < 0.5:
            raise ValueError("interval: below 0.5 s it is mostly noise; use at least 1s")
        if self.limit < self.interval * self.window:
            raise ValueError("limit: shorter than one window; use at least interval × window")
        return self

    def rule(self) -> SteadyRule:
        """Return the rule as a model value."""
        return SteadyRule(
            interval_seconds=self.interval,
            window=self.window,
            range_ratio=self.range,
            slope_ratio=self.slope,
            limit_seconds=self.limit,
        )


class MeasureOptions(Strict):
    """Measurement parameters of each run; times in seconds.

    Attributes:
        ramp: I/O before the measured window, not counted.
        runtime: length of the measured window.
        settle: pause between the switch and the job.
        scale: factor for volume size, ramp and runtime, for quick and thorough use of one pack.
        steady: steady-state rule before each fio run; default: measure right after the ramp.
        noisy: maximum variation of the intervals (standard deviation / mean); above it, the run is
            `noisy`.
        repeats: number of runs of each case per cycle.
    """

    ramp: Duration = 2.0
    runtime: Annotated[Duration, _least(1, "too short for a measurement; use at least 1s")] = 8.0
    settle: Duration = 0.5
    scale: Scale = 1.0
    steady: SteadyOptions | None = None
    noisy: Ratio = 0.5
    repeats: StrictInt = Field(default=1, ge=1, le=100)


def _entries(workloads: Any) -> Any:
    """Return the entries of a mapping from tool to options as a list."""
    if not isinstance(workloads, dict):
        return workloads
    return [{key: item} for key, item in workloads.items()]


class PackFile(Strict):
    """A pack: the cases to measure, and how.

    Attributes:
        pack: name of the pack.
        title: one-line description; default: the name.
        source: origin of the test, for packs that reproduce a published one.
        published: name of the published table to compare the results with.
        relative_to: slug of the scenario to which the results are relative.
        tier: importance; `core` packs run first after an environment change.
        every: interval of each case.
        seed: seed of the order of the cases.
        axes: swept options; every value is combined with every other. Without bus, format or cache,
            here or in `fixed`, they are scsi, raw and none.
        fixed: options with a fixed value.
        exclude: combinations to exclude.
        variants: options to try separately, each with the first value of every axis.
        host: whether the host also runs the workloads on each storage, without a VM.
        lxc: whether a container also runs the workloads on each storage.
        volume: the test volume.
        guest: the benchmark VM.
        measure: measurement parameters of each run.
        workloads: the workloads, each with one tool.
    """

    explained: ClassVar[Mapping[str, str]] = dict.fromkeys(
        Axes.model_fields, "it is an option; write it below `fixed`, or its values below `axes`"
    )

    pack: Slug
    title: Text = ""
    source: Text = ""
    published: Slug | None = None
    relative_to: Text = ""
    tier: Literal["wall", "core", "full"] = "core"
    every: Annotated[Duration, _least(1, "too short for a run; use at least 1s")] = 21600.0
    seed: StrictInt = 1
    axes: Axes = Axes()
    fixed: Options = Options()
    exclude: tuple[Options, ...] = ()
    variants: tuple[Options, ...] = ()
    host: StrictBool = False
    lxc: StrictBool = False
    volume: VolumeOptions = VolumeOptions()
    guest: GuestOptions = GuestOptions()
    measure: MeasureOptions = MeasureOptions()
    workloads: Annotated[tuple[Entry, ...], BeforeValidator(_entries)]

    @field_validator("workloads")
    @classmethod
    def _some(cls, workloads: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if not workloads:
            raise ValueError("no workloads; add at least one")
        return workloads

    @field_validator("lxc")
    @classmethod
    def _measured(cls, lxc: bool) -> bool:
        if lxc and "lxc" not in {*plugins("backends"), *plugins("node_backends")}:
            raise ValueError("containers need a plug-in; install package pvebench_lab")
        return lxc

    @model_validator(mode="after")
    def _not_too_many(self) -> PackFile:
        scenarios = math.prod(len(values) for values in self.axes.explicit().values())
        cases = (scenarios + len(self.variants)) * sum(
            len(entry.options) for entry in self.workloads
        )
        if cases > MAX_CASES:
            raise ValueError(f"axes: {cases} cases; use at most {MAX_CASES}")
        return self

    @field_validator("fixed")
    @classmethod
    def _each_option_once(cls, fixed: Options, info: ValidationInfo) -> Options:
        axes = info.data["axes"].explicit() if "axes" in info.data else {}
        for key in sorted({*axes} & {*fixed.explicit()}):
            raise ValueError(f"{key}: also in axes; keep one of the two")
        return fixed

    @field_validator("exclude", "variants")
    @classmethod
    def _no_empty_entry(cls, entries: tuple[Options, ...]) -> tuple[Options, ...]:
        if not all(entry.explicit() for entry in entries):
            raise ValueError("empty entry; remove it or add an option")
        return entries
