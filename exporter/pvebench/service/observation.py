"""What `pvebench doctor` says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Sight(StrEnum):
    """What was seen, the most urgent first."""

    WRONG = "wrong"
    LOOK = "look"
    UNKNOWN = "cannot tell"
    FINE = "ok"


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was looked at; `found` says what to do where that is known."""

    about: str
    sight: Sight
    found: str
