"""What may be said of a case."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What is said of a case."""

    NO_BASELINE = "no_baseline"
    NOT_COMPARABLE = "not_comparable"
    TOO_NOISY = "too_noisy"
    SAME = "same"
    MAYBE_SLOWER = "maybe_slower"
    SLOWER = "slower"
    MAYBE_FASTER = "maybe_faster"
    FASTER = "faster"
    SUSPICIOUS = "suspicious"
    SLOWLY_SLOWER = "slowly_slower"
    SLOWLY_FASTER = "slowly_faster"

    @property
    def judged(self) -> bool:
        """Whether there is a verdict at all."""
        return self not in (State.NO_BASELINE, State.NOT_COMPARABLE, State.TOO_NOISY)

    @property
    def confirmed(self) -> bool:
        """Whether it says beyond doubt that something has changed."""
        return abs(self.code) == 2

    @property
    def code(self) -> int:
        """-2 worse, -1 maybe worse, 0 same, 1 maybe better, 2 better."""
        return _CODES.get(self, 0)


_CODES: Final = {
    State.SLOWER: -2, State.SLOWLY_SLOWER: -2, State.MAYBE_SLOWER: -1, State.MAYBE_FASTER: 1,
    State.SLOWLY_FASTER: 2, State.FASTER: 2, State.SUSPICIOUS: 2,
}  # fmt: skip
