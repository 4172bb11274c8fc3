"""Imported series as files beside the database: one JSON file each, never among the results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pvebench.analysis.honesty import Figures
from pvebench.errors import StoreError
from pvebench.report.reading import PUBLISHED, published
from pvebench.report.series import ReferenceRow, Series


class Library:
    """The series that this installation knows: the shipped ones and those in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        """Return the names of all series."""
        own = (path.stem for path in self._directory.glob("*.json"))
        return sorted({*PUBLISHED, *own})

    def keep(self, series: Series) -> Path:
        """Write a series under its name, over an older one of that name; return the file.

        Raises:
            StoreError: its name is that of a shipped table, or it cannot be written.
        """
        if series.name in PUBLISHED:
            raise StoreError(
                f"{series.name} is the name of a published table that comes with pvebench",
                next_step="choose another with --name",
            )
        path = self._directory / f"{series.name}.json"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(_plain(series), indent=1) + "\n", "utf-8")
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def get(self, name: str) -> Series:
        """Return a series by its name. Raises StoreError if there is none."""
        if name in PUBLISHED:
            return published(name)
        path = self._directory / f"{name}.json"
        try:
            return _series(json.loads(path.read_text("utf-8")))
        except OSError as error:
            raise StoreError(
                f"there is no reference series {name}; known: {', '.join(self.names())}",
                next_step="bring one: pvebench import FILE --name NAME",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is damaged: {error}", next_step="import it again") from error


def _plain(series: Series) -> dict[str, Any]:
    rows = []
    for row in series.rows:
        values = [[metric, direction, value] for (metric, direction), value in row.values.items()]
        rows.append(
            {
                "line": row.line, "place": dict(row.place), "match": dict(row.match),
                "values": values, "figures": [asdict(one) for one in row.figures],
                "cpu": dict(row.cpu), "cpus": row.cpus,
            }
        )  # fmt: skip
    return {"name": series.name, "date": series.date, "source": series.source, "rows": rows}


def _series(data: dict[str, Any]) -> Series:
    rows = tuple(
        ReferenceRow(
            line=row["line"], place=row["place"], match=row["match"],
            values={(metric, direction): value for metric, direction, value in row["values"]},
            figures=tuple(Figures(**one) for one in row["figures"]),
            cpu=row["cpu"], cpus=row["cpus"],
        )
        for row in data["rows"]
    )  # fmt: skip
    return Series(name=data["name"], date=data["date"], source=data["source"], rows=rows)
