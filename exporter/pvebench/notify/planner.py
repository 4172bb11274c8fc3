"""Notifications as functions of changes, activity and what was notified before. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import Any, Final

from pvebench.analysis.change import Change
from pvebench.model.ports import HoldKind
from pvebench.model.status import WorkerStatus
from pvebench.model.units import DAY, show_day, show_time
from pvebench.model.week import parse_weekly
from pvebench.report.value_text import without_secrets
from pvebench.sanitize import one_line
from pvebench.store.changes import KnownChange
from pvebench.store.live_results import View
from pvebench.store.outbox import Message
from pvebench.verdicts.change_text import listed, sentence
from pvebench.verdicts.node_verdicts import OVERDUE, Verdicts
from pvebench.verdicts.overall_state import headline, summary

ALONE: Final = 3
"""Maximum new or ended changes with a message each; more share one."""
LISTED: Final = 10
"""Maximum cases or changes listed in a message; of more it gives the number."""
RETURN_SECONDS: Final = DAY
"""How long after its end a change is reported as back, at the earliest."""
MIN_STOP_SECONDS: Final = 3600.0
WEEK_SECONDS: Final = 7 * DAY
_ENDINGS: Final = {
    "resolved": "Resolved: later changes have taken back more than half of it.",
    "accepted": "Accepted: the current level is the new baseline.",
    "unconfirmed": "No longer confirmed: no run of the last day shows it.",
}
TRIAL: Final = Message(kind="test", title="test", body="This is a test: notifications arrive.")
"""The message of `pvebench notify --test`."""

# --- Changes.


def change_messages(
    changes: Sequence[Change], known: Sequence[KnownChange], now: float
) -> tuple[list[Message], list[KnownChange]]:
    """Return the messages about new and ended changes, and the new state of these.

    Args:
        changes: the open ones. Improvements are only in the weekly summary.
        known: all, with what was notified about them.
    """
    unreported = {change.id: change for change in known if _is_unreported(change, now)}
    new = [change for change in changes if change.id in unreported and change.severity != "info"]
    over = [change for change in known if change.ended is not None and change.notified == "open"]
    notified = [replace(unreported[change.id], notified="open", notified_at=now) for change in new]
    notified += [replace(change, notified="ended", notified_at=now) for change in over]
    opened = [_changed(change, back=unreported[change.id].notified == "ended") for change in new]
    ended = [_ended(change) for change in over]
    endings = [f"{change.text}: {_ENDINGS[change.ending]}" for change in over]
    messages = _few(opened, "regressions", [*map(_dated, new)])
    return messages + _few(ended, "changes resolved", endings), notified


def _few(messages: list[Message], what: str, texts: Sequence[str]) -> list[Message]:
    """Return the messages, or one with a list of the texts if they are more than ALONE."""
    if len(messages) <= ALONE:
        return messages
    return [_message(messages[0].kind, f"{len(messages)} {what}", _list(texts))]


def _is_unreported(change: KnownChange, now: float) -> bool:
    if change.ended is not None or change.notified == "open":
        return False
    return not 0 <= now - change.notified_at < RETURN_SECONDS  # a clock that was ahead delays none


def _changed(change: Change, *, back: bool) -> Message:
    names = list(dict.fromkeys(change.names))
    nodes = f"{listed(change.nodes)}, " if change.nodes else ""
    lines = [
        *(["This change is back:"] if back else []),
        *(sentence(change), "", f"Since: {show_day(change.begin)}"),
        *(f"Where: {nodes}storage {listed(change.storages)}", ""),
        *(f"Cases ({len(names)}):", *_list(names), ""),
        "To accept the current level: pvebench baseline accept --only CASE --reason WHY",
    ]
    return _message("changed", summary(change), lines)


def _ended(change: KnownChange) -> Message:
    lines = [_ENDINGS[change.ending], "", change.text, "", f"Since: {show_day(change.since)}"]
    return _message("ended", f"resolved: {change.text}", lines)


# --- Nodes without a successful run, and the service that has exited.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeActivity:
    """The current activity of a node.

    Attributes:
        node: empty: the service, which has all nodes.
        last_run: end of its latest successful run, Unix seconds; 0: none.
        interval: shortest one of its cases, in seconds.
        waiting: in quiet hours.
        doing: in words.
    """

    node: str = ""
    last_run: float = 0.0
    interval: float = inf
    waiting: bool = False
    doing: str = ""


def node_activities(view: View, statuses: Iterable[WorkerStatus]) -> Iterator[NodeActivity]:
    """Yield the activity of the service, and of each node with planned cases."""
    ends = {key: case.good.finished.timestamp() for key, case in view.cases.items() if case.good}
    yield NodeActivity(last_run=max(ends.values(), default=0.0))
    for status in statuses:
        cases = [case for case in view.planned.values() if case.definition.node == status.node]
        if cases:
            yield NodeActivity(
                node=status.node,
                last_run=max(ends.get(case.key, 0.0) for case in cases),
                interval=min(case.every_seconds for case in cases),
                waiting=status.hold is not None and status.hold.kind is HoldKind.QUIET,
                doing=_doing(status),
            )


def _doing(status: WorkerStatus) -> str:
    if status.hold is not None:
        return f"waiting: {without_secrets(status.hold.reason)}"
    return f"error: {without_secrets(status.fault)}" if status.fault else str(status.state)


def stop_messages(
    activity: NodeActivity, before: Message | None, *, idle: float, exit_reason: str = ""
) -> list[Message]:
    """Return the message that a node or the service has stopped or resumed; none if neither.

    Args:
        before: the newest such message.
        idle: seconds in which it could have measured, but had no successful run.
        exit_reason: why the service ends; empty: it does not.
    """
    where = f" on {activity.node}" if activity.node else ""
    stopped = before is not None and before.kind == "stopped"
    if before is not None and stopped and activity.last_run <= before.last_run:
        return []
    kind, title = "stopped", f"measuring has stopped{where}"
    if exit_reason and not activity.node:
        title += ": pvebench has exited"
        lines = ["pvebench has exited; nothing is measured until it runs again.", "", exit_reason]
    elif stopped:
        kind, title = "resumed", f"measuring has resumed{where}"
        lines = [f"New successful run{where}."]
    elif idle > max(OVERDUE * activity.interval, MIN_STOP_SECONDS):
        latest = f"The latest one ended {show_time(activity.last_run)}."
        lines = [
            f"No successful run{where}, though several were due.",
            latest if activity.last_run else "There has been none yet.",
            f"Current state: {activity.doing}.",
            *("", "Cause: see the web UI and the log, or run `pvebench check`."),
        ]
    else:
        return []
    return [_message(kind, title, lines, node=activity.node, last_run=activity.last_run)]


# --- The week.


def week_messages(
    verdicts: Verdicts, known: Iterable[KnownChange], *, weekly: str, now: datetime, last: float
) -> list[Message]:
    """Return the weekly summary if it is due.

    Args:
        now: in the time zone of `weekly`.
        last: time of the newest summary, or of the start, Unix seconds.
    """
    if weekly == "off" or not verdicts.version:
        return []
    if parse_weekly(weekly).last(now).timestamp() <= last <= now.timestamp():
        return []
    verdict, opened = headline(verdicts), verdicts.open_changes
    newest = max((report.judged_until for report in verdicts.reports), default=0.0)
    begin = now.timestamp() - WEEK_SECONDS
    lines = [
        verdict,
        "",
        *_part("Open regressions", [_dated(c) for c in opened if c.severity != "info"]),
        *_part("Open improvements", [_dated(c) for c in opened if c.severity == "info"]),
        *_part(
            "Resolved or accepted in the last week",
            [change.text for change in known if (change.ended or 0) > begin],
        ),
    ]
    lines += [f"Latest run: {show_time(newest)}." if newest else "No successful run yet."]
    return [_message("weekly", f"weekly summary: {verdict}", lines)]


def _part(heading: str, texts: list[str]) -> list[str]:
    return [f"{heading} ({len(texts)}):", *_list(texts), ""] if texts else []


# --- Texts.


def _dated(change: Change) -> str:
    return f"{show_day(change.begin)}: {summary(change)}"


def _list(texts: Sequence[str]) -> list[str]:
    more = [f"* and {len(texts) - LISTED} more"] if len(texts) > LISTED else []
    return [*(f"* {text}" for text in texts[:LISTED]), *more]


def _message(kind: str, title: str, lines: Iterable[str], **about: Any) -> Message:
    return Message(kind=kind, title=one_line(title), body="\n".join(map(one_line, lines)), **about)
