"""Journal in memory."""

from __future__ import annotations

from collections.abc import Mapping


class NullJournal:
    """`model.ports.Journal` that ends with its object."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[str, Mapping[str, str]]] = {}
        self._count = 0

    def open(self, kind: str, details: Mapping[str, str]) -> int:
        self._count += 1
        self._open[self._count] = kind, details
        return self._count

    def close(self, number: int) -> None:
        self._open.pop(number, None)

    def pending(self, *kinds: str) -> list[tuple[int, str, Mapping[str, str]]]:
        entries = reversed(self._open.items())
        return [(n, *entry) for n, entry in entries if not kinds or entry[0] in kinds]
