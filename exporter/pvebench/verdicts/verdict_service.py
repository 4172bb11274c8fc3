"""What would have been said in the past, had anybody asked then."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

import structlog

from pvebench.analysis.change import Change
from pvebench.analysis.concurrent_changes import METRICS, OF_VERSION, concurrent_changes
from pvebench.analysis.judge import Judge, NodeReport
from pvebench.errors import StoreError
from pvebench.model.environment import KnownIssue
from pvebench.store import CaseNumbers, Changes, Store
from pvebench.store.current import Results
from pvebench.verdicts.change_tracker import ChangeTracker
from pvebench.verdicts.feed import NUMBERS, Feed
from pvebench.verdicts.verdicts import Verdicts

# --- What else changed with an open change, as its runs have kept it.

RUNS: Final = 20
"""Newest runs of a case on each side that are looked at."""
CASES: Final = 3
"""Cases of a change that are looked at: what the node or a storage did is the same in all."""
EARLY: Final = 0.25
"""Share of a slow change's time whose runs count as those before it."""


def with_concurrent_changes(report: NodeReport, store: Store) -> NodeReport:
    """Return the report whose open changes for the worse name what else changed with them.

    Raises:
        StoreError: the runs cannot be read.
    """
    findings = tuple(
        _named(one, report.judged_until, store)
        if one.regression and not (one.over or one.back)
        else one
        for one in report.findings
    )
    return replace(report, findings=findings)


def _named(finding: Change, until: float, store: Store) -> Change:
    at = finding.time + (EARLY * (until - finding.time) if finding.slow else 0.0)
    new = {one.fact for one in finding.differences}
    metrics = [name for name in METRICS if not new & OF_VERSION.get(name, frozenset())]
    sides = [
        store.beside(key, metrics, at=at, until=until, most=RUNS) for key in finding.cases[:CASES]
    ]
    before, after = ([run for side in sides for run in side[place]] for place in (0, 1))
    return replace(finding, meanwhile=concurrent_changes(before, after))


# --- Keeps the verdicts up to date while results come in.

log = structlog.get_logger()

REST: Final = 20.0
"""Times as long as it has judged does the thread rest: at most a twentieth of one CPU."""
LEAST_REST_SECONDS: Final = 2.0
END_SECONDS: Final = 5.0
"""How long the end of the process waits for a judging that is under way."""


def judged(feed: Feed, judge: Judge, namer: ChangeTracker) -> Verdicts:
    """Return what is said of all that the feed has read."""
    reports = tuple(
        with_concurrent_changes(judge.judge(feed.material(node)), feed.store) for node in feed.nodes
    )
    keys = {one.history.of for report in reports for one in report.verdicts}
    found = Verdicts(
        version=feed.newest_run,
        reports=reports,
        decisions=feed.decisions,
        labels={key: feed.labels(key) for key in keys},
        environments=feed.environments,
        definition_changes=feed.definition_changes(),
    )
    return replace(found, changes=namer.name(found))


class VerdictService:
    """Judges when there is something new, in its own thread.

    Args:
        feed: of the store.
        issues: known ones.
        kept: where changes are known again after a restart; None: they are not.
        told: called with new verdicts, in the thread that made them.
        failed: called with the verdicts so far when judging fails in the keeper's own thread.
        monotonic: seconds of a clock that judgings are timed with.
        rest: waits so many seconds, or until it is told to end; None: as the keeper itself ends.
    """

    def __init__(
        self,
        feed: Feed,
        issues: Sequence[KnownIssue],
        *,
        kept: Changes | None = None,
        told: Callable[[Verdicts], None] = lambda _: None,
        failed: Callable[[Verdicts], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
        rest: Callable[[float], object] | None = None,
    ) -> None:
        self._feed = feed
        self._judge = Judge(issues)
        self._namer = ChangeTracker(kept)
        self._told, self._failed = told, failed
        self._current = Verdicts()
        self._wanted, self._stopped = threading.Event(), threading.Event()
        self._monotonic, self._rest = monotonic, rest or self._stopped.wait
        self._thread = threading.Thread(target=self._run, name="judging", daemon=True)

    @property
    def current(self) -> Verdicts:
        """What was said last."""
        return self._current

    def judge(self) -> Verdicts:
        """Judge what is known now, in this thread, and return what is said."""
        # What was read before a judging that failed is not new any more, but not judged either.
        if self._feed.read() or self._current.failed:
            self._current = judged(self._feed, self._judge, self._namer)
            self._told(self._current)
        return self._current

    def nudge(self) -> None:
        """Say that there may be something new."""
        self._wanted.set()

    def __enter__(self) -> Self:
        self.nudge()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._wanted.set()
        # Nothing is lost with a judging that is cut off: it is derived, and made again.
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        while self._wanted.wait() and not self._stopped.is_set():
            self._wanted.clear()
            begun = self._monotonic()
            try:
                self.judge()
            except StoreError as error:
                log.warning("the results could not be read to be judged", reason=error.reason)
                self._fail()
            except Exception:
                # A fault in judging must not end it for good, nor touch the measuring.
                log.exception("the results could not be judged")
                self._fail()
            self._rest(max(LEAST_REST_SECONDS, REST * (self._monotonic() - begun)))

    def _fail(self) -> None:
        self._current = replace(self._current, failed=True)
        self._failed(self._current)


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
    feed, judge, namer, begun = Feed(results), Judge(issues), ChangeTracker(), -math.inf
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
