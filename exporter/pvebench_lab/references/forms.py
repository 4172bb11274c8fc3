"""Formats of published tables, selected by their header, and the conversion of their rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pvebench.model.consistency import Figures
from pvebench.model.reference_series import ReferenceRow
from pvebench.model.units import KIB, MIB, parse_size, plain_number, whole_number
from pvebench_lab.references.columns import NUMBERS

PublishedRow = Mapping[str, str]
RowReader = Callable[[int, PublishedRow], ReferenceRow]
_TEST: Final = re.compile(r"fio-(?P<rw>\w+)-(?P<bs>\w+)-qd(?P<depth>[0-9]+)")
_MB: Final = 1_000_000


def number_or_none(text: str) -> float | None:
    """Return a number; None for an empty field or a range (`100-400`).

    Raises:
        ValueError: negative or infinite.
    """
    value = plain_number(text.strip())
    if value is None:
        return None
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{text[:50]!r} is negative or infinite")
    return value


def printed_step(text: str) -> float:
    """Return the value of the last printed digit: 0.1 for `5.3`, 1 for `42` and `42.0`."""
    value = number_or_none(text)
    if value is None or value == int(value):
        return 1.0
    return float(10.0 ** -len(text.partition(".")[2]))


def direction_of(rw: str) -> str:
    """Return the direction of a pattern; `ioping` reads."""
    return "write" if "write" in rw else "read"


def full_table(line: int, record: PublishedRow) -> ReferenceRow:
    """Convert a row with IOPS, bandwidth, block size, file size, run time and CPU."""
    rw, direction = record["rw"], direction_of(record["rw"])
    iops, bandwidth = (
        number_or_none(record["iops"]),
        number_or_none(record["bandwidth_bytes_per_second"]),
    )
    block = number_or_none(record.get("block_size_bytes", ""))
    runtime = number_or_none(record.get("runtime_ms", ""))
    host = record.get("host_disk", "")
    tool = "ioping" if rw == "ioping" else "fio"
    row = {"bus": "host"} if host else {key: record[key] for key in ("bus", "format", "cache")}
    # A disk with further options, such as an I/O thread, differs from the published one.
    plain = {} if host else {"filesystem": "ext4", "iothread": "0"}
    match: dict[str, str | int | None] = {**row, **plain, "tool": tool}
    match |= {"rw": rw, "bs": int(block or 0)} if tool == "fio" else {}
    user = number_or_none(record.get("guest_user_cpu_percent", ""))
    system = number_or_none(record.get("guest_system_cpu_percent", ""))
    return ReferenceRow(
        line=line,
        place={
            key: record.get(key, "")
            for key in ("table", "host_disk", "bus", "format", "cache", "rw")
        },
        match=match,
        values=_values(direction, iops=iops, bandwidth=bandwidth),
        figures=(
            Figures(
                direction=direction,
                iops=iops,
                bandwidth=bandwidth,
                block_bytes=int(block) if block else None,
                size=float(parse_size(record["file_size"])) if record.get("file_size") else None,
                seconds=runtime / 1000 if runtime else None,
                # fio prints KB/s.
                iops_step=printed_step(record["iops"]),
                bandwidth_step=KIB,
            ),
        ),
        cpu={
            name: value / 100
            for name, value in (("user", user), ("system", system))
            if value is not None
        },
    )


def read_and_write(line: int, record: PublishedRow) -> ReferenceRow:
    """Convert a row with reads and writes, in MiB/s and IOPS of 4k."""
    sides = {side: number_or_none(record[f"{side}_iops"]) for side in ("read", "write")}
    values = _speeds(record)
    figures = tuple(
        Figures(
            direction=side,
            iops=iops,
            bandwidth=values.get(("bandwidth", side)),
            block_bytes=4 * KIB,
            iops_step=_thousands(record[f"{side}_iops"]),
            bandwidth_step=printed_step(record[f"{side}_mib_per_second"]) * MIB,
        )
        for side, iops in sides.items()
    )
    values |= {("iops", side): iops for side, iops in sides.items() if iops is not None}
    return ReferenceRow(
        line=line,
        place={
            "storage": f"lvm-{record['lvmcache_mode']}",
            "format": record["format"],
            "cache": record["cache"],
            "rw": "randread, randwrite",
        },
        match=_match(record),
        values=values,
        figures=figures,
        cpu={f"while {side}": share for side, share in _shares(record, "guest_cpu_{}_percent")},
    )


def _speeds(record: PublishedRow) -> dict[tuple[str, str], float]:
    columns = {side: number_or_none(record[f"{side}_mib_per_second"]) for side in ("read", "write")}
    return {("bandwidth", side): mib * MIB for side, mib in columns.items() if mib is not None}


def _shares(record: PublishedRow, column: str) -> Iterator[tuple[str, float]]:
    """Yield direction, CPUs in use above 1: each was a separate run, so they must not be summed."""
    for side in ("read", "write"):
        percent = number_or_none(record[column.format(side)])
        if percent is not None and percent > 100:
            yield side, percent / 100


def _thousands(text: str) -> float:
    """Return the resolution of fio's IOPS: it prints those above 10,000 in hundreds."""
    value = number_or_none(text) or 0.0
    return 100.0 if value >= 10_000 and value % 100 == 0 else 1.0


