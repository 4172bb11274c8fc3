"""Quiet hours and moments of the week, such as `Mon 08:00`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

# --- quiet hours: windows of the week without runs

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW: Final = re.compile(
    r"(?:(?P<first>[A-Za-z]{3})(?:-(?P<last>[A-Za-z]{3}))?\s+)?"
    r"(?P<begin>\d{1,2}:\d{2})-(?P<end>\d{1,2}:\d{2})\Z",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class QuietWindow:
    """Time span on some days. An end before the begin is on the next day.

    Of an hour that a change of the clocks repeats, both are in it.

    Attributes:
        days: on which it begins; 0 is Monday.
    """

    days: frozenset[int]
    begin: time
    end: time

    def end_after(self, now: datetime) -> datetime | None:
        """Return the end of the window that contains `now` (in its zone); None: no window."""
        for back in (0, 1):
            day = now.date() - timedelta(days=back)
            if day.weekday() not in self.days:
                continue
            begins = datetime.combine(day, self.begin, now.tzinfo)
            over = timedelta(days=1) if self.end <= self.begin else timedelta(0)
            ends = datetime.combine(day + over, self.end, now.tzinfo)
            # Within a zone, Python compares the clocks' times, not the moments.
            last = max(ends.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
            if begins.astimezone(UTC) <= now.astimezone(UTC) < last:
                return last.astimezone(now.tzinfo)
        return None


def parse_window(text: str) -> QuietWindow:
    """Parse `22:00-06:00`, `Sat 00:00-24:00` or `Mon-Fri 8:00-18:00`.

    Raises:
        ValueError: not a time window.
    """
    match = _WINDOW.match(text.strip())
    if match is None:
        raise ValueError(_advice(text))
    first, last = match["first"], match["last"] or match["first"]
    days = frozenset(range(7))
    if first:
        begin, end = _day(first, text), _day(last, text)
        days = frozenset((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return QuietWindow(days, _time(match["begin"], text), _time(match["end"], text))


def _day(name: str, text: str) -> int:
    try:
        return DAYS.index(name.lower())
    except ValueError:
        raise ValueError(_advice(text)) from None


def _time(clock: str, text: str) -> time:
    hour, _, minute = clock.partition(":")
    if (int(hour), int(minute)) == (24, 0):
        return time(0)  # as an end: midnight of the next day
    try:
        return time(int(hour), int(minute))
    except ValueError:
        raise ValueError(_advice(text)) from None


def _advice(text: str) -> str:
    return f"invalid time window {text!r}: write it as 22:00-06:00 or Mon-Fri 08:00-18:00"


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Quiet windows and the time zone of their times."""

    windows: tuple[QuietWindow, ...]
    zone: ZoneInfo

    def end_after(self, now: datetime) -> datetime | None:
        """Return the end of the quiet hours that contain `now`; None: `now` is outside of them."""
        local = now.astimezone(self.zone)
        ends = [end for window in self.windows if (end := window.end_after(local)) is not None]
        return max(ends, default=None, key=lambda end: end.astimezone(UTC))


_MOMENT: Final = re.compile(
    r"(?P<day>[A-Za-z]{3})\s+(?P<hour>\d{1,2}):(?P<minute>\d{2})\Z", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Weekly:
    """Moment of the week.

    Attributes:
        day: 0 is Monday.
    """

    day: int
    at: time

    def last(self, now: datetime) -> datetime:
        """Return the latest occurrence up to `now`, in its zone."""
        date = now.date() - timedelta(days=(now.weekday() - self.day) % 7)
        moment = datetime.combine(date, self.at, now.tzinfo)
        return moment if moment <= now else moment - timedelta(days=7)


def parse_weekly(text: str) -> Weekly:
    """Parse `Mon 08:00`. Raises ValueError: not a moment of the week."""
    match = _MOMENT.match(text.strip())
    if match is not None and match["day"].lower() in DAYS:
        hour, minute = int(match["hour"]), int(match["minute"])
        if hour < 24 and minute < 60:
            return Weekly(DAYS.index(match["day"].lower()), time(hour, minute))
    raise ValueError(f"invalid moment of the week {text!r}: write it as Mon 08:00, or off")
