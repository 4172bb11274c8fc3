"""Notification texts: a title of one line, and a plain text body. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.change import Change
from pvebench.analysis.verdict import count_text
from pvebench.sanitize import one_line
from pvebench.store import KnownChange, Message
from pvebench.verdicts import Verdicts
from pvebench.verdicts.headline import headline, summary
from pvebench.verdicts.text import listed, sentence

MOST_TITLE: Final = 120
MOST_CASES: Final = 10
MOST_CHANGES: Final = 10
"""Maximum changes listed in one message; of more it gives the number."""
_ENDINGS: Final = {
    "over": "Resolved: later changes have taken back more than half of it.",
    "accepted": "Accepted: the current level is the new baseline.",
    "unsaid": "No longer confirmed: no run of the last day shows it.",
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
            title=one_line(f"pvebench: {title}", MOST_TITLE),
            body="\n".join([*lines, "", *footer]),
        )


def changed(sender: Sender, change: Change, *, about: str, again: bool = False) -> Message:
    """Return the message about a new change; `again`: it had been reported as ended."""
    lines = ["This change is back:"] if again else []
    lines += [one_line(sentence(change)), "", f"Since: {_day(change.begin)}"]
    lines += [f"Where: {_where(change)}", ""]
    lines += [f"Cases ({len(set(change.names))}):", *_cases(change.names), ""]
    lines += ["To accept the current level: pvebench baseline accept --reason WHY"]
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
    lines = [f"* {one_line(one.text)}: {_ENDINGS[one.ending]}" for one in changes[:MOST_CHANGES]]
    lines += _more(len(changes) - MOST_CHANGES)
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
        changes = [one for one in verdicts.open_changes if (one.severity == "info") == better]
        if changes:
            lines += [f"{heading} ({len(changes)}):", *_listed(changes), ""]
    if ends:
        lines += [f"Resolved or accepted in the last week ({len(ends)}):"]
        lines += [f"* {one_line(one.text)}" for one in ends[:MOST_CHANGES]]
        lines += [*_more(len(ends) - MOST_CHANGES), ""]
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
    lines = [f"* {_day(one.begin)}: {summary(one)}" for one in changes[:MOST_CHANGES]]
    return [*lines, *_more(len(changes) - MOST_CHANGES)]


def _cases(names: Sequence[str]) -> list[str]:
    different = list(dict.fromkeys(names))
    lines = [f"* {one_line(name)}" for name in different[:MOST_CASES]]
    return [*lines, *_more(len(different) - MOST_CASES)]


def _more(count: int) -> list[str]:
    return [f"* and {count} more"] if count > 0 else []


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def show_time(time: float) -> str:
    """Return Unix seconds as date and time, in UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"
