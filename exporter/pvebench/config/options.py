"""The options that a pack may fix, exclude or sweep: the model's fields make both models."""

from __future__ import annotations

from dataclasses import Field as DataField
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    create_model,
    field_validator,
)

from pvebench.fields import Size, Slug, Strict, require_once
from pvebench.model.disk import Disk
from pvebench.model.layout import LAYOUT_OPTIONS, Layout

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
