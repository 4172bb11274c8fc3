"""The body of an HTTP answer, within a bound and a time: a server may send for ever, or drip."""

from __future__ import annotations

import time
from typing import Final, Protocol

from pvebench.model.units import show_bytes

_PIECE: Final = 65536


class EndlessAnswer(OSError):
    """An answer was broken off; the text says what it was more than."""


class Body(Protocol):
    """What comes after the head; `http.client.HTTPResponse` is one."""

    def read1(self, n: int = -1, /) -> bytes:
        """Return at most `n` bytes as soon as there are some; nothing at the end."""


def read_body(answer: Body, *, most: int, seconds: float) -> bytes:
    """Return all of it.

    Args:
        most: bytes that it may have. seconds: that it may take, all pieces together.

    Raises:
        EndlessAnswer: it has, or takes, more.
    """
    deadline = time.monotonic() + seconds
    found = bytearray()
    while piece := answer.read1(_PIECE):
        found += piece
        if len(found) > most or time.monotonic() > deadline:
            raise EndlessAnswer(f"broken off: more than {show_bytes(most)}, or {seconds:.0f} s")
    return bytes(found)
