"""Judging at the hub: a node a job, from nothing, by any number of worker processes.

A node is due once a day if it has new runs, at once after an upgrade was seen, and several times in
the first days behind it. The analysis is that of a site.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from pvebench.log import log
from pvebench.model.environment import KnownIssue
from pvebench.model.units import DAY
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench_fleet import HubDatabaseError
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.node_transaction import NodeTransaction

INTERVAL_SECONDS: Final = DAY
UPGRADE_SECONDS: Final = 21600.0
"""Interval while the newest software is new."""
NEW_SECONDS: Final = 3 * DAY
"""How long software is new, by the times of the runs."""
POLL_SECONDS: Final = 10.0
"""Pause of a worker if no node is due, or if the database is away."""


def judge_next(
    database: HubDatabase, issues: Sequence[KnownIssue], clock: Callable[[], float] = time.time
) -> bool:
    """Judge the most overdue node; return whether there was one.

    A node whose judging fails waits for its next day; the others go on.

    Raises:
        HubDatabaseError: nothing of this judging is stored.
    """
    place: tuple[int, str] | None = None
    now = clock()
    try:
        with database.begin_judging(now) as node:
            if node is None:
                return False
            place = node.site, node.node
            _judge(node, issues, now, clock)
    except HubDatabaseError:
        raise
    except Exception as error:
        if place is None:
            raise
        log.exception("judging a node failed", site=place[0], node=place[1])
        database.postpone(*place, now + INTERVAL_SECONDS, f"{type(error).__name__}: {error}")
    return True


def _judge(
    node: NodeTransaction, issues: Sequence[KnownIssue], now: float, clock: Callable[[], float]
) -> None:
    service = VerdictService(node, issues, kept=node.known_changes)
    verdicts = service.judge()
    interval = UPGRADE_SECONDS if _is_new(verdicts) else INTERVAL_SECONDS
    node.save(verdicts, now=now, due=now + interval, seconds=clock() - now)
    log.info("node judged", site=node.site_name, node=node.node, seconds=round(clock() - now, 1))


def _is_new(verdicts: Verdicts) -> bool:
    """Return whether the newest software came in the last days of the runs."""
    return any(
        report.judged_until - event.time < NEW_SECONDS
        for report in verdicts.reports
        for event in report.events[-1:]
    )


def judge_all(
    database: HubDatabase, issues: Sequence[KnownIssue], wait: Callable[[float], bool]
) -> None:
    """Judge nodes as they get due, until `wait` (seconds) returns that the process ends."""
    ended = False
    while not ended:
        try:
            judged = judge_next(database, issues)
        except HubDatabaseError as error:
            log.warning("judging failed", reason=error.reason)
            judged = False
        ended = wait(0.0 if judged else POLL_SECONDS)
