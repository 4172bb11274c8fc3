"""What a benchmark VM's description says of it: whose it is, and what its volumes hold. Pure.

The description goes with the VM wherever it goes, so that what is kept from one start of pvebench
to the next is found again by what it says of itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

_MARK: Final = re.compile(r"^pvebench-mark: (?P<mark>[0-9a-f]{32})$", re.MULTILINE)
_FILLED: Final = re.compile(r"^pvebench-filled: (?P<json>\{.*\})$", re.MULTILINE)
_CHARACTERS: Final = 8192
"""Longest description that Proxmox takes."""
_WORDS: Final = (
    "Benchmark VM of pvebench. It is changed and removed automatically: keep nothing here.\n\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A volume that was written from end to end, and not spoiled since.

    Attributes:
        key: what scenarios need it for, `Scenario.volume`.
        storage: name in packs.
        size_bytes: as it was asked for; `listed_bytes`: as the storage told it then.
        content: what it holds, in the words of `Layout.content`.
    """

    key: str
    storage: str
    volid: str
    format: str
    size_bytes: int
    listed_bytes: int
    content: str


def description(mark: str, filled: Iterable[Filled] = ()) -> str:
    """Return the text that says both; what does not fit in is left out, and filled anew later."""
    text = f"{_WORDS}pvebench-mark: {mark}\n"
    for one in filled:
        line = f"pvebench-filled: {json.dumps(asdict(one), sort_keys=True)}\n"
        if len(text) + len(line) <= _CHARACTERS:
            text += line
    return text


def mark_of(config: Mapping[str, Any]) -> str:
    """Return the mark in a VM's description, or an empty string."""
    found = _MARK.search(str(config.get("description", "")))
    return found["mark"] if found else ""


def filled_of(config: Mapping[str, Any]) -> list[Filled]:
    """Return what a VM's description says of its volumes; a line that is broken says nothing."""
    found = []
    for match in _FILLED.finditer(str(config.get("description", ""))):
        try:
            found.append(_checked(Filled(**json.loads(match["json"]))))
        except (TypeError, ValueError):
            continue
    return found


def _checked(one: Filled) -> Filled:
    if not (type(one.size_bytes) is type(one.listed_bytes) is int):
        raise TypeError("a size is no number")
    return one
