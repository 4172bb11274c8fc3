"""Quiet hours: windows of the week in which nothing is measured. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW: Final = re.compile(
    r"(?:(?P<first>[A-Za-z]{3})(?:-(?P<last>[A-Za-z]{3}))?\s+)?"
    r"(?P<begin>\d{1,2}:\d{2})-(?P<end>\d{1,2}:\d{2})\Z",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class QuietWindow:
    """A span of the day, on some days. An end before the begin is on the next day.

    Attributes:
        days: 0 is Monday; the days on which it begins.
    """

    days: frozenset[int]
    begin: time
    end: time

    def end_after(self, now: datetime) -> datetime | None:
        """Return when the window that `now` (in its zone) lies in ends; None: it lies in none."""
        for back in (0, 1):
            day = now.date() - timedelta(days=back)
            if day.weekday() not in self.days:
                continue
            begins = datetime.combine(day, self.begin, now.tzinfo)
            over = timedelta(days=1) if self.end <= self.begin else timedelta(0)
            ends = datetime.combine(day + over, self.end, now.tzinfo)
            if begins <= now < ends:
                return ends
        return None


def parse_window(text: str) -> QuietWindow:
    """Read `22:00-06:00`, `Sat 00:00-24:00` or `Mon-Fri 8:00-18:00`.

    Raises:
        ValueError: it is no such text.
    """
    found = _WINDOW.match(text.strip())
    if found is None:
        raise ValueError(_advice(text))
    first, last = found["first"], found["last"] or found["first"]
    days = frozenset(range(7))
    if first:
        begin, end = _day(first, text), _day(last, text)
        days = frozenset((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return QuietWindow(days, _time(found["begin"], text), _time(found["end"], text))


def _day(name: str, text: str) -> int:
    try:
        return DAYS.index(name.lower())
    except ValueError:
        raise ValueError(_advice(text)) from None


def _time(clock: str, text: str) -> time:
    hour, _, minute = clock.partition(":")
    if (int(hour), int(minute)) == (24, 0):
        return time(0)  # the next day's, as an end
    try:
        return time(int(hour), int(minute))
    except ValueError:
        raise ValueError(_advice(text)) from None


def _advice(text: str) -> str:
    return f"{text!r} is no time window: write it as 22:00-06:00 or Mon-Fri 08:00-18:00"


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Windows and the zone that their times are of."""

    windows: tuple[QuietWindow, ...]
    zone: ZoneInfo

    def end_after(self, now: datetime) -> datetime | None:
        """Return when the quiet hours that `now` lies in end; None: it lies in none."""
        local = now.astimezone(self.zone)
        ends = [end for window in self.windows if (end := window.end_after(local)) is not None]
        return max(ends, default=None)
