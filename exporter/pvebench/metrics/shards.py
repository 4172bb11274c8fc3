"""The text of many cases, kept so that one changed case costs little.

Cases are kept in shards. A changed case is rendered alone; its shard's families are joined and
compressed anew; all other shards stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pvebench.metrics.text import Piece, Text

SHARD_CASES: Final = 64
"""Few enough to be compressed in milliseconds, enough for the compression to find repetitions."""


@dataclass(slots=True)
class _Shard:
    cases: dict[str, Mapping[str, Piece]] = field(default_factory=dict)
    joined: dict[str, Text] = field(default_factory=dict)
    deflated: dict[str, Text] = field(default_factory=dict)

    def forget(self) -> None:
        self.joined.clear()
        self.deflated.clear()

    def text(self, family: str) -> Text:
        if family not in self.joined:
            pieces = [case[family].samples for case in self.cases.values() if family in case]
            self.joined[family] = Text(
                b"".join(piece.plain for piece in pieces),
                b"".join(piece.opened for piece in pieces),
            )
        return self.joined[family]

    def compressed(self, family: str) -> Text:
        if family not in self.deflated:
            text = self.text(family)
            self.deflated[family] = text.deflated() if text.plain else text
        return self.deflated[family]


class Shards:
    """Case key -> the text of its families."""

    def __init__(self) -> None:
        self._shards: list[_Shard] = []
        self._place: dict[str, _Shard] = {}
        self._heads: dict[str, Text] = {}
        self._deflated_heads: dict[str, Text] = {}

    def put(self, key: str, pieces: Mapping[str, Piece]) -> None:
        """Set the text of a case; none of a case that shows nothing any more."""
        shard = self._place.get(key)
        if shard is None:
            if not self._shards or len(self._shards[-1].cases) >= SHARD_CASES:
                self._shards.append(_Shard())
            shard = self._place[key] = self._shards[-1]
        shard.cases[key] = pieces
        shard.forget()
        for family, piece in pieces.items():
            if family not in self._heads:
                self._heads[family] = piece.head
                self._deflated_heads[family] = piece.head.deflated()

    def parts(self, *, opened: bool, compress: bool) -> list[bytes]:
        """Return the whole text in parts to be put one behind the other.

        With `compress` each is deflated; part for part it is the same text.
        """
        found: list[bytes] = []
        for family, head in self._heads.items():
            samples = [shard.text(family).choose(opened=opened) for shard in self._shards]
            if not any(samples):
                continue
            heading = head
            if compress:
                heading = self._deflated_heads[family]
                samples = [shard.compressed(family).choose(opened=opened) for shard in self._shards]
            found.append(heading.choose(opened=opened))
            found += samples
        return found
