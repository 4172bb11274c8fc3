"""Journal that keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping


class NullJournal:
    """`model.ports.Journal` without open changes."""

    def open(self, kind: str, details: Mapping[str, str]) -> int:
        return 0

    def close(self, number: int) -> None:
        pass

    def pending(self) -> list[tuple[int, str, Mapping[str, str]]]:
        return []
