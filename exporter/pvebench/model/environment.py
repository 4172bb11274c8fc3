"""KnownIssue: an upgrade that is known to have moved storage numbers, and what it looks like."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import total_ordering
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, Literal

# --- Environment: everything that may move a number and is not the scenario.

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
class PendingUpdates:
    """What was installed on a node since the VM was started.

    Attributes:
        pending: fact -> version that is installed, but does not run yet.
        restart: what only a cold start of the VM takes over; empty: nothing.
    """

    pending: Mapping[str, str] = field(default_factory=dict)
    restart: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPeriod:
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


# --- Debian's order of versions, in which all packages of Proxmox VE are numbered.
#
# The rules are those of deb-version(7): parts without digits compare letter by letter, with `~`
# before everything, also before the end; parts of digits compare as numbers.

_PARTS = re.compile(r"(\D*)(\d*)")


@total_ordering
class Version:
    """A version as `[epoch:]upstream[-revision]`."""

    __slots__ = ("_key", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        epoch, colon, rest = text.partition(":")
        if not colon:
            epoch, rest = "0", text
        upstream, dash, revision = rest.rpartition("-")
        if not dash:
            upstream, revision = rest, "0"
        number = int(epoch) if epoch.isdigit() else 0
        self._key = (number, _split(upstream), _split(revision))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and not self < other and not other < self

    def __lt__(self, other: Version) -> bool:
        mine, theirs = self._key, other._key
        if mine[0] != theirs[0]:
            return mine[0] < theirs[0]
        order = _compare(mine[1], theirs[1]) or _compare(mine[2], theirs[2])
        return order < 0

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Version({self.text!r})"


Parts = tuple[tuple[tuple[int, ...], int], ...]


def _split(text: str) -> Parts:
    found = _PARTS.findall(text)
    return tuple(
        (tuple(_weight(letter) for letter in letters), int(digits or 0))
        for letters, digits in found
        if letters or digits
    )


def _weight(letter: str) -> int:
    """Return the place of a letter: `~`, (the end is 0), letters, everything else."""
    if letter == "~":
        return -1
    return ord(letter) if letter.isalpha() else ord(letter) + 256


def _compare(mine: Parts, theirs: Parts) -> int:
    for one, other in zip_longest(mine, theirs, fillvalue=((), 0)):
        for left, right in zip_longest(one[0], other[0], fillvalue=0):
            if left != right:
                return -1 if left < right else 1
        if one[1] != other[1]:
            return -1 if one[1] < other[1] else 1
    return 0


_INSTEAD = {"qemu_package": "qemu"}
"""Fact -> what says nearly the same where it is not known."""
IssueKind = Literal["slower", "implausible", "stall", "cost", "operation", "accounting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """A range of versions of one component.

    Attributes:
        fact: name of the component as in `Environment.facts` (`kernel`, `qemu_package`, `zfs` …).
        since: first version that has the fault.
        before: first version that has it no more; empty: none is known.
        fixed_in: what to call that version; empty: `before` itself.
    """

    fact: str
    since: str
    before: str = ""
    fixed_in: str = ""

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Tell whether an environment is in the range; one that does not say is not."""
        found = facts.get(self.fact) or facts.get(_INSTEAD.get(self.fact, ""), "")
        found = found.removesuffix("-pve")
        if not found:
            return False
        version = Version(found)
        return Version(self.since) <= version and (
            not self.before or version < Version(self.before)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """A fault that users met.

    Attributes:
        id: short, such as `R2`.
        title: one line, what it did.
        kind: what class of change it is.
        affected: where it is; one of the ranges suffices.
        moves: figures that it moves, as `analysis.figures` names them.
        options: option -> values that it needs: `bus: (virtio, scsi)`; empty: everything.
        ratio: by how much the source says that throughput (or cost, time) was multiplied; None:
            the source gives no number.
        workaround, source: for the user.
    """

    id: str
    title: str
    kind: IssueKind
    affected: tuple[Affected, ...]
    moves: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    ratio: float | None = None
    workaround: str = ""
    source: str = ""

    def holds(self, facts: Mapping[str, str]) -> Affected | None:
        """Return the range that an environment is in, or None."""
        return next((one for one in self.affected if one.holds(facts)), None)
