"""fio's JSON as it comes: found among other text, checked for errors, read without trust.

Latency statistics are of one job, or of several taken together.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.errors import OutputUnreadable, ToolFailed

EVIDENCE_CHARACTERS: Final = 200
NANOSECONDS: Final = 1e9
"""In a second. Dividing by it keeps 284672 ns at 0.000284672 s; multiplying does not."""
_PERCENTILE: Final = re.compile(r"\d{1,3}(\.\d+)?\Z")
_ERROR_TEXT: Final = re.compile(r"error=(?P<text>[^\n]+)")


@dataclass(frozen=True, slots=True)
class Report:
    """What fio printed.

    Attributes:
        jobs: the entries of its `jobs`, one a job or a group.
        said: the text around the JSON; fio's warnings and errors stand there.
    """

    jobs: tuple[Mapping[str, Any], ...]
    said: str


def read_report(output: str) -> Report:
    """Return fio's report in `output`, whatever text stands before and after it.

    Raises:
        OutputUnreadable: no JSON of fio, or not to its end.
        ToolFailed: a job of it ended with an error.
    """
    document, said = _find(output)
    jobs = document["jobs"]
    if not jobs or not all(isinstance(job, dict) for job in jobs):
        raise OutputUnreadable("fio's output lists no jobs", evidence=output[-EVIDENCE_CHARACTERS:])
    for job in jobs:
        _check_error(job, said)
    return Report(tuple(jobs), said)


def number(container: Any, *path: str) -> float | None:
    """Return the number at `path`, or None unless it is there, finite and not negative."""
    for key in path:
        container = container.get(key) if isinstance(container, dict) else None
    if isinstance(container, bool) or not isinstance(container, int | float):
        return None
    try:
        value = float(container)
    except OverflowError:  # an integer beyond any float
        return None
    return value if math.isfinite(value) and value >= 0 else None


def last_words(said: str) -> str:
    """Return the last line in which fio itself speaks, or nothing."""
    lines = [line.strip() for line in said.splitlines() if line.lstrip().startswith("fio:")]
    return lines[-1][:EVIDENCE_CHARACTERS] if lines else ""


def _find(output: str) -> tuple[dict[str, Any], str]:
    decoder = json.JSONDecoder()
    position, broken_at = output.find("{"), -1
    while position >= 0:
        try:
            value, end = decoder.raw_decode(output, position)
        except json.JSONDecodeError as error:
            broken_at = max(broken_at, error.pos)
            end = position + 1
        except (ValueError, RecursionError):  # digits without end, brackets without end
            end = position + 1
        else:
            if isinstance(value, dict) and isinstance(value.get("jobs"), list):
                return value, f"{output[:position].rstrip()}\n{output[end:].strip()}".strip()
        position = output.find("{", end)
    raise _unreadable(output, broken_at)


def _unreadable(output: str, broken_at: int) -> OutputUnreadable:
    evidence = output[-EVIDENCE_CHARACTERS:]
    if not output.strip():
        return OutputUnreadable(
            "fio wrote no output",
            cause="it was stopped, or could not start",
            next_step="look at its standard error in the run's log",
        )
    if broken_at < 0:
        return OutputUnreadable(
            "fio's output holds no JSON", cause=last_words(output), evidence=evidence
        )
    return OutputUnreadable(
        f"fio's JSON breaks off or is damaged at character {broken_at} of {len(output)}",
        cause="fio was stopped while writing, or its output was cut on the way",
        evidence=evidence,
    )


def _check_error(job: Mapping[str, Any], said: str) -> None:
    error = job.get("error", 0)
    if isinstance(error, bool) or not isinstance(error, int):
        raise OutputUnreadable(f"fio's error number is not a number: {error!r:.50}")
    if error == 0:
        return
    match = _ERROR_TEXT.search(said)
    known = os.strerror(error) if 0 < error < 4096 else ""
    text = match["text"].strip() if match else known
    raise ToolFailed(
        f"fio ended with error {str(error)[:20]}" + (f": {text}" if text else ""),
        cause="the device refused I/O or disappeared",
        next_step="look at the guest's kernel log and at the storage",
        evidence=said[-10 * EVIDENCE_CHARACTERS :],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Times in seconds; None where fio gave none.

    Attributes:
        count: operations behind the figures, never 0.
        percentiles: `99.9` -> seconds.
        jobs: how many jobs are in it; of more than one, each percentile is the worst job's.
    """

    count: float
    mean: float | None
    minimum: float | None
    maximum: float | None
    stddev: float | None
    percentiles: Mapping[str, float]
    jobs: int


def read_latency(blocks: Iterable[Any]) -> Latency | None:
    """Return what fio's `…lat_ns` objects say together, or None if nothing was counted.

    Means are weighted by their counts and standard deviations pooled, both exactly.
    Percentiles of several jobs cannot be put together from percentiles: the largest is taken.
    """
    counted = [block for block in blocks if number(block, "N")]
    if not counted:
        return None
    counts = [number(block, "N") or 0.0 for block in counted]
    total = sum(counts)
    means = _all(counted, "mean")
    minima, maxima = _all(counted, "min"), _all(counted, "max")
    mean = math.fsum(m * n / total for m, n in zip(means, counts, strict=True)) if means else None
    return Latency(
        count=total,
        mean=_seconds(mean),
        minimum=_seconds(min(minima, default=None)),
        maximum=_seconds(max(maxima, default=None)),
        stddev=_seconds(_pooled(counts, means, _all(counted, "stddev"))),
        percentiles=_worst(counted),
        jobs=len(counted),
    )


def _all(blocks: list[Any], key: str) -> list[float]:
    """Return the values of `key`, or nothing unless every block has it."""
    values = [value for block in blocks if (value := number(block, key)) is not None]
    return values if len(values) == len(blocks) else []


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NANOSECONDS


def _pooled(counts: list[float], means: list[float], deviations: list[float]) -> float | None:
    """Return the sample standard deviation of all operations, from those of the groups."""
    if not means or not deviations:
        return None
    if len(counts) == 1:
        return deviations[0]
    total = sum(counts)
    mean = sum(m * n / total for m, n in zip(means, counts, strict=True))
    squares = sum(
        (n - 1) * s * s + n * (m - mean) * (m - mean)
        for n, m, s in zip(counts, means, deviations, strict=True)
    )
    return math.sqrt(squares / (total - 1)) if total > 1 and squares >= 0 else None


def _worst(blocks: list[Any]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for block in blocks:
        table = block.get("percentile")
        for key in table if isinstance(table, dict) else ():
            value = number(table, key)
            if value is None or not _PERCENTILE.match(key):
                continue
            name = f"{float(key):g}"
            worst[name] = max(worst.get(name, 0.0), value / NANOSECONDS)
    return worst
