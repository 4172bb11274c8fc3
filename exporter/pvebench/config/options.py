"""The options that a pack may fix, exclude or sweep: one table makes both models."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    create_model,
    field_validator,
)

from pvebench.config.fields import Size, Slug, Strict
from pvebench.model.disk import Aio, Bus, Cache, Format, Preallocation, ScsiHw
from pvebench.model.layout import Filesystem
from pvebench.model.units import GIB, KIB, MIB

OptionValue = Bus | Format | Cache | Aio | ScsiHw | Preallocation | Filesystem | bool | int | str
_MOUNT_OPTIONS: Final = re.compile(r"[a-z0-9_=,-]+\Z")
_SCHEDULER: Final = re.compile(r"[a-z][a-z0-9_-]*\Z")


def _cluster(size: int) -> int:
    if not 512 <= size <= 2 * MIB or size & (size - 1):
        raise ValueError(f"{size} is not a cluster size of qcow2: a power of two, 512 to 2M")
    return 0 if size == DEFAULT_CLUSTER else size  # the default has one name only


def _queues(count: int) -> int:
    if not 2 <= count <= 64:
        raise ValueError(f"{count} queues: use 2 to 64, or leave the option out")
    return count


def _mount_options(text: str) -> str:
    if text and not _MOUNT_OPTIONS.match(text):
        raise ValueError(f"{text!r}: write mount options as mount -o takes them: noatime,commit=30")
    return text


def _read_ahead(size: int) -> int:
    if not 0 <= size <= GIB or size % SECTOR:
        raise ValueError(f"{size} bytes of read-ahead: use whole sectors of 512, up to 1G")
    return size


def _scheduler(text: str) -> str:
    if not _SCHEDULER.match(text):
        raise ValueError(
            f"{text!r} is no I/O scheduler: write it as in /sys/block/*/queue/scheduler"
        )
    return text


_Limit = Annotated[StrictInt, Field(ge=0, le=100_000_000)]
_OPTIONS: Final[dict[str, Any]] = {
    "storage": Slug,
    "bus": Bus,
    "format": Format,
    "cache": Cache,
    "aio": Aio,
    "iothread": StrictBool,
    "detect_zeroes": StrictBool,
    "scsihw": ScsiHw,
    "discard": StrictBool,
    "ssd": StrictBool,
    "queues": Annotated[StrictInt, AfterValidator(_queues)],
    "iops": _Limit,
    "mbps": _Limit,
    "cluster_size": Annotated[Size, AfterValidator(_cluster)],
    "preallocation": Preallocation,
    "extended_l2": StrictBool,
    "backing": StrictBool,
    "drive_cache": StrictBool,
    "read_ahead": Annotated[Size, AfterValidator(_read_ahead)],
    "scheduler": Annotated[StrictStr, AfterValidator(_scheduler)],
    "filesystem": Filesystem,
    "mount_options": Annotated[StrictStr, AfterValidator(_mount_options)],
}
LAYOUT_OPTIONS: Final = ("filesystem", "mount_options")
"""Those that concern the guest's use of the disk; all others but `storage` are the disk's."""
DEFAULT_CLUSTER: Final = 64 * KIB
SECTOR: Final = 512
"""Bytes; what the kernel counts read-ahead in."""


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
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            raise ValueError(f"value given twice: {', '.join(twice)}")
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
        "Options", __base__=OptionsBase, __doc__=OptionsBase.__doc__,
        **{key: (kind | None, None) for key, kind in _OPTIONS.items()},
    )  # fmt: skip
    Axes = create_model(
        "Axes", __base__=AxesBase, __doc__=AxesBase.__doc__,
        **{key: (tuple[kind, ...] | None, None) for key, kind in _OPTIONS.items()},
    )  # fmt: skip
