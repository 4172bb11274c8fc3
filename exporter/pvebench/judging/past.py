"""What would have been said in the past, had anybody asked then."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from pvebench.analysis.judge import Judge
from pvebench.judging.feed import Feed
from pvebench.judging.figures import NUMBERS
from pvebench.judging.keeper import judged
from pvebench.judging.naming import Namer
from pvebench.judging.verdicts import Verdicts
from pvebench.model.known_issue import KnownIssue
from pvebench.results import Results


def past_verdicts(
    results: Results, issues: Sequence[KnownIssue], moments: Sequence[float]
) -> Iterator[tuple[float, Verdicts]]:
    """Yield (moment, what was said then), from the runs that had ended by then.

    Args:
        issues: known ones.
        moments: UNIX seconds, oldest first. Each takes about as long as judging all there was.
    """
    runs = sorted(results.store.numbers(NUMBERS), key=lambda run: run.finished)
    ends = [run.finished for run in runs]
    feed, judge, namer, begun = Feed(results), Judge(issues), Namer(), 0
    for moment in moments:
        ended = bisect_right(ends, moment)
        feed.take(runs[begun:ended], until=moment)
        begun = ended
        yield moment, judged(feed, judge, namer)
