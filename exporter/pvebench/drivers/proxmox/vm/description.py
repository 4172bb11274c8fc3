"""What pvebench records in a VM's description: ownership marker, claim, filled volumes. Pure.

The description moves with the VM, so a later start of pvebench recognizes a kept VM by it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from pydantic_core import from_json

CLAIM_SECONDS: Final = 1200.0
"""Validity of a claim of the node, seconds."""
_CHARACTERS: Final = 8192
"""Maximum length of a description in Proxmox, characters."""
_WORDS: Final = (
    "Benchmark VM, changed and removed automatically by pvebench: do not store data here.\n\n"
)


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid"))
class Filled:
    """Volume that was written completely and not invalidated since.

    Attributes:
        key: key of the volume, `Scenario.volume`.
        storage: name in packs.
        size_bytes: requested size; `listed_bytes`: size that the storage reported.
        content: its content, in the format of `Layout.content`.
        options: options of its storage when it was created.
    """

    key: str
    storage: str
    volid: str
    format: str
    size_bytes: int
    listed_bytes: int
    content: str
    options: str


def description(
    mark: str, filled: Iterable[Filled] = (), claim: float = 0.0, system: Iterable[str] = ()
) -> str:
    """Return the description, without the records that exceed the length limit.

    The volumes of omitted records are filled again later.

    Args:
        claim: end of the claim of the node, Unix seconds; 0: no claim.
        system: as of `system_slots`.
    """
    text = f"{_WORDS}pvebench-mark: {mark}\n"
    if claim:
        text += f"pvebench-measures-until: {claim:.0f}\n"
    if slots := sorted(system):
        text += f"pvebench-system: {' '.join(slots)}\n"
    for volume in filled:
        line = f"pvebench-filled: {json.dumps(asdict(volume), sort_keys=True)}\n"
        if len(text) + len(line) <= _CHARACTERS:
            text += line
    return text


def _values(config: Mapping[str, Any], key: str, pattern: str) -> list[str]:
    """Return the values of a key in a VM's description that have a format."""
    text = str(config.get("description", ""))
    return re.findall(rf"^pvebench-{key}: ({pattern})$", text, re.MULTILINE)


def mark_of(config: Mapping[str, Any]) -> str:
    """Return the ownership marker in a VM's description, or an empty string."""
    return next(iter(_values(config, "mark", "[0-9a-f]{32}")), "")


def system_slots(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of the disks that a VM got as a clone; empty: it is none."""
    slots = _values(config, "system", "[a-z0-9 ]+") if mark_of(config) else []
    return frozenset(slots[0].split() if slots else ())


def claim_of(config: Mapping[str, Any]) -> float:
    """Return the end of the claim of the pvebench that uses this VM, Unix seconds; 0: no claim."""
    return float(next(iter(_values(config, "measures-until", r"\d{1,12}")), 0))


def is_valid_claim(until: float, now: float) -> bool:
    """Return whether a claim holds at `now`, the node's time; a later end is a damaged one."""
    return now < until <= now + 2 * CLAIM_SECONDS


def filled_of(config: Mapping[str, Any]) -> list[Filled]:
    """Return the filled volumes in a VM's description; ignore damaged lines."""
    volumes = []
    for record in _values(config, "filled", r"\{.*\}"):
        with contextlib.suppress(TypeError, ValueError):
            volumes.append(Filled(**from_json(record)))
    return volumes
