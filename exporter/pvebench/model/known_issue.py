"""KnownIssue: an upgrade that is known to have moved storage numbers, and what it looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pvebench.model.versions import Version

_INSTEAD = {"qemu_package": "qemu"}
"""Fact -> what says nearly the same where it is not known."""
IssueKind = Literal["slower", "suspicious", "stall", "cost", "operation", "accounting"]


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
