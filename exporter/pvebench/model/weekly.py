"""A moment of the week, such as `Mon 08:00`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Final

from pvebench.model.quiet import DAYS

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
