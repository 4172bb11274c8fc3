"""Notifications: texts, and the planner of changes, ends, stops, restarts, weekly summaries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.change import Change
from pvebench.analysis.verdict import count_text
from pvebench.errors import StoreError
from pvebench.log import log
from pvebench.model.week import Weekly
from pvebench.sanitize import one_line
from pvebench.store import KnownChange, Message, Store
from pvebench.verdicts import Verdicts
from pvebench.verdicts.change_text import listed, sentence
from pvebench.verdicts.headline import headline, summary
from pvebench.verdicts.outages import OVERDUE

MAX_TITLE: Final = 120
MAX_CASES: Final = 10
MAX_CHANGES: Final = 10
"""Maximum changes listed in one message; of more it gives the number."""
_ENDINGS: Final = {
    "resolved": "Resolved: later changes have taken back more than half of it.",
    "accepted": "Accepted: the current level is the new baseline.",
    "unconfirmed": "No longer confirmed: no run of the last day shows it.",
}


@dataclass(frozen=True, slots=True)
class Sender:
    """The instance that sends messages.

    Attributes:
        name: of the machine, to distinguish instances.
        link: address of the web UI; empty: unknown.
    """

    name: str
    link: str = ""

    def message(self, about: str, kind: str, title: str, lines: Iterable[str]) -> Message:
        """Return a message with the common prefix and footer."""
        footer = [f"pvebench on {one_line(self.name)}"]
        footer += [f"{self.link}/"] if self.link else []
        return Message(
            about=about,
            kind=kind,
            title=one_line(f"pvebench: {title}", MAX_TITLE),
            body="\n".join([*lines, "", *footer]),
        )


def changed(sender: Sender, change: Change, *, about: str, again: bool = False) -> Message:
    """Return the message about a new change; `again`: it had been reported as ended."""
    lines = ["This change is back:"] if again else []
    lines += [one_line(sentence(change)), "", f"Since: {_day(change.begin)}"]
    lines += [f"Where: {_where(change)}", ""]
    lines += [f"Cases ({len(set(change.names))}):", *_cases(change.names), ""]
    lines += ["To accept the current level: pvebench baseline accept --only CASE --reason WHY"]
    return sender.message(about, "changed", summary(change), lines)


def many_changed(sender: Sender, changes: Sequence[Change], *, about: str, first: bool) -> Message:
    """Return one message about many new changes.

    Args:
        first: they may be old: there was no notification before.
    """
    title = count_text(len(changes), "regression")
    lines = ["pvebench reports each new change once. Already open:", ""] if first else []
    return sender.message(about, "changed", title, [*lines, *_listed(changes)])


def ended(sender: Sender, change: KnownChange, *, about: str) -> Message:
    """Return the message about an ended change."""
    text = one_line(change.text)
    lines = [_ENDINGS[change.ending], "", text, "", f"Since: {_day(change.since)}"]
    return sender.message(about, "ended", f"resolved: {text}", lines)


def many_ended(sender: Sender, changes: Sequence[KnownChange], *, about: str) -> Message:
    """Return one message about many ended changes."""
    lines = [
        f"* {one_line(change.text)}: {_ENDINGS[change.ending]}" for change in changes[:MAX_CHANGES]
    ]
    lines += _more(len(changes) - MAX_CHANGES)
    return sender.message(about, "ended", f"{len(changes)} changes resolved", lines)


def stopped(sender: Sender, node: str, *, about: str, last: float | None, doing: str) -> Message:
    """Return the message about a node without a successful run; `doing`: its state in words.

    Args:
        last: end of its latest successful run, Unix seconds.
    """
    latest = f"The latest one ended {show_time(last)}." if last else "There has been none yet."
    lines = [f"No successful run on {one_line(node)}, though several were due.", latest]
    lines += [f"Current state: {one_line(doing)}."] if doing else []
    lines += ["", "Cause: see the web UI and the log, or run `pvebench check`."]
    return sender.message(about, "stopped", f"measuring has stopped on {one_line(node)}", lines)


def exited(sender: Sender, why: str, *, about: str) -> Message:
    """Return the message about a service that ends with an error."""
    lines = ["pvebench has exited; nothing is measured until it runs again.", "", one_line(why)]
    return sender.message(about, "stopped", "measuring has stopped: pvebench has exited", lines)


def resumed(sender: Sender, node: str, *, about: str) -> Message:
    """Return the message about new runs after a stop; an empty node: on all nodes."""
    where = f" on {one_line(node)}" if node else ""
    return sender.message(
        about, "going", f"measuring has resumed{where}", [f"New successful run{where}."]
    )


def weekly(
    sender: Sender, verdicts: Verdicts, ends: Sequence[KnownChange], *, about: str
) -> Message:
    """Return the weekly summary; `ends`: changes that ended in the week."""
    verdict = one_line(headline(verdicts))
    lines = [verdict, ""]
    for heading, better in (("Open regressions", False), ("Open improvements", True)):
        changes = [
            change for change in verdicts.open_changes if (change.severity == "info") == better
        ]
        if changes:
            lines += [f"{heading} ({len(changes)}):", *_listed(changes), ""]
    if ends:
        lines += [f"Resolved or accepted in the last week ({len(ends)}):"]
        lines += [f"* {one_line(change.text)}" for change in ends[:MAX_CHANGES]]
        lines += [*_more(len(ends) - MAX_CHANGES), ""]
    newest = max((report.judged_until for report in verdicts.reports), default=0.0)
    lines += [f"Latest run: {show_time(newest)}." if newest else "No successful run yet."]
    return sender.message(about, "weekly", f"weekly summary: {verdict}", lines)


def trial(sender: Sender) -> Message:
    """Return the message of `pvebench notify --test`."""
    return sender.message("test", "test", "test", ["This is a test: notifications arrive."])


def _where(change: Change) -> str:
    storages = f"storage {listed(change.storages)}"
    return one_line(f"{listed(change.nodes)}, {storages}" if change.nodes else storages)


def _listed(changes: Sequence[Change]) -> list[str]:
    lines = [f"* {_day(change.begin)}: {summary(change)}" for change in changes[:MAX_CHANGES]]
    return [*lines, *_more(len(changes) - MAX_CHANGES)]


def _cases(names: Sequence[str]) -> list[str]:
    different = list(dict.fromkeys(names))
    lines = [f"* {one_line(name)}" for name in different[:MAX_CASES]]
    return [*lines, *_more(len(different) - MAX_CASES)]


def _more(count: int) -> list[str]:
    return [f"* and {count} more"] if count > 0 else []


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def show_time(time: float) -> str:
    """Return Unix seconds as date and time, in UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


