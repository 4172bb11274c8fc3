"""What pvebench records in a VM's description: ownership marker, claim, filled volumes. Pure.

The description moves with the VM, so a later start of pvebench recognizes a kept VM by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

CLAIM_SECONDS: Final = 1200.0
"""Validity of a claim of the node, seconds."""
_MARK: Final = re.compile(r"^pvebench-mark: (?P<mark>[0-9a-f]{32})$", re.MULTILINE)
_CLAIM: Final = re.compile(r"^pvebench-measures-until: (?P<until>\d{1,12})$", re.MULTILINE)
_FILLED: Final = re.compile(r"^pvebench-filled: (?P<json>\{.*\})$", re.MULTILINE)
_CHARACTERS: Final = 8192
"""Maximum length of a description in Proxmox, characters."""
_SYSTEM: Final = re.compile(r"^pvebench-system: (?P<slots>[a-z0-9 ]+)$", re.MULTILINE)
_WORDS: Final = (
    "Benchmark VM, changed and removed automatically by pvebench: do not store data here.\n\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
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


def mark_of(config: Mapping[str, Any]) -> str:
    """Return the ownership marker in a VM's description, or an empty string."""
    match = _MARK.search(str(config.get("description", "")))
    return match["mark"] if match else ""


def system_slots(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of the disks that a VM got as a clone; empty: it is none."""
    match = _SYSTEM.search(str(config.get("description", "")))
    return frozenset(match["slots"].split() if match and mark_of(config) else ())


def claim_of(config: Mapping[str, Any]) -> float:
    """Return the end of the claim of the pvebench that uses this VM, Unix seconds; 0: no claim."""
    match = _CLAIM.search(str(config.get("description", "")))
    return float(match["until"]) if match else 0.0


def is_valid_claim(until: float, now: float) -> bool:
    """Return whether a claim holds at `now`, the node's time; a later end is a damaged one."""
    return now < until <= now + 2 * CLAIM_SECONDS


def filled_of(config: Mapping[str, Any]) -> list[Filled]:
    """Return the filled volumes in a VM's description; ignore damaged lines."""
    volumes = []
    for match in _FILLED.finditer(str(config.get("description", ""))):
        try:
            volumes.append(_checked(Filled(**json.loads(match["json"]))))
        except (TypeError, ValueError, RecursionError):
            continue
    return volumes


def _checked(volume: Filled) -> Filled:
    sizes = (volume.size_bytes, volume.listed_bytes)
    texts = [value for name, value in asdict(volume).items() if not name.endswith("_bytes")]
    if {*map(type, sizes)} != {int} or {*map(type, texts)} != {str}:
        raise TypeError("a size is not a number, or a name is not text")
    return volume
