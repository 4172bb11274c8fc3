"""Reference series: published or imported rows with a name and a date.

They never become results of pvebench: no baseline uses them, and they are stored in separate files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pvebench.model.consistency import Figures, Implausibility, contradictions, cpu_out_of_range


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRow:
    """One row of a published table.

    Attributes:
        line: its line in the file, from 1.
        place: its subject: `table`, `host_disk`, `storage`, `bus`, `format`, `cache`, `rw`,
            `tool`, `system` …; empty text if the table does not state it.
        match: options of the results to compare with: `storage`, `bus`, `format`, `cache`, `tool`,
            `rw`, `bs`; only the known ones. None: the result must not have this option.
        unmatched: why no result is the same; empty: unknown.
        values: (metric, direction) -> value in base units, such as (`iops`, `read`).
        figures: values to check for contradictions, one set per direction.
        cpu: CPU usage of the tool, in CPUs.
        cpus: number of available CPUs.
    """

    line: int
    place: Mapping[str, str]
    match: Mapping[str, str | int | None] = field(default_factory=dict)
    unmatched: str = ""
    values: Mapping[tuple[str, str], float] = field(default_factory=dict)
    figures: tuple[Figures, ...] = ()
    cpu: Mapping[str, float] = field(default_factory=dict)
    cpus: float = 1.0

    def implausibilities(self) -> list[Implausibility]:
        """Return the contradictions within the row."""
        items = [item for figures in self.figures for item in contradictions(figures)]
        return items + cpu_out_of_range(self.cpu, cpus=self.cpus)

    def contradiction(self) -> dict[str, Any] | None:
        """Return the row and the reasons as plain data; None if it is consistent."""
        implausibilities = self.implausibilities()
        if not implausibilities:
            return None
        known = ("table", "host_disk", "storage", "bus", "format", "cache", "rw", "system")
        return {
            **{key: self.place[key] for key in known if key in self.place},
            "line": self.line,
            "reasons": [implausibility.text for implausibility in implausibilities],
            "rules": list(
                dict.fromkeys(str(implausibility.check) for implausibility in implausibilities)
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSeries:
    """A named, dated set of rows.

    Attributes:
        date: date of the measurements, as precise as known: `2017` or `2026-11-21`.
        source: description of the origin.
    """

    name: str
    date: str
    source: str
    rows: tuple[ReferenceRow, ...]

    def contradictions(self) -> list[dict[str, Any]]:
        """Return every inconsistent row with the reasons."""
        rows = [row.contradiction() for row in self.rows]
        return [{"series": self.name, **row} for row in rows if row is not None]

    def matching(self, known: Mapping[str, Any]) -> ReferenceRow | None:
        """Return the row that matches the options and parameters in `known`; None: no match."""
        for row in self.rows:
            if row.match and all(known.get(key) == value for key, value in row.match.items()):
                return row
        return None


@runtime_checkable
class ReferenceSource(Protocol):
    """Source of reference series.

    Attributes:
        shipped: names of the series that come with its package.
    """

    shipped: Collection[str]

    def names(self, directory: Path) -> Collection[str]:
        """Return the names of the shipped series, and of those that were imported."""

    def get(self, directory: Path, name: str) -> ReferenceSeries:
        """Return a series by its name.

        Args:
            directory: where imported series are stored.

        Raises:
            StoreError: it does not exist.
        """