ALONE: Final = 3
"""Maximum changes of one update that get a message each; more share one."""
MIN_STOP_SECONDS: Final = 3600.0
WEEK_SECONDS: Final = 7 * 86400.0
SERVICE: Final = "service/"
"""Prefix of events that concern all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivity:
    """The current activity of a node.

    Attributes:
        newest: end of its latest successful run, Unix seconds; None: there is none.
        interval: shortest one of its cases, in seconds.
        waiting: in quiet hours.
        doing: in words, for the message; empty: unknown.
    """

    node: str
    newest: float | None
    interval: float
    waiting: bool = False
    doing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationPolicy:
    """Notification settings.

    Attributes:
        targets: names of the receivers; empty: notifications are off.
        weekly: time of the weekly summary; None: off.
    """

    targets: Sequence[str]
    sender: Sender
    weekly: Weekly | None = None


class NotificationPlanner:
    """Queue notifications in the outbox.

    Args:
        policy: policy of the current settings.
        activities: of all nodes.
        now: the time, in the time zone of the weekly summary.
        monotonic: seconds of a clock that never jumps: it measures stops.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], NotificationPolicy],
        activities: Callable[[], Sequence[WorkerActivity]],
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._policy, self._activities = store, policy, activities
        self._now, self._monotonic = now, monotonic
        self._begun = now()
        self._verdicts = Verdicts()
        self._seen: dict[str, tuple[float | None, float]] = {}
        self._one_at_a_time = threading.Lock()

    def judged(self, verdicts: Verdicts) -> None:
        """Queue notifications for new and ended changes; `VerdictService` calls this."""
        self._verdicts = verdicts
        policy = self._policy()
        try:
            with self._one_at_a_time:
                if policy.targets:
                    self._queue_changes(verdicts, policy)
        except StoreError as error:
            # Nothing is marked as notified: the next update queues it.
            log.warning("queueing notifications failed", reason=str(error))

    def plan(self) -> None:
        """Queue what depends on time: a stop, a restart, the weekly summary. Raises StoreError."""
        policy = self._policy()
        if not policy.targets:
            return
        with self._one_at_a_time:
            for activity in self._activities():
                self._check_node(activity, policy)
            self._check_service(policy)
            self._check_week(policy)

    def report_exit(self, why: str) -> None:
        """Queue a message that the service ends with an error. Raises StoreError."""
        policy = self._policy()
        if policy.targets:
            about = f"{SERVICE}stopped/{self._version()}"
            self._put(policy, [exited(policy.sender, why, about=about)])

    def _queue_changes(self, verdicts: Verdicts, policy: NotificationPolicy) -> None:
        known = {change.id: change for change in self._store.changes.all()}
        fresh = [change for change in verdicts.open_changes if change.id in known]
        fresh = [change for change in fresh if known[change.id].notified != "open"]
        ends = [
            change
            for change in known.values()
            if change.ended is not None and change.notified == "open"
        ]
        # Improvements are only in the weekly summary.
        regressions = [change for change in fresh if change.severity != "info"]
        queued = self._of_changes(policy.sender, regressions, known)
        queued += self._of_ends(
            policy.sender, [change for change in ends if change.severity != "info"]
        )
        notified = [replace(known[change.id], notified="open") for change in fresh]
        notified += [replace(change, notified="ended") for change in ends]
        if notified:
            self._put(policy, queued, notified)

    def _of_changes(
        self, sender: Sender, fresh: Sequence[Change], known: Mapping[str, KnownChange]
    ) -> list[Message]:
        first = bool(fresh) and all(change.notified == "" for change in known.values())
        if first or len(fresh) > ALONE:
            about = self._of_many("open", [change.id for change in fresh])
            return [many_changed(sender, fresh, about=about, first=first)]
        return [
            changed(
                sender,
                change,
                about=f"change/{change.id}/open/{self._day()}",
                again=known[change.id].notified == "ended",
            )
            for change in fresh
        ]

    def _of_ends(self, sender: Sender, ends: Sequence[KnownChange]) -> list[Message]:
        if len(ends) > ALONE:
            about = self._of_many("ended", [change.id for change in ends])
            return [many_ended(sender, ends, about=about)]
        return [
            ended(sender, change, about=f"change/{change.id}/ended/{self._day()}")
            for change in ends
        ]

    def _of_many(self, what: str, ids: Sequence[str]) -> str:
        return f"changes/{what}/{self._day()}/{len(ids)}/{min(ids)}"

    def _check_node(self, activity: WorkerActivity, policy: NotificationPolicy) -> None:
        """Queue a message that a node has stopped, or has resumed."""
        name, run = f"node/{activity.node}/", f"{activity.newest or 0:.0f}"
        still = self._still(activity)
        last = self._store.outbox.newest("stopped", "going", about=name)
        if last is not None and last.startswith(f"{name}stopped/"):
            if last != f"{name}stopped/{run}":
                about = f"{name}going/{run}"
                self._put(policy, [resumed(policy.sender, activity.node, about=about)])
        elif still > max(OVERDUE * activity.interval, MIN_STOP_SECONDS):
            message = stopped(
                policy.sender,
                activity.node,
                about=f"{name}stopped/{run}",
                last=activity.newest,
                doing=activity.doing,
            )
            self._put(policy, [message])

    def _still(self, activity: WorkerActivity) -> float:
        """Return for how many seconds a node could have measured without a successful run."""
        newest, since = self._seen.get(activity.node, (None, 0.0))
        if activity.node not in self._seen or activity.newest != newest or activity.waiting:
            since = self._monotonic()
        self._seen[activity.node] = activity.newest, since
        return self._monotonic() - since

    def _check_service(self, policy: NotificationPolicy) -> None:
        last = self._store.outbox.newest("stopped", "going", about=SERVICE)
        fallen = last is not None and last.startswith(f"{SERVICE}stopped/")
        if last is None or not fallen or self._version() <= int(last.rpartition("/")[2]):
            return
        about = f"{SERVICE}going/{self._version()}"
        self._put(policy, [resumed(policy.sender, "", about=about)])

    def _check_week(self, policy: NotificationPolicy) -> None:
        if policy.weekly is None or not self._verdicts.version:
            return
        now = self._now()
        due = policy.weekly.last(now)
        last = self._store.outbox.newest("weekly")
        if last is None:
            if due <= self._begun <= now:  # it was due before this instance started
                return
        elif f"weekly/{due:%Y-%m-%d}" <= last <= f"weekly/{now:%Y-%m-%d}":
            return  # a later date than now comes from a clock that was wrong
        since = now.timestamp() - WEEK_SECONDS
        ends = [change for change in self._store.changes.all() if (change.ended or 0) > since]
        about = f"weekly/{due:%Y-%m-%d}"
        self._put(policy, [weekly(policy.sender, self._verdicts, ends, about=about)])

    def _version(self) -> int:
        """Return the number of the newest run."""
        return max((run.number for run in self._store.runs(limit=1)), default=0)

    def _day(self) -> str:
        return f"{self._now():%Y-%m-%d}"

    def _put(
        self,
        policy: NotificationPolicy,
        queued: Sequence[Message],
        notified: Iterable[KnownChange] = (),
    ) -> None:
        now = self._now().timestamp()
        self._store.outbox.put(queued, policy.targets, now=now, notified=notified)
