"""The text of many cases, kept so that one changed case costs little.

Cases are kept in shards. A changed case is rendered alone; its shard's families are joined and
compressed anew; all other shards stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pvebench.metrics.text import Piece, Text, deflate

SHARD_CASES: Final = 64
"""Few enough to be compressed in milliseconds, enough for the compression to find repetitions."""


@dataclass(slots=True)
class _Shard:
    cases: dict[str, Mapping[str, Piece]] = field(default_factory=dict)
    joined: dict[str, bytes] = field(default_factory=dict)
    deflated: dict[str, bytes] = field(default_factory=dict)

    def forget(self) -> None:
        self.joined.clear()
        self.deflated.clear()

    def text(self, family: str) -> bytes:
        if family not in self.joined:
            pieces = (case[family].samples for case in self.cases.values() if family in case)
            self.joined[family] = b"".join(pieces)
        return self.joined[family]

    def compressed(self, family: str) -> bytes:
        if family not in self.deflated:
            text = self.text(family)
            self.deflated[family] = deflate(text) if text else text
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
        heads = self._deflated_heads if compress else self._heads
        found: list[bytes] = []
        for family, head in heads.items():
            samples = [
                shard.compressed(family) if compress else shard.text(family)
                for shard in self._shards
            ]
            if any(samples):
                found += [head.choose(opened=opened), *samples]
        return found
