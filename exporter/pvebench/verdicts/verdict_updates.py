"""Verdict updates in their own thread, while results come in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Self

from pvebench.analysis.change import Change
from pvebench.analysis.concurrent_changes import METRICS, OF_VERSION, concurrent_changes
from pvebench.analysis.judge import Judge, NodeReport
from pvebench.errors import StoreError
from pvebench.log import log
from pvebench.model.environment import KnownIssue
from pvebench.verdicts.change_tracker import ChangeTracker
from pvebench.verdicts.judge_input import JudgeInput, KnownChanges, RunSource, StoredRuns
from pvebench.verdicts.node_verdicts import Verdicts, changes_of

# --- Other possible causes of open regressions, from the numbers stored with their runs.

RUNS: Final = 20
"""Maximum runs of a case on each side of a change that are compared, newest first."""
CASES: Final = 3
"""Maximum cases of a change that are compared: node and storage are the same in all."""
EARLY: Final = 0.25
"""Share of a drift's duration whose runs count as those before it."""


def with_concurrent_changes(report: NodeReport, store: StoredRuns) -> NodeReport:
    """Return the report whose open regressions have their other possible causes.

    Raises:
        StoreError: the runs cannot be read.
    """
    changes = tuple(
        _with_causes(change, report.judged_until, store) if change.regression else change
        for change in report.findings
    )
    return replace(report, findings=changes)


def _with_causes(change: Change, until: float, store: StoredRuns) -> Change:
    at = change.begin + (EARLY * (until - change.begin) if change.slow else 0.0)
    new = {difference.fact for difference in change.differences}
    metrics = [name for name in METRICS if not new & OF_VERSION.get(name, frozenset())]
    sides = [
        store.undirected(key, metrics, at=at, until=until, most=RUNS)
        for key in change.cases[:CASES]
    ]
    before, after = ([run for side in sides for run in side[place]] for place in (0, 1))
    return replace(change, meanwhile=concurrent_changes(before, after))


# --- Verdict updates while results come in.


REST: Final = 20.0
"""Pause after an update, as a multiple of its duration: at most a twentieth of one CPU."""
LEAST_REST_SECONDS: Final = 2.0
END_SECONDS: Final = 5.0
"""How long shutdown waits for an update in progress."""


def judged(judge_input: JudgeInput, judge: Judge, tracker: ChangeTracker) -> Verdicts:
    """Return the verdicts on everything that the judge's input has."""
    reports = tuple(
        with_concurrent_changes(judge.judge(judge_input.material(node)), judge_input.store)
        for node in judge_input.nodes
    )
    keys = {verdict.history.of for report in reports for verdict in report.verdicts}
    view = judge_input.view
    verdicts = Verdicts(
        version=judge_input.newest_run,
        reports=reports,
        decisions=judge_input.decisions,
        labels={key: view.cases[key].definition.labels for key in keys},
        environments={period.environment: period.slug for period in view.periods},
        definition_changes=view.definition_changes(),
        changes=changes_of(reports),
    )
    return replace(verdicts, changes=tracker.name(verdicts))


class VerdictService:
    """Updates verdicts when there is new data, in its own thread.

    Args:
        results: the runs to judge.
        issues: known ones.
        environments: digests; only runs in these count; None: all.
        kept: where change IDs survive a restart; None: they do not.
        on_update: called with new verdicts, in the thread of the update; with the latest ones,
            marked as `failed`, when an update fails in the service's own thread.
        monotonic: seconds of the clock that times updates.
        rest: waits so many seconds, or until the service ends; None: the service's own wait.
    """

    def __init__(
        self,
        results: RunSource,
        issues: Sequence[KnownIssue],
        *,
        environments: frozenset[str] | None = None,
        kept: KnownChanges | None = None,
        on_update: Callable[[Verdicts], None] = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
        rest: Callable[[float], object] | None = None,
    ) -> None:
        self._input = JudgeInput(results, environments=environments)
        self._judge = Judge(issues)
        self._tracker = ChangeTracker(kept)
        self._updated = on_update
        self._current = Verdicts()
        self._requested, self._stopped = threading.Event(), threading.Event()
        self._monotonic, self._rest = monotonic, rest or self._stopped.wait
        self._thread = threading.Thread(target=self._run, name="judging", daemon=True)

    @property
    def current(self) -> Verdicts:
        """The latest verdicts."""
        return self._current

    def judge(self) -> Verdicts:
        """Update the verdicts in this thread, and return them."""
        # After a failed update there is nothing new, but the runs it read are not judged yet.
        if self._input.read() or self._current.failed:
            self._current = judged(self._input, self._judge, self._tracker)
            self._updated(self._current)
        return self._current

    def nudge(self) -> None:
        """Request an update: there may be new data."""
        self._requested.set()

    def __enter__(self) -> Self:
        self.nudge()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._requested.set()
        # An interrupted update loses nothing: verdicts are derived from the stored runs.
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        while self._requested.wait() and not self._stopped.is_set():
            self._requested.clear()
            begun = self._monotonic()
            try:
                self.judge()
            except StoreError as error:
                log.warning("reading results for a verdict update failed", reason=error.reason)
                self._fail()
            except Exception:
                # An internal error must not end the updates for good, nor affect measuring.
                log.exception("verdict update failed")
                self._fail()
            self._rest(max(LEAST_REST_SECONDS, REST * (self._monotonic() - begun)))

    def _fail(self) -> None:
        self._current = replace(self._current, failed=True)
        self._updated(self._current)
