"""The verdict in one line, for a page's top and for the first line of a command."""

from __future__ import annotations

from typing import Final

from pvebench.analysis.states import State
from pvebench.analysis.wording import sentence
from pvebench.judging.verdicts import Verdicts

WORDS: Final = {
    State.SUSPICIOUS: "suspiciously faster", State.SLOWER: "slower",
    State.SLOWLY_SLOWER: "slowly getting slower",
    State.MAYBE_SLOWER: "maybe slower", State.FASTER: "faster",
    State.SLOWLY_FASTER: "slowly getting faster",
    State.MAYBE_FASTER: "maybe faster", State.SAME: "the same", State.TOO_NOISY: "too noisy",
    State.NOT_COMPARABLE: "not comparable", State.NO_BASELINE: "without a baseline yet",
}  # fmt: skip
"""State -> how it is said."""


def headline(verdicts: Verdicts) -> str:
    """Return the most important thing in one sentence."""
    regressions = verdicts.regressions
    if regressions:
        more = f" (and {len(regressions) - 1} more)" if len(regressions) > 1 else ""
        return sentence(regressions[0]) + more
    counts = verdicts.counts()
    judged = sum(count for state, count in counts.items() if state.judged)
    if not counts:
        return "Nothing has been judged yet."
    if not judged:
        return f"No verdict yet: {counts_text(verdicts)}."
    return f"Nothing got slower: {counts_text(verdicts)}."


def counts_text(verdicts: Verdicts) -> str:
    """Return how many figures have which state: `12 the same, 3 maybe slower`."""
    counts = verdicts.counts()
    return ", ".join(f"{counts[state]} {word}" for state, word in WORDS.items() if state in counts)
