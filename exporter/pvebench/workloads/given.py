"""Reading a tool's options from a pack: each is taken out once, and none may be left over."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pvebench.model.units import parse_duration, parse_size

_COMMON = ("version", "title")


class Given:
    """The options that a pack gives to a tool.

    Args:
        tool: its name.
        options: as the pack has them.
        known: the tool's own options; `version` and `title` are known to all.

    Raises:
        ValueError: an option is unknown. All complaints start with the option's name and a colon.
    """

    def __init__(self, tool: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
        everything = (*known, *_COMMON)
        for key in map(str, options):
            if key not in everything:
                near = difflib.get_close_matches(key, everything, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(
                    f"{key}: unknown option; {tool} takes {', '.join(everything)}{hint}"
                )
        self._tool = tool
        self._options = options

    def whole(self, key: str, *, default: int, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`."""
        value = self._options.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{key}: {value!r} is not a whole number from {low} to {high}")
        return value

    def yes(self, key: str, *, default: bool) -> bool:
        """Return a boolean."""
        value = self._options.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{key}: {value!r} is neither true nor false")  # noqa: TRY004 # all complaints about options are ValueErrors
        return value

    def size(self, key: str, *, default: int | None, low: int, high: int) -> int:
        """Return bytes; with a default of None the option is required."""
        if key not in self._options:
            if default is None:
                raise ValueError(f"{key}: required; a size such as 4k or 256M")
            return default
        try:
            size = parse_size(self._options[key])
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
        if not low <= size <= high:
            raise ValueError(f"{key}: {size} bytes is not from {low} to {high}")
        return size

    def seconds(self, key: str, *, default: float) -> float:
        """Return a duration in seconds; 0 is a duration too."""
        value = self._options.get(key, default)
        if value == default or (value == 0 and not isinstance(value, bool)):
            return float(value)
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error

    def one_of(self, key: str, values: Sequence[str], *, default: str = "") -> str:
        """Return one of `values`; without a default the option is required."""
        value = self._options.get(key, default)
        if not isinstance(value, str) or value not in values:
            if key not in self._options:
                raise ValueError(f"{key}: required; one of {', '.join(values)}")
            raise ValueError(f"{key}: {value!r} is not one of {', '.join(values)}")
        return value

    def version(self) -> int:
        """Return the definition's number."""
        return self.whole("version", default=1, low=1, high=10_000)

    def title(self, slug: str) -> str:
        """Return the pack's title, or the slug spaced out."""
        title = self._options.get("title", slug.replace("-", " "))
        if not isinstance(title, str) or not title.strip() or not title.isprintable():
            raise ValueError(f"title: {title!r} is not a line of text")
        return title.strip()


def slug(*parts: str, version: int) -> str:
    """Return the parts that are not empty, joined; `@n` from the second definition on."""
    return "-".join(filter(None, parts)) + (f"@{version}" if version != 1 else "")
