"""A pack's file as it is written: every key, its type and its rules."""

from __future__ import annotations

import itertools
import math
from dataclasses import Field as DataField
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)

from pvebench.fields import Duration, Ratio, Scale, Size, Slug, Strict, Text, require_once
from pvebench.model.disk import DEFAULT_FILE, LAYOUT_OPTIONS, Disk, Layout
from pvebench.model.units import MIB
from pvebench.model.workload import SteadyRule
from pvebench.workloads import TOOLS, Tool, ToolOptions

# --- The options that a pack may fix, exclude or sweep: the model's fields make both models.

OptionValue = bool | int | str
_STRICT: Final = {bool: StrictBool, int: StrictInt, str: StrictStr}


def _kind(of: type, field: DataField[Any]) -> Any:
    """Return what a pack may write for an option of the model."""
    rules, hint = field.metadata, get_type_hints(of)[field.name]
    plain = next((one for one in get_args(hint) if one is not type(None)), hint)
    kind = Size if rules.get("size") else _STRICT.get(plain, plain)
    if rules.get("low") is not None:
        kind = Annotated[kind, Field(ge=rules["low"], le=rules["high"])]
    return Annotated[kind, AfterValidator(rules["check"])] if rules.get("check") else kind


_OPTIONS: Final[dict[str, Any]] = {
    "storage": Slug,
    **{field.name: _kind(Disk, field) for field in fields(Disk)},
    **{one.name: _kind(Layout, one) for one in fields(Layout) if one.name in LAYOUT_OPTIONS},
}


class OptionsBase(Strict):
    """Options, each at most once."""

    def given(self) -> dict[str, OptionValue]:
        """Return the options that are set."""
        return {key: value for key, value in self if value is not None}


class AxesBase(Strict):
    """Swept options: each is a list of the values to go through."""

    @field_validator("*")
    @classmethod
    def _some_and_once(cls, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if values is None:
            return None
        if not values:
            raise ValueError("an axis without values makes an empty matrix; name at least one")
        require_once(values, "value given twice")
        return values

    def given(self) -> dict[str, tuple[OptionValue, ...]]:
        """Return the axes that are set, in the order of the table."""
        return {key: values for key, values in self if values is not None}


if TYPE_CHECKING:

    class Options(OptionsBase):
        """Disk options, each at most once: `fixed`, and the entries of `exclude`."""

    class Axes(AxesBase):
        """Swept options."""

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


# --- The entries under `workloads:`: each tool with its own options, or with lists of them.

MOST_COMBINATIONS: Final = 10_000


def _combinations(given: Any) -> list[Any]:
    """Return options for each combination of those that are lists: a sweep in one line."""
    if not isinstance(given, dict):
        return [given]
    lists = {key: value for key, value in given.items() if isinstance(value, list)}
    if empty := [key for key, value in lists.items() if not value]:
        raise ValueError(f"{empty[0]}: a sweep over no values measures nothing")
    if (count := math.prod(len(values) for values in lists.values())) > MOST_COMBINATIONS:
        raise ValueError(f"{count} combinations in one entry; at most {MOST_COMBINATIONS}")
    return [
        {**given, **dict(zip(lists, values, strict=True))}
        for values in itertools.product(*lists.values())
    ]


def _swept_schema(options: type[ToolOptions]) -> dict[str, Any]:
    """Return the JSON schema of a tool's options, where each may be a list."""
    schema = options.model_json_schema()
    schema["properties"] = {
        key: {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}
        for key, one in schema["properties"].items()
    }
    return schema


def _field(room: Tool) -> tuple[Any, Any]:
    kind = Annotated[
        tuple[room.options, ...],  # type: ignore[name-defined] # known when it runs
        BeforeValidator(_combinations),
        WithJsonSchema(_swept_schema(room.options)),
    ]
    return kind, ()


class EntryBase(Strict):
    """One entry: a tool's name, with its options below it."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="after")
    def _one_tool(self) -> EntryBase:
        if len(self.model_fields_set) != 1:
            raise ValueError("wants exactly one key, the tool's name, with its options below it")
        return self

    @property
    def tool(self) -> str:
        """The tool's name."""
        return next(iter(self.model_fields_set))

    @property
    def options(self) -> tuple[ToolOptions, ...]:
        """The tool's options, once for each combination."""
        return tuple(getattr(self, self.tool))


if TYPE_CHECKING:

    class Entry(EntryBase):
        """One entry, with a field for each tool."""

else:  # the type checker cannot see through create_model
    Entry = create_model(
        "Entry",
        __base__=EntryBase,
        __doc__=EntryBase.__doc__,
        **{tool: _field(room) for tool, room in TOOLS.items()},
    )


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
