"""Sanitize guest and node output for terminals and logs."""

from __future__ import annotations

from typing import Final

MAX_LETTERS: Final = 500
"""Maximum characters per line."""


def printable(text: str, most: int | None = None) -> str:
    """Return the text without control characters; line breaks stay.

    Args:
        most: maximum characters; longer text ends with " …". None: no limit.
    """
    cleaned = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)
    return cleaned if most is None or len(cleaned) <= most else f"{cleaned[: most - 2].rstrip()} …"


def one_line(text: str, most: int = MAX_LETTERS) -> str:
    """Return the text as one line of at most `most` characters, without repeated spaces."""
    return printable(" ".join(printable(text).split()), most)
