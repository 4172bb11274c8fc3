"""The entries under `workloads:`: each tool with its own options, or with lists of them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, WithJsonSchema, create_model, model_validator

from pvebench.fields import Strict
from pvebench.workloads import ROOMS, Room, ToolOptions

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


def _field(room: Room) -> tuple[Any, Any]:
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
        **{tool: _field(room) for tool, room in ROOMS.items()},
    )
