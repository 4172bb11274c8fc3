"""The verdict in one line, for a page's top and for the first line of a command."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal

from pvebench.analysis.levels.difference import size_text
from pvebench.analysis.missing import count_text
from pvebench.analysis.together.findings import Finding
from pvebench.analysis.verdict import VerdictState
from pvebench.analysis.words import sentence
from pvebench.judging.found import LEAST_JUDGED
from pvebench.judging.verdicts import Verdicts

WORDS: Final = {
    VerdictState.SUSPICIOUS: "suspiciously faster",
    VerdictState.SLOWER: "slower",
    VerdictState.SLOWLY_SLOWER: "slowly getting slower",
    VerdictState.MAYBE_SLOWER: "maybe slower",
    VerdictState.FASTER: "faster",
    VerdictState.SLOWLY_FASTER: "slowly getting faster",
    VerdictState.MAYBE_FASTER: "maybe faster",
    VerdictState.SAME: "the same",
    VerdictState.CANNOT_TELL: "cannot tell",
}
"""State -> how it is said."""
Standing = Literal["worse", "fine", "partly_known", "cannot_tell"]
WORSE: Final = {VerdictState.SUSPICIOUS, VerdictState.SLOWER, VerdictState.SLOWLY_SLOWER}


def headline(verdicts: Verdicts, *, evidence: bool = True) -> str:
    """Return the most important thing in one sentence; `evidence` as of `words.sentence`."""
    regressions = verdicts.regressions
    if regressions:
        more = f" (and {len(regressions) - 1} more)" if len(regressions) > 1 else ""
        return _dated(regressions[0], evidence=evidence) + more
    return calm(verdicts)


def _dated(finding: Finding, *, evidence: bool) -> str:
    """Return the sentence with its day, which it leaves out where it names an upgrade instead."""
    text = sentence(finding, evidence=evidence)
    if finding.slow or not finding.came_with:
        return text
    return f"Since {datetime.fromtimestamp(finding.time, UTC):%Y-%m-%d}: {text}"


def standing(verdicts: Verdicts) -> Standing:
    """Return in one word what the headline says."""
    if verdicts.regressions:
        return "worse"
    if verdicts.failed:
        return "cannot_tell"
    unknown = verdicts.counts().get(VerdictState.CANNOT_TELL, 0)
    if unknown == len(verdicts.verdicts):
        return "cannot_tell"
    return "partly_known" if unknown else "fine"


def calm(verdicts: Verdicts) -> str:
    """Return what can be said where no change wants a look: no more than is known.

    Figures may be slower all the same: what they come from is over, or before the days asked for.
    """
    if verdicts.failed:
        return "Cannot tell whether anything got slower: the latest judging failed; see the log."
    counts = verdicts.counts()
    further = " further" if WORSE & counts.keys() else ""
    if not counts:
        return f"Nothing has been judged yet: a verdict takes {LEAST_JUDGED} runs of a case."
    unknown = [one for one in verdicts.verdicts if one.state is VerdictState.CANNOT_TELL]
    if not unknown:
        widest = max((one.excluded for one in verdicts.verdicts if one.state.code == 0), default=0)
        claim = f", and no change above {size_text(widest)}" if widest and not further else ""
        return f"Nothing{further} got slower{claim}: {counts_text(verdicts)}."
    first = min(unknown, key=lambda one: (not one.more_runs, one.more_runs))
    why = f"{first.history.name}: {first.reason}."
    if len(unknown) == sum(counts.values()):
        cases = count_text(len({one.history.of for one in unknown}), "case")
        of = f"{count_text(len(unknown), 'figure')} of {cases}"
        return f"Cannot tell yet whether anything got slower, in {of}. {why}"
    begin = f"Nothing{further} is known to have got slower, but not all can be told"
    return f"{begin}: {counts_text(verdicts)}. {why}"


def counts_text(verdicts: Verdicts) -> str:
    """Return how many figures have which state: `12 the same, 3 maybe slower`."""
    counts = verdicts.counts()
    return ", ".join(f"{counts[state]} {word}" for state, word in WORDS.items() if state in counts)
