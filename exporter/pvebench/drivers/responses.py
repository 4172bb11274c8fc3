"""Shapes of external responses, which are checked before they are used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, LiteralString

from pydantic_core import PydanticCustomError, SchemaValidator, ValidationError, core_schema

from pvebench.errors import OutputUnreadable
from pvebench.model.guest import Completed


class Shape:
    """Required structure. A call returns the problem of a value; empty: valid."""

    def __init__(self, schema: core_schema.CoreSchema) -> None:
        self.schema = schema

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self.schema)

    def __call__(self, value: Any) -> str:
        return self.read(value)[1]

    def read(self, value: Any) -> tuple[Any, str]:
        """Return a value with its numbers as numbers, not as strings or booleans; its problem."""
        try:
            return self._validator.validate_python(value), ""
        except ValidationError as invalid:
            error = invalid.errors(include_url=False)[0]
        places = [f"row {at}" if isinstance(at, int) else f"{at[:80]!r}" for at in error["loc"]]
        absent = error["input"] is None and places and not places[-1].startswith("row")
        if absent or error["type"] == "missing":
            return value, ": ".join([*places[:-1], f"no member {places[-1]}"])
        nouns = {"list_type": "not a list", "dict_type": "not an object"}
        text = nouns.get(error["type"], error["msg"])
        return value, ": ".join([*places, f"{kind_of(error['input'])}, {text}"])


def leaf(
    noun: LiteralString,
    accepts: Callable[[Any], object],
    convert: Callable[[Any], Any] = lambda value: value,
) -> Shape:
    """Accept a value if `accepts` returns true; messages say that others are not `noun`."""

    def check(value: Any) -> Any:
        if not accepts(value):
            raise PydanticCustomError("leaf", f"not {noun}")
        return convert(value)

    return Shape(core_schema.no_info_plain_validator_function(check))


def _counted(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64


def _numeric(value: Any, most: float, digits: str) -> bool:
    # Not math.isfinite: JSON has integers that exceed a float's range.
    within = isinstance(value, int | float) and -most < value < most
    return within or (isinstance(value, str) and re.fullmatch(digits, value) is not None)


anything: Final = Shape(core_schema.any_schema())
text: Final = leaf("a string", lambda value: isinstance(value, str))
truth: Final = leaf("a boolean", lambda value: isinstance(value, bool))
count: Final = leaf("a count", _counted)
number: Final = leaf(
    "a number",
    lambda value: _numeric(value, 1e300, r"[+-]?\d{1,20}(\.\d{1,20})?"),
    lambda value: float(value) if "." in str(value) else int(value),
)
"""What `float` converts to a finite number, including strings of digits."""
whole: Final = leaf("an integer", lambda value: _numeric(value, 1e19, r"[+-]?[0-9]{1,20}"), int)
"""What `int` converts to a number, including strings of digits."""


def fields(**shapes: Shape) -> Shape:
    """Accept an object with these members; one whose name ends in `_` may be missing or null."""
    members = {}
    for name, shape in shapes.items():
        optional = name.endswith("_")
        schema = core_schema.nullable_schema(shape.schema) if optional else shape.schema
        member = core_schema.typed_dict_field(schema, required=not optional)
        members[name.rstrip("_").replace("__", "-")] = member
    return Shape(core_schema.typed_dict_schema(members, extra_behavior="allow"))


def rows(shape: Shape | None = None, /, **shapes: Shape) -> Shape:
    """Accept a list of such values, or of objects with these members."""
    row = shape or fields(**shapes)
    return Shape(core_schema.list_schema(row.schema, strict=True, fail_fast=True))


def table(shape: Shape) -> Shape:
    """Accept an object with such values, under any name."""
    return Shape(core_schema.dict_schema(values_schema=shape.schema, strict=True))


CAPTURED: Final = 16 << 20
"""Bytes of a program's output that the guest agent keeps."""


def completed(status: Mapping[str, Any], name: str, decode: Callable[[str], bytes]) -> Completed:
    """Return the result of a program from the agent's status of it.

    The agent of QEMU 7.2.0 sets `out-truncated` to false when it truncates, so the length decides.
    An exit code of Windows from 0xC0000000 arrives as a negative signal.

    Raises:
        OutputUnreadable: the agent truncated its output.
    """
    outputs = [decode(status.get(f"{stream}-data") or "") for stream in ("out", "err")]
    cut = any(status.get(f"{stream}-truncated") for stream in ("out", "err"))
    if cut or any(len(output) >= CAPTURED for output in outputs):
        raise OutputUnreadable(
            f"the guest agent truncated the output of {name}",
            next_step="write the output to a file; files are read in slices",
        )
    code, sent = status.get("exitcode"), int(status.get("signal") or 0)
    if code is None:
        code = sent & 0xFFFFFFFF if sent < 0 else 128 + sent
    return Completed(exit_code=int(code), stdout=outputs[0], stderr=outputs[1])


AGENT_INFO: Final = fields(supported_commands=rows(name=text, enabled=truth))
"""Response to guest-info."""


def enabled_commands(info: Mapping[str, Any]) -> dict[str, bool]:
    """Return the agent's commands, and whether each is enabled, from AGENT_INFO."""
    return {str(row["name"]): bool(row["enabled"]) for row in info["supported_commands"]}


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, for messages."""
    kinds = {dict: "an object", list: "a list", str: "a string", type(None): "nothing"}
    return kinds.get(type(value), "a number")