def shared(line: int, record: PublishedRow) -> ReferenceRow:
    """Convert a row in MB/s, which may be 10^6 or 2^20 bytes: the better match is used."""
    test, system = record["test"], record["system"]
    test_match = _TEST.match(test)
    iops, text = number_or_none(record["iops"]), record["bandwidth_mb_per_second"]
    speed = number_or_none(text) or 0.0
    rw = test_match["rw"] if test_match else test
    block = parse_size(test_match["bs"]) if test_match else 16 * KIB
    direction = direction_of(rw)
    unit = min((_MB, MIB), key=lambda factor: abs(speed * factor - (iops or 0.0) * block))
    values = dict(_values(direction, iops=iops, bandwidth=speed * unit))
    latency = number_or_none(record["latency_mean_ms"])
    if latency is not None:
        values["clat_mean", direction] = latency / 1000
    return ReferenceRow(
        line=line,
        place={"table": test, "system": system, "rw": rw},
        match=_match(record),
        values=values,
        figures=(
            Figures(
                direction=direction,
                iops=iops,
                bandwidth=speed * unit,
                block_bytes=block,
                iops_step=printed_step(record["iops"]),
                bandwidth_step=printed_step(text) * unit,
            ),
        ),
    )


def bonnie_and_dd(line: int, record: PublishedRow) -> ReferenceRow:
    """Convert a row of bonnie++ or dd: MiB/s and CPU of both directions."""
    match = {key: record[key] for key in ("bus", "format", "tool")}
    return ReferenceRow(
        line=line,
        place={**match, "rw": "read, write"},
        match=match,
        values=_speeds(record),
        cpu=dict(_shares(record, "{}_cpu_percent")),
    )


_UNITS: Final = {"MB per second": _MB, "per second": 1.0, "bytes per second": 1.0, "seconds": 1.0}
_METRICS: Final = {
    **{name: NUMBERS[name][0] for name in ("iops", "bandwidth", "latency_mean", "latency_max")},
    "latency_min": "clat_min",
    "latency_mdev": "clat_stddev",
}


def one_value(line: int, record: PublishedRow) -> ReferenceRow:
    """Convert a row with one value: a medium or system, a test, a metric, a value, a unit."""
    test = record["test"]
    words = test.split() or [""]
    factor = MIB if words[0] == "hdparm" else _UNITS[record["unit"]]
    direction = "write" if words[0].endswith("write") or words[0] == "dd" else "read"
    value = number_or_none(record["value"])
    system = record.get("medium") or record.get("system", "")
    return ReferenceRow(
        line=line,
        place={
            "system": " ".join(filter(None, (system, record.get("variant", "")))),
            "table": test,
            "rw": words[0],
        },
        match=_match(record),
        values={} if value is None else {(_METRICS[record["metric"]], direction): value * factor},
    )


def _match(record: PublishedRow) -> dict[str, str | int | None]:
    """Return the options in column `match`, such as `bus=scsi bs=4096`; none without it."""
    pairs = (pair.split("=", 1) for pair in record.get("match", "").split())
    words = {"true": True, "false": False}
    found = ((key, text, whole_number(text)) for key, text in pairs)
    return {key: words.get(text, text) if one is None else one for key, text, one in found}


def _values(
    direction: str, *, iops: float | None, bandwidth: float | None
) -> dict[tuple[str, str], float]:
    both = {"iops": iops, "bandwidth": bandwidth}
    return {(name, direction): value for name, value in both.items() if value is not None}


FORMS: Final[tuple[tuple[frozenset[str], RowReader], ...]] = (
    (frozenset({"rw", "iops", "bandwidth_bytes_per_second", "bus", "format", "cache"}), full_table),
    (frozenset({"lvmcache_mode", "read_mib_per_second", "read_iops"}), read_and_write),
    (frozenset({"test", "system", "bandwidth_mb_per_second", "iops"}), shared),
    (frozenset({"bus", "format", "tool", "read_mib_per_second"}), bonnie_and_dd),
    (frozenset({"test", "metric", "value", "unit"}), one_value),
)
"""Required columns -> function that converts a row; the first match is used."""


def columns_text() -> str:
    """Return the columns of every format, for error messages."""
    return "; or ".join(", ".join(sorted(columns)) for columns, _ in FORMS)
