"""A moment of the week, such as `Mon 08:00`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

# --- Quiet hours: windows of the week in which nothing is measured. Pure.

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


_MOMENT: Final = re.compile(
    r"(?P<day>[A-Za-z]{3})\s+(?P<hour>\d{1,2}):(?P<minute>\d{2})\Z", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Weekly:
    """Once a week.

    Attributes:
        day: 0 is Monday.
    """

    day: int
    at: time

    def last(self, now: datetime) -> datetime:
        """Return when it last was, in the zone of `now`."""
        date = now.date() - timedelta(days=(now.weekday() - self.day) % 7)
        found = datetime.combine(date, self.at, now.tzinfo)
        return found if found <= now else found - timedelta(days=7)


def parse_weekly(text: str) -> Weekly:
    """Read `Mon 08:00`.

    Raises:
        ValueError: it is no such text.
    """
    found = _MOMENT.match(text.strip())
    if found is not None and found["day"].lower() in DAYS:
        hour, minute = int(found["hour"]), int(found["minute"])
        if hour < 24 and minute < 60:
            return Weekly(DAYS.index(found["day"].lower()), time(hour, minute))
    raise ValueError(f"{text!r} is no moment of the week: write it as Mon 08:00, or off")
