"""Environment: everything that may move a number and is not the scenario."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

MOST_FACT: Final = 300
"""Characters of a fact: nodes and guests say what they like, and it becomes a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The running versions and settings on one node.

    Attributes:
        node: where.
        facts: name -> text, such as `kernel`, `qemu`, `accel`, `machine`, `guest_image`,
            `fio`, `cpu_model`, `microcode`, `governor`; cut where it is longer than MOST_FACT.
            A fact that cannot be known is absent.
        simulated: True when no real hardware is behind it.
    """

    node: str
    facts: Mapping[str, str]
    simulated: bool = False

    def __post_init__(self) -> None:
        cut = {name: text[:MOST_FACT] for name, text in self.facts.items()}
        object.__setattr__(self, "facts", MappingProxyType(cut))

    @property
    def digest(self) -> str:
        """Identity: equal facts on the same node are the same environment."""
        text = json.dumps([self.node, dict(self.facts), self.simulated], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def slug(self) -> str:
        """Short name for labels: `[pve/]kernel/qQEMU/accel`, then the digest's start."""
        facts = self.facts
        parts = [facts[key] for key in ("pve", "kernel") if key in facts]
        if "qemu" in facts:
            parts.append(f"q{facts['qemu']}")
        if "accel" in facts:
            parts.append(facts["accel"])
        return "/".join(parts) + f"#{self.digest[:4]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What was installed on a node since the VM was started.

    Attributes:
        pending: fact -> version that is installed, but does not run yet.
        restart: what only a cold start of the VM takes over; empty: nothing.
    """

    pending: Mapping[str, str] = field(default_factory=dict)
    restart: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One stretch of time in one environment on one node; going back to an earlier one is new.

    Attributes:
        environment: its digest; `slug` and `facts` are the environment's.
        started: of its first good run; `finished`: end of its last.
    """

    node: str
    environment: str
    slug: str
    facts: Mapping[str, str]
    started: datetime
    finished: datetime
