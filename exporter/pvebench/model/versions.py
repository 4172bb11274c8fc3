"""Debian's order of versions, in which all packages of Proxmox VE are numbered.

The rules are those of deb-version(7): parts without digits compare letter by letter, with `~`
before everything, also before the end; parts of digits compare as numbers.
"""

from __future__ import annotations

import re
from functools import total_ordering
from itertools import zip_longest

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
