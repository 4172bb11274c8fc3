"""A change that is open: what alerts, notifications and the wall speak of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pvebench.analysis.together.findings import AND, Finding
from pvebench.analysis.words import LISTED, sentence
from pvebench.foreign_text import one_line

Severity = Literal["critical", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")
"""What wants a look first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that lasts, and that nobody has accepted.

    Attributes:
        id: stays while the change is open.
        storages: that its cases are on, in the order of the alphabet.
        severity: `critical`: much of a storage got slower; `info`: it is for the better.
    """

    id: str
    finding: Finding
    storages: tuple[str, ...]
    severity: Severity

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where it is seen."""
        return tuple(self.finding.node.split(AND)) if self.finding.node else ()

    @property
    def summary(self) -> str:
        """The sentence of the verdict, without what is another with every run."""
        return one_line(sentence(self.finding, evidence=False))


def listed(names: tuple[str, ...]) -> str:
    """Return names as in a sentence: `a and b`, `a, b, c and 5 more`."""
    if len(names) > LISTED + 1:
        return f"{', '.join(names[:LISTED])} and {len(names) - LISTED} more"
    return " and ".join(
        [part for part in (", ".join(names[:-1]), names[-1]) if part] if names else ()
    )
