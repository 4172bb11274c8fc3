"""The messages in words. Pure: a title of one line, and a text that any service can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pvebench.sanitize import one_line
from pvebench.store import KnownChange, Message
from pvebench.verdicts import Verdicts
from pvebench.verdicts.headline import headline
from pvebench.verdicts.text import sentence
from pvebench.verdicts.verdicts import OpenChange, listed

MOST_TITLE: Final = 120
MOST_CASES: Final = 10
MOST_CHANGES: Final = 10
"""That one message lists; of more it tells the number."""
_ENDINGS: Final = {
    "over": "It is over: later changes have taken back the better half of it.",
    "accepted": "Somebody has accepted it: the present level is the baseline now.",
    "unsaid": "It is no longer confirmed: for a day of runs nothing has shown it.",
}


@dataclass(frozen=True, slots=True)
class Sender:
    """Who tells it.

    Attributes:
        name: of the machine, so that two of them can be told apart.
        link: address of the page; empty: not known.
    """

    name: str
    link: str = ""

    def message(self, about: str, kind: str, title: str, lines: Iterable[str]) -> Message:
        """Return a message with what stands in all of them."""
        foot = [f"pvebench on {one_line(self.name)}"]
        foot += [f"{self.link}/"] if self.link else []
        return Message(
            about=about,
            kind=kind,
            title=one_line(f"pvebench: {title}", MOST_TITLE),
            body="\n".join([*lines, "", *foot]),
        )


def changed(sender: Sender, change: OpenChange, *, about: str, again: bool = False) -> Message:
    """Return what is told of one change; `again`: it had been told as over."""
    finding = change.finding
    lines = ["It is back:"] if again else []
    lines += [one_line(sentence(finding)), "", f"Since: {_day(finding.time)}"]
    lines += [f"Where: {_where(change)}", ""]
    lines += [f"Cases ({len(set(finding.names))}):", *_cases(finding.names), ""]
    lines += ["If it is right: pvebench baseline accept --reason WHY"]
    return sender.message(about, "changed", change.summary, lines)


def many_changed(
    sender: Sender, found: Sequence[OpenChange], *, about: str, first: bool
) -> Message:
    """Return what is told of many changes at once.

    Args:
        first: they may be old: nobody was told of anything before.
    """
    title = f"{len(found)} change{'s' if len(found) > 1 else ''} for the worse"
    lines = ["From now on every change is told once. Open already:", ""] if first else []
    return sender.message(about, "changed", title, [*lines, *_listed(found)])


def ended(sender: Sender, change: KnownChange, *, about: str) -> Message:
    """Return what is told when a change is open no more."""
    text = one_line(change.text)
    lines = [_ENDINGS[change.ending], "", text, "", f"Since: {_day(change.since)}"]
    return sender.message(about, "ended", f"over: {text}", lines)


def many_ended(sender: Sender, found: Sequence[KnownChange], *, about: str) -> Message:
    """Return what is told when many changes are open no more."""
    lines = [f"* {one_line(one.text)}: {_ENDINGS[one.ending]}" for one in found[:MOST_CHANGES]]
    lines += _more(len(found) - MOST_CHANGES)
    return sender.message(about, "ended", f"{len(found)} changes are over", lines)


def stopped(sender: Sender, node: str, *, about: str, last: float | None, doing: str) -> Message:
    """Return what is told when a node has had no good run for long; `doing`: in words."""
    newest = f"The last good run ended {show_time(last)}." if last else "There has been none yet."
    lines = [f"There is no new good run on {one_line(node)}, though several were due.", newest]
    lines += [f"It is {one_line(doing)}."] if doing else []
    lines += ["", "Why: the page and the log say it; `pvebench check` looks at the rest."]
    return sender.message(about, "stopped", f"measuring has stopped on {one_line(node)}", lines)


def fell(sender: Sender, why: str, *, about: str) -> Message:
    """Return what is told when the service ends by a fault."""
    lines = ["pvebench has ended; nothing is measured until it runs again.", "", one_line(why)]
    return sender.message(about, "stopped", "measuring has stopped: pvebench has ended", lines)


def going(sender: Sender, node: str, *, about: str) -> Message:
    """Return what is told when there are runs again; an empty node: on all of them."""
    where = f" on {one_line(node)}" if node else ""
    return sender.message(
        about, "going", f"measuring goes on{where}", [f"There is a new good run{where}."]
    )


def weekly(
    sender: Sender, verdicts: Verdicts, ends: Sequence[KnownChange], *, about: str
) -> Message:
    """Return the summary of a week; `ends`: changes that were over in it."""
    said = one_line(headline(verdicts))
    lines = [said, ""]
    for heading, better in (("Open, for the worse", False), ("Open, for the better", True)):
        found = [one for one in verdicts.changes if (one.severity == "info") == better]
        if found:
            lines += [f"{heading} ({len(found)}):", *_listed(found), ""]
    if ends:
        lines += [f"Over in the last week ({len(ends)}):"]
        lines += [f"* {one_line(one.text)}" for one in ends[:MOST_CHANGES]]
        lines += [*_more(len(ends) - MOST_CHANGES), ""]
    newest = max((report.judged_until for report in verdicts.reports), default=0.0)
    lines += [f"Newest run: {show_time(newest)}." if newest else "There is no good run yet."]
    return sender.message(about, "weekly", f"the week: {said}", lines)


def trial(sender: Sender) -> Message:
    """Return the message of `pvebench notify --test`."""
    return sender.message("test", "test", "a test", ["This is a test: messages arrive."])


def _where(change: OpenChange) -> str:
    storages = f"storage {listed(change.storages)}"
    return one_line(f"{listed(change.nodes)}, {storages}" if change.nodes else storages)


def _listed(found: Sequence[OpenChange]) -> list[str]:
    lines = [f"* {_day(one.finding.time)}: {one.summary}" for one in found[:MOST_CHANGES]]
    return [*lines, *_more(len(found) - MOST_CHANGES)]


def _cases(names: Sequence[str]) -> list[str]:
    different = list(dict.fromkeys(names))
    lines = [f"* {one_line(name)}" for name in different[:MOST_CASES]]
    return [*lines, *_more(len(different) - MOST_CASES)]


def _more(count: int) -> list[str]:
    return [f"* and {count} more"] if count > 0 else []


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def show_time(time: float) -> str:
    """Return UNIX seconds as day and minute, in UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"
