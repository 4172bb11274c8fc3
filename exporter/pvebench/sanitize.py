"""Words of others, a guest's or a node's, as they can be shown on a terminal or in a log."""

from __future__ import annotations

from typing import Final

MOST_LETTERS: Final = 500
"""Of a line."""


def printable(text: str, most: int | None = None) -> str:
    """Return text without what a terminal would obey; line breaks stay.

    Args:
        most: characters; what is longer ends with " …". None: as long as it is.
    """
    shown = "".join(one if one.isprintable() or one == "\n" else " " for one in text)
    return shown if most is None or len(shown) <= most else f"{shown[: most - 2].rstrip()} …"


def one_line(text: str, most: int = MOST_LETTERS) -> str:
    """Return the same without line breaks and repeated spaces, and of a bounded length."""
    return printable(" ".join(printable(text).split()), most)
