"""Reference series: rows that others published or the user brought, with a name and a date.

They never become results of ours: no baseline is made of them, and they are kept as files of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pvebench.model.plausibility import Figures, Implausibility, contradictions, cpu_out_of_range


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRow:
    """One row of a published table.

    Attributes:
        line: in its file, from 1.
        place: what it is about: `table`, `host_disk`, `storage`, `bus`, `format`, `cache`, `rw`,
            `tool`, `system` …; empty text where the table says nothing.
        match: what of our own results it is shown beside: `storage`, `bus`, `format`, `cache`,
            `tool`, `rw`, `bs`; only what is known.
        values: (metric, direction) -> value in base units, such as (`iops`, `read`).
        figures: what must fit together, one a direction.
        cpu: of the tool, in CPUs.
        cpus: how many there were.
    """

    line: int
    place: Mapping[str, str]
    match: Mapping[str, str | int] = field(default_factory=dict)
    values: Mapping[tuple[str, str], float] = field(default_factory=dict)
    figures: tuple[Figures, ...] = ()
    cpu: Mapping[str, float] = field(default_factory=dict)
    cpus: float = 1.0

    def implausibilities(self) -> list[Implausibility]:
        """Return where the row contradicts itself."""
        found = [one for figures in self.figures for one in contradictions(figures)]
        return found + cpu_out_of_range(self.cpu, cpus=self.cpus)

    def contradiction(self) -> dict[str, Any] | None:
        """Return the row as plain data with its reasons; None if it holds together."""
        implausibilities = self.implausibilities()
        if not implausibilities:
            return None
        known = ("table", "host_disk", "storage", "bus", "format", "cache", "rw", "system")
        return {
            **{key: self.place[key] for key in known if key in self.place},
            "line": self.line,
            "reasons": [implausibility.text for implausibility in implausibilities],
            "rules": list(
                dict.fromkeys(str(implausibility.doubt) for implausibility in implausibilities)
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSeries:
    """A named, dated set of rows.

    Attributes:
        date: of the measurements, as precise as it is known: `2017` or `2026-11-21`.
        source: where they come from, in a sentence.
    """

    name: str
    date: str
    source: str
    rows: tuple[ReferenceRow, ...]

    def contradictions(self) -> list[dict[str, Any]]:
        """Return every row that contradicts itself, with its reasons."""
        found = [row.contradiction() for row in self.rows]
        return [{"series": self.name, **one} for one in found if one is not None]

    def beside(self, known: Mapping[str, Any]) -> ReferenceRow | None:
        """Return the row that is about the same as our result, described by `known`."""
        for row in self.rows:
            if row.match and all(known.get(key) == value for key, value in row.match.items()):
                return row
        return None
