"""Sizes and durations: parsing, formatting, growing waits.

In fio and Proxmox, `k`, `M`, `G` and `T` are steps of 1024, so they are here. fio reads `4kib` as
4000 bytes (its prefixes are reversed by default) and `4kB` is ambiguous; pvebench accepts the
first as 4096 and rejects the second. Tools always get plain integers.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB
SECTOR: Final = 512
"""Bytes per sector in the kernel's counters, sizes and read-ahead, independent of a device's own
sectors (Documentation/block/stat.rst of Linux, blockdev(8))."""

_KERNEL_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")
_WHOLE: Final = re.compile("[0-9]{1,18}")
_SIZE: Final = re.compile(r"(?P<number>\d+)\s*(?P<suffix>[A-Za-z]*)\Z", re.ASCII)
_SIZE_FACTORS: Final = {
    "": 1,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
MAX_BYTES: Final = 1 << 63
"""Limit of file systems and SQLite."""
DAY: Final = 86400.0
"""Seconds of a day."""
NANOSECONDS: Final = 1e9
"""Nanoseconds per second. Dividing keeps 284672 ns at 0.000284672 s; multiplying does not."""
MAX_SECONDS: Final = 36525 * DAY
_PLAIN: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DURATION: Final = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<suffix>ms|s|m|h|d)\Z", re.ASCII)
_DURATION_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY}


def parse_size(text: str | int) -> int:
    """Return the bytes of `256M`, `4k`, `1GiB` or a plain integer.

    Raises:
        ValueError: not a size; the message names the accepted forms. `kB`, `MB` … are rejected
            because they are ambiguous.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return _counted(text, text)
    match = _SIZE.match(str(text).strip())
    suffix = match["suffix"].lower() if match else ""
    if match is None or suffix not in _SIZE_FACTORS:
        raise ValueError(
            f"invalid size {text!r}: write bytes, or a whole number with k, M, G or T "
            f"(steps of 1024, as in fio and Proxmox)"
        )
    digits = match["number"]
    return _counted(int(digits) * _SIZE_FACTORS[suffix] if len(digits) < 20 else MAX_BYTES, text)


def _counted(count: int, text: str | int) -> int:
    if not 0 <= count < MAX_BYTES:
        raise ValueError(f"invalid size {text!r}: write 0 or more, and less than 8 EiB")
    return count


def whole_number(text: str | bytes) -> int | None:
    """Return a number of 1 to 18 ASCII digits; else None.

    `int` rejects what `isdigit` accepts, such as `²`, and more than 4,300 digits.
    """
    plain = text if isinstance(text, str) else text.decode("ascii", "replace")
    return int(plain) if _WHOLE.fullmatch(plain) else None


def plain_number(text: str) -> float | None:
    """Return a number in program notation: `12`, `-0.5`, `1e-3`; else None.

    `float` accepts more: `1_0`, `nan`, digits of any script.
    """
    return float(text) if _PLAIN.fullmatch(text) else None


def parse_duration(text: str | float) -> float:
    """Return the seconds of `8s`, `500ms`, `5m`, `6h` or `1d`.

    Raises:
        ValueError: not a duration. A number without a unit is rejected.
    """
    match = _DURATION.match(str(text).strip())
    if match is None:
        raise ValueError(
            f"invalid duration {text!r}: write a number with its unit, ms, s, m, h or d"
        )
    seconds = float(match["number"]) * _DURATION_SECONDS[match["suffix"]]
    if seconds > MAX_SECONDS:
        raise ValueError(f"duration {text!r} exceeds 100 years: write a shorter one")
    return seconds


def format_size(count: int) -> str:
    """Return `count` bytes in the shortest exact form for parse_size: 4096 -> 4k."""
    for factor, suffix in ((TIB, "T"), (GIB, "G"), (MIB, "M"), (KIB, "k")):
        if count and count % factor == 0:
            return f"{count // factor}{suffix}"
    return str(count)


def kernel_number(text: str) -> int:
    """Return a whole number as /proc and /sys write it.

    Raises:
        ValueError: not such a number. `int` would also accept `1_0`, which the kernel never writes.
    """
    if not _KERNEL_NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{text[:40]!r} is not a kernel number")
    return int(text)


def show_bytes(count: float) -> str:
    """Return a size for people, rounded: `3.2 GiB`."""
    for factor, suffix in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= factor:
            return f"{count / factor:.1f} {suffix}"
    return f"{count:.0f} B"


def show_rate(bytes_per_second: float) -> str:
    """Return a rate for people, rounded: `78.9 MiB/s`."""
    return f"{show_bytes(bytes_per_second)}/s"


def show_time(seconds: float) -> str:
    """Return Unix seconds as date and time: `2026-06-11 12:30 UTC`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def show_clock(at: datetime, now: datetime) -> str:
    """Return the time of day, with the date unless it is the same day: `12:30 UTC`."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.date() else show_time(at.timestamp())


def show_day(seconds: float) -> str:
    """Return Unix seconds as a date: `2026-06-11`."""
    return show_time(seconds)[:10]


def show_interval(seconds: float) -> str:
    """Return an interval for people, rounded: `40 min`, `2.5 h`, `3 days`."""
    if seconds < 5400:
        return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
    hours = seconds / 3600
    return (f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days").replace(".0 ", " ")


def show_seconds(seconds: float) -> str:
    """Return a duration for people: `45 s`, `3 min 20 s`, `2 h 05 min`, `11 d 6 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 2 * DAY:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def show_span(seconds: float) -> str:
    """Format a duration in seconds in its largest unit: `12 s`, `3 min`, `5 h`, `2 days`."""
    whole = max(0, int(seconds))
    if whole >= 2 * DAY:
        return f"{round(whole / DAY)} days"
    return " ".join(show_seconds(whole).split()[:2])


def show_latency(seconds: float) -> str:
    """Return a latency for people, with three digits: `905 µs`, `6.32 ms`, `1.79 s`."""
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms"), (1.0, "s")):
        if abs(seconds) * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:,.0f} s"


def back_off(failures: int, *, first: float, most: float) -> float:
    """Return the seconds to wait after failures in a row: doubled with each, at most `most`."""
    return min(most, first * 2.0 ** min(failures - 1, 20))


def count_text(count: int, noun: str) -> str:
    """Return `1 run`, `2 runs`, `2 switches`."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"
