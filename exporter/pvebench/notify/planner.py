"""Decides what is to be told: changes and their ends, stops and starts, the week. Each once.

What was told stands in the store, in the same transaction as the message: nothing is queued twice
or forgotten, whenever the process is killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import structlog

from pvebench.errors import StoreError
from pvebench.model.week import Weekly
from pvebench.notify import messages
from pvebench.notify.messages import Sender
from pvebench.store import KnownChange, Message, Store
from pvebench.verdicts import Verdicts
from pvebench.verdicts.verdicts import OpenChange

log = structlog.get_logger()

ALONE: Final = 3
"""Changes of one judging that get a message each; more are told in one."""
OVERDUE: Final = 2.5
"""Intervals without a good run after which measuring has stopped; as the alert has it."""
LEAST_STOP_SECONDS: Final = 3600.0
WEEK_SECONDS: Final = 7 * 86400.0
SERVICE: Final = "service/"
"""How that begins which all nodes have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What a node's measuring looks like now.

    Attributes:
        newest: end of its newest good run, UNIX seconds; None: there is none.
        interval: shortest one of its cases, in seconds.
        waiting: nothing is to be measured now, by the settings.
        doing: in words, for the message; empty: nothing to say.
    """

    node: str
    newest: float | None
    interval: float
    waiting: bool = False
    doing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationPolicy:
    """What the settings ask for.

    Attributes:
        targets: names; none: nobody is told anything.
        weekly: None: no summary.
    """

    targets: Sequence[str]
    sender: Sender
    weekly: Weekly | None = None


class NotificationPlanner:
    """Puts messages into the outbox.

    Args:
        wishes: of the settings in force.
        pulses: of all nodes.
        now: the time, in the zone that the week is told in.
        monotonic: seconds of a clock that nobody sets: a stop is told by it.
    """

    def __init__(
        self,
        store: Store,
        wishes: Callable[[], NotificationPolicy],
        pulses: Callable[[], Sequence[Pulse]],
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._wishes, self._pulses = store, wishes, pulses
        self._now, self._monotonic = now, monotonic
        self._begun = now()
        self._verdicts = Verdicts()
        self._seen: dict[str, tuple[float | None, float]] = {}
        self._one_at_a_time = threading.Lock()

    def judged(self, verdicts: Verdicts) -> None:
        """Take over new verdicts and tell what is new in them; called by who judges."""
        self._verdicts = verdicts
        wishes = self._wishes()
        try:
            with self._one_at_a_time:
                if wishes.targets:
                    self._tell_changes(verdicts, wishes)
        except StoreError as error:
            # Nothing is noted as told: the next judging tells it.
            log.warning("changes could not be queued for telling", reason=str(error))

    def look(self) -> None:
        """Tell what has come with time: a stop, a start, the end of a week. Raises StoreError."""
        wishes = self._wishes()
        if not wishes.targets:
            return
        with self._one_at_a_time:
            for pulse in self._pulses():
                self._look_at(pulse, wishes)
            self._look_at_service(wishes)
            self._look_at_week(wishes)

    def fell(self, why: str) -> None:
        """Tell that the service ends by a fault. Raises StoreError."""
        wishes = self._wishes()
        if wishes.targets:
            about = f"{SERVICE}stopped/{self._version()}"
            self._put(wishes, [messages.fell(wishes.sender, why, about=about)])

    def _tell_changes(self, verdicts: Verdicts, wishes: NotificationPolicy) -> None:
        known = {one.id: one for one in self._store.changes.all()}
        untold = [one for one in verdicts.changes if one.id in known]
        untold = [one for one in untold if known[one.id].told != "open"]
        # What is for the better waits for the week's summary.
        worse = [one for one in untold if one.severity != "info"]
        ends = [one for one in known.values() if one.ended is not None and one.told == "open"]
        found = self._of_changes(wishes.sender, worse, known)
        found += self._of_ends(wishes.sender, [one for one in ends if one.severity != "info"])
        told = [replace(known[one.id], told="open") for one in untold]
        told += [replace(one, told="ended") for one in ends]
        if told:
            self._put(wishes, found, told)

    def _of_changes(
        self, sender: Sender, fresh: Sequence[OpenChange], known: Mapping[str, KnownChange]
    ) -> list[Message]:
        first = bool(fresh) and all(one.told == "" for one in known.values())
        if first or len(fresh) > ALONE:
            about = self._of_many("open", [one.id for one in fresh])
            return [messages.many_changed(sender, fresh, about=about, first=first)]
        return [
            messages.changed(
                sender,
                one,
                about=f"change/{one.id}/open/{self._day()}",
                again=known[one.id].told == "ended",
            )
            for one in fresh
        ]

    def _of_ends(self, sender: Sender, ends: Sequence[KnownChange]) -> list[Message]:
        if len(ends) > ALONE:
            about = self._of_many("ended", [one.id for one in ends])
            return [messages.many_ended(sender, ends, about=about)]
        return [
            messages.ended(sender, one, about=f"change/{one.id}/ended/{self._day()}")
            for one in ends
        ]

    def _of_many(self, what: str, ids: Sequence[str]) -> str:
        return f"changes/{what}/{self._day()}/{len(ids)}/{min(ids)}"

    def _look_at(self, pulse: Pulse, wishes: NotificationPolicy) -> None:
        """Tell that a node has stopped, or goes again."""
        name, run = f"node/{pulse.node}/", f"{pulse.newest or 0:.0f}"
        still = self._still(pulse)
        last = self._store.outbox.newest("stopped", "going", about=name)
        if last is not None and last.startswith(f"{name}stopped/"):
            if last != f"{name}stopped/{run}":
                about = f"{name}going/{run}"
                self._put(wishes, [messages.going(wishes.sender, pulse.node, about=about)])
        elif still > max(OVERDUE * pulse.interval, LEAST_STOP_SECONDS):
            message = messages.stopped(
                wishes.sender,
                pulse.node,
                about=f"{name}stopped/{run}",
                last=pulse.newest,
                doing=pulse.doing,
            )
            self._put(wishes, [message])

    def _still(self, pulse: Pulse) -> float:
        """Return for how many seconds a node could have measured, and had no good run."""
        newest, since = self._seen.get(pulse.node, (None, 0.0))
        if pulse.node not in self._seen or pulse.newest != newest or pulse.waiting:
            since = self._monotonic()
        self._seen[pulse.node] = pulse.newest, since
        return self._monotonic() - since

    def _look_at_service(self, wishes: NotificationPolicy) -> None:
        last = self._store.outbox.newest("stopped", "going", about=SERVICE)
        fallen = last is not None and last.startswith(f"{SERVICE}stopped/")
        if last is None or not fallen or self._version() <= int(last.rpartition("/")[2]):
            return
        about = f"{SERVICE}going/{self._version()}"
        self._put(wishes, [messages.going(wishes.sender, "", about=about)])

    def _look_at_week(self, wishes: NotificationPolicy) -> None:
        if wishes.weekly is None or not self._verdicts.version:
            return
        now = self._now()
        due = wishes.weekly.last(now)
        last = self._store.outbox.newest("weekly")
        if last is None:
            if due <= self._begun <= now:  # it was before anybody could tell it
                return
        elif f"weekly/{due:%Y-%m-%d}" <= last <= f"weekly/{now:%Y-%m-%d}":
            return  # a summary of the future, instead, was told by another clock
        since = now.timestamp() - WEEK_SECONDS
        ends = [one for one in self._store.changes.all() if (one.ended or 0) > since]
        about = f"weekly/{due:%Y-%m-%d}"
        self._put(wishes, [messages.weekly(wishes.sender, self._verdicts, ends, about=about)])

    def _version(self) -> int:
        """Return the number of the newest run."""
        return max((run.number for run in self._store.runs(limit=1)), default=0)

    def _day(self) -> str:
        return f"{self._now():%Y-%m-%d}"

    def _put(
        self, wishes: NotificationPolicy, found: Sequence[Message], told: Iterable[KnownChange] = ()
    ) -> None:
        now = self._now().timestamp()
        self._store.outbox.put(found, wishes.targets, now=now, told=told)
