"""What would have been said in the past, had anybody asked then."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from pvebench.analysis.judge import Judge
from pvebench.judging.feed import Feed
from pvebench.judging.figures import NUMBERS
from pvebench.judging.keeper import judged
from pvebench.judging.naming import Namer
from pvebench.judging.verdicts import Verdicts
from pvebench.model.known_issue import KnownIssue
from pvebench.results import Results
from pvebench.store import CaseNumbers


def past_verdicts(
    results: Results, issues: Sequence[KnownIssue], moments: Sequence[float]
) -> Iterator[tuple[float, Verdicts]]:
    """Yield (moment, what was said then), from the runs that had ended by then.

    Args:
        issues: known ones.
        moments: UNIX seconds, oldest first. Each takes about as long as judging all there was.
    """
    cases = [
        piece.at(sorted(range(len(piece.runs)), key=piece.finished.__getitem__))
        for pieces in results.store.numbers.read(NUMBERS)
        for piece in pieces
    ]
    feed, judge, namer, begun = Feed(results), Judge(issues), Namer(), -math.inf
    for moment in moments:
        feed.take([_ended(cases, begun, moment)], until=moment)
        begun = moment
        yield moment, judged(feed, judge, namer)


def _ended(cases: Iterable[CaseNumbers], after: float, until: float) -> list[CaseNumbers]:
    """Return what ended after one moment, and until another."""
    spans = (
        (one, range(bisect_right(one.finished, after), bisect_right(one.finished, until)))
        for one in cases
    )
    return [one.at(places) for one, places in spans if places]
