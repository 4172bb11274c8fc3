"""fio's JSON output: located in other text, checked for errors and contradictions.

Latency statistics cover one job, or several together. The checks follow fio's `stat.c`: IOPS are
operations divided by run time; `min`, `mean`, `max`, `stddev` cover the same values; percentiles
are the middles of bins, so the highest may be slightly above `max`, and that of a latency beyond
the last bin far below `min`. The bins of json+ are also named by their middles, and contain every
operation.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.consistency import RATE_TOLERANCE, Spread, impossible
from pvebench.model.run import latency_bound
from pvebench.model.units import NANOSECONDS
from pvebench.workloads.tool import each_once, refuse

EVIDENCE_CHARACTERS: Final = 200
SAME_RUN: Final = 2.0
"""Maximum difference in seconds between the starts computed from two reports of one run."""
MAX_STARTS: Final = 100
"""Maximum number of possible starts of the JSON to try; each costs a parse to its end."""
BIN_SHARE: Final = 1 / 128
"""Half width of a bin relative to its value: FIO_IO_U_PLAT_BITS is 6."""
BINS_END: Final = 1 << 34
"""Upper end of the bins in nanoseconds: FIO_IO_U_PLAT_GROUP_NR is 29."""
_SIDES: Final = ("read", "write", "trim", "sync")
_KINDS: Final = ("slat_ns", "clat_ns", "lat_ns")
_BIN: Final = re.compile(r"\d{1,15}\Z", re.ASCII)
_PERCENTILE: Final = re.compile(r"\d{1,3}(\.\d{1,20})?\Z", re.ASCII)
_EARLIEST: Final = datetime(1980, 1, 1, tzinfo=UTC)
_ERROR_TEXT: Final = re.compile(r"error=(?P<text>[^\n]+)")


@dataclass(frozen=True, slots=True)
class Report:
    """Output of fio.

    Attributes:
        jobs: the entries of its `jobs`, one per job or group.
        messages: the text around the JSON, with fio's warnings and errors.
        written: time of writing by the clock of fio's machine; None: unknown.
        options: options of all jobs.
    """

    jobs: tuple[Mapping[str, Any], ...]
    messages: str
    written: datetime | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def continues(self, earlier: Report) -> bool:
        """Return whether both are of one run: fio may report several times before its end."""
        names = [[job.get("jobname") for job in report.jobs] for report in (self, earlier)]
        begins = [
            report.written.timestamp() - (number(report.jobs[0], "elapsed") or 0.0)
            for report in (self, earlier)
            if report.written
        ]
        return names[0] == names[1] and len(begins) == 2 and abs(begins[0] - begins[1]) <= SAME_RUN


def read_report(output: str) -> Report:
    """Return fio's last report in `output`; see `read_reports`."""
    return read_reports(output)[-1]


def read_reports(output: str) -> list[Report]:
    """Return the last report of each run in `output`, ignoring other text.

    Raises:
        OutputUnreadable: no JSON of fio, truncated JSON, or impossible values.
        ToolFailed: a job ended with an error.
    """
    documents, messages = _find(output)
    reports: list[Report] = []
    for document in documents:
        report = _checked(document, messages, output)
        if reports and report.continues(reports[-1]):
            reports.pop()
        reports.append(report)
    return reports


def _checked(document: Mapping[str, Any], messages: str, output: str) -> Report:
    jobs = document["jobs"]
    if not jobs or not all(isinstance(job, dict) for job in jobs):
        raise OutputUnreadable("fio's output lists no jobs", evidence=output[-EVIDENCE_CHARACTERS:])
    for job in jobs:
        _check_error(job, messages)
        refuse(_faults(job), evidence=output[-EVIDENCE_CHARACTERS:])
    shared = document.get("global options")
    options = shared if isinstance(shared, dict) else {}
    return Report(tuple(jobs), messages, _written(document), options)


def number(container: Any, *path: str) -> float | None:
    """Return the number at `path`; None: missing, infinite or negative."""
    for key in path:
        container = container.get(key) if isinstance(container, dict) else None
    if isinstance(container, bool) or not isinstance(container, int | float):
        return None
    try:
        value = float(container)
    except OverflowError:  # an integer beyond any float
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _written(document: Mapping[str, Any]) -> datetime | None:
    seconds = number(document, "timestamp")
    try:
        time = None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # beyond any calendar
        return None
    return time if time and time >= _EARLIEST else None  # a machine without a clock


def _faults(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield contradictions in the values of a job."""
    for side in _SIDES:
        block = job.get(side)
        yield from _rate_faults(side, block)
        kinds = (
            {kind: _block(block.get(kind)) for kind in _KINDS} if isinstance(block, dict) else {}
        )
        for kind, inner in kinds.items():
            if inner is not None:
                yield from _latency_faults(f"{side}: {kind}", inner)
        clat, lat = kinds.get("clat_ns"), kinds.get("lat_ns")
        # Both end at the completion of an operation; lat starts earlier.
        if clat and lat and number(clat, "N") == number(lat, "N"):
            inner_mean, mean = number(clat, "mean"), number(lat, "mean")
            if inner_mean is not None and mean is not None and inner_mean > mean + 1:
                yield f"{side}: clat_ns mean {inner_mean:.10g} is above lat_ns mean {mean:.10g}"


def _rate_faults(side: str, block: Any) -> Iterator[str]:
    iops, operations = number(block, "iops"), number(block, "total_ios")
    milliseconds = number(block, "runtime")
    if iops is None or operations is None or not milliseconds:
        return
    counted = operations * 1000 / milliseconds
    if abs(counted - iops) > RATE_TOLERANCE * counted + 1e-6:
        yield f"{side}: fio reports {iops:.10g} IOPS but counted {counted:.10g}"


def _block(value: Any) -> dict[str, Any] | None:
    """Return one of fio's `…lat_ns` objects; None: it has no operations."""
    return value if isinstance(value, dict) and number(value, "N") else None


def _latency_faults(what: str, block: dict[str, Any]) -> Iterator[str]:
    for key in ("min", "mean", "max", "stddev"):
        if number(block, key) is None:
            yield f"{what}: {key} is {block.get(key, 'missing')!r:.50}"
    if number(block, "mean") == 0 and not what.endswith("slat_ns"):
        yield f"{what}: {block['N']:.10g} operations took no time at all"
    table = block.get("percentile", {})
    if not isinstance(table, dict):
        yield f"{what}: percentile is {table!r:.50}"
        return
    yield from _key_faults(f"{what}: percentile", table, _PERCENTILE)
    shares = {float(key): number(table, key) or 0.0 for key in table if _PERCENTILE.match(key)}
    if len(shares) < len(table):
        yield f"{what}: duplicate percentile"
    yield from _bin_faults(what, block)
    yield from impossible(
        Spread(
            what=what,
            minimum=number(block, "min"),
            mean=number(block, "mean"),
            maximum=number(block, "max"),
            stddev=number(block, "stddev"),
            percentiles=shares,
            step=1.0,  # whole nanoseconds
            bin_share=BIN_SHARE,
            bins_end=BINS_END,
        )
    )


def _key_faults(what: str, table: dict[str, Any], form: re.Pattern[str]) -> Iterator[str]:
    for key, value in table.items():
        if not form.match(key) or number(table, key) is None:
            yield f"{what} {key[:50]!r} is {value!r:.50}"


def _bin_faults(what: str, block: dict[str, Any]) -> Iterator[str]:
    table = block.get("bins", {})
    if not isinstance(table, dict):
        yield f"{what}: bins is {table!r:.50}"
        return
    yield from _key_faults(f"{what}: bin", table, _BIN)
    operations = sum(number(table, key) or 0.0 for key in table)
    if table and operations != number(block, "N"):
        yield f"{what}: the bins contain {operations:.10g} operations of {block['N']:.10g}"


def merge_reports(outputs: Sequence[str]) -> str:
    """Return one report with the jobs of several, which ran at the same time.

    Its totals and bins are those of all jobs; its percentiles are the worst of any.

    Raises:
        OutputUnreadable: one of them contains no report.
    """
    first, *others = [_find(output)[0][-1] for output in outputs]
    jobs = [job for report in (first, *others) for job in report["jobs"]]
    return json.dumps({**first, "jobs": jobs})


def last_message(text: str) -> str:
    """Return the last message of fio in `text`; empty: none."""
    lines = [line.strip() for line in text.splitlines() if line.lstrip().startswith("fio:")]
    return lines[-1][:EVIDENCE_CHARACTERS] if lines else ""


def _find(output: str) -> tuple[list[dict[str, Any]], str]:
    """Return the reports in `output`, and the text around them."""
    decoder = json.JSONDecoder(object_pairs_hook=_used)
    documents: list[dict[str, Any]] = []
    texts, rest, broken_at, starts = [], 0, -1, 0
    position = output.find("{")
    while position >= 0 and starts < MAX_STARTS:
        end = position + 1
        try:
            value, end = decoder.raw_decode(output, position)
        except json.JSONDecodeError as error:
            broken_at = max(broken_at, error.pos)
        except (ValueError, RecursionError):  # too many digits or brackets
            pass
        else:
            if (jobs := _jobs(value)) is not None:
                documents.append({**value, "jobs": jobs})
                texts.append(output[rest:position])
                rest, starts = end, -1
        starts += 1
        position = output.find("{", end)
    if not documents or '"fio version"' in output[rest:]:
        raise _unreadable(output, broken_at)
    lines = [text.strip(" \n\r\t[],") for text in (*texts, output[rest:])]
    return documents, "\n".join(filter(None, lines))


def _used(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; fio 2.1 to 3.1 prints each unused place for a percentile as 0.00: 0."""
    return each_once([(key, value) for key, value in pairs if value or key.strip("0.")])


def _jobs(value: Any) -> list[Any] | None:
    """Return the jobs of a report; None: it is none."""
    jobs = value.get("jobs", value.get("client_stats")) if isinstance(value, dict) else None
    if not isinstance(jobs, list) or "jobs" in value:
        return jobs if isinstance(jobs, list) else None
    # The server mode also has their sum.
    return [job for job in jobs if not isinstance(job, dict) or job.get("jobname") != "All clients"]


def _unreadable(output: str, broken_at: int) -> OutputUnreadable:
    evidence = output[-EVIDENCE_CHARACTERS:]
    if not output.strip():
        return OutputUnreadable(
            "fio wrote no output",
            cause="fio was stopped or could not start",
            next_step="check its standard error in the log of the run",
        )
    if broken_at < 0:
        return OutputUnreadable(
            "no JSON report of fio", cause=last_message(output), evidence=evidence
        )
    return OutputUnreadable(
        f"invalid fio JSON at character {broken_at} of {len(output)}",
        cause="fio was stopped while writing, or its output was truncated",
        evidence=evidence,
    )


def _check_error(job: Mapping[str, Any], messages: str) -> None:
    error = job.get("error", 0)
    if isinstance(error, bool) or not isinstance(error, int):
        raise OutputUnreadable(f"fio's error number is not a number: {error!r:.50}")
    # With continue_on_error this is the first counted error; fio continued.
    if error == 0 or (number(job, "total_err") and job.get("first_error") == error):
        return
    match = _ERROR_TEXT.search(messages)
    known = os.strerror(error) if 0 < error < 4096 else ""
    text = match["text"].strip() if match else known
    raise ToolFailed(
        f"fio ended with error {str(error)[:20]}" + (f": {text}" if text else ""),
        cause="the device rejected I/O or disappeared",
        next_step="check the guest's kernel log and the storage",
        evidence=messages[-10 * EVIDENCE_CHARACTERS :],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency statistics in seconds.

    Attributes:
        count: number of operations, never 0.
        percentiles: `99.9` -> seconds.
        jobs: number of jobs; with several, each percentile is that of the worst job.
        buckets: upper bound (`LATENCY_BOUNDS`) -> operations, without empty buckets; empty: fio
            printed no bins.
    """

    count: float
    mean: float
    minimum: float
    maximum: float
    stddev: float
    percentiles: Mapping[str, float]
    jobs: int
    buckets: Mapping[str, float]


def read_latency(blocks: Iterable[Any]) -> Latency | None:
    """Combine fio's `…lat_ns` objects; None: they have no operations.

    Means are weighted by their counts and standard deviations pooled, both exactly.
    Percentiles of several jobs cannot be combined: the largest is used.
    """
    counted = [inner for block in blocks if (inner := _block(block))]
    if not counted:
        return None
    counts, means = _all(counted, "N"), _all(counted, "mean")
    total = sum(counts)
    mean = math.fsum(m * n / total for m, n in zip(means, counts, strict=True))
    return Latency(
        count=total,
        mean=mean / NANOSECONDS,
        minimum=min(_all(counted, "min")) / NANOSECONDS,
        maximum=max(_all(counted, "max")) / NANOSECONDS,
        stddev=_pooled(counts, means, _all(counted, "stddev")) / NANOSECONDS,
        percentiles=_worst(counted),
        jobs=len(counted),
        buckets=_buckets(counted),
    )


def _all(blocks: list[Any], key: str) -> list[float]:
    return [number(block, key) or 0.0 for block in blocks]


def _pooled(counts: list[float], means: list[float], deviations: list[float]) -> float:
    """Return the sample standard deviation of all operations, from those of the groups."""
    if len(counts) == 1:
        return deviations[0]
    total = sum(counts)
    mean = sum(m * n / total for m, n in zip(means, counts, strict=True))
    squares = sum(
        (n - 1) * s * s + n * (m - mean) * (m - mean)
        for n, m, s in zip(counts, means, deviations, strict=True)
    )
    return math.sqrt(squares / (total - 1)) if total > 1 else 0.0


def _buckets(blocks: list[Any]) -> dict[str, float]:
    counts: dict[str, float] = {}
    if not all(block.get("bins") for block in blocks):
        return counts
    for block in blocks:
        for middle in (table := block["bins"]):
            bound = latency_bound(int(middle))
            counts[bound] = counts.get(bound, 0.0) + (number(table, middle) or 0.0)
    return counts


def _worst(blocks: list[Any]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for block in blocks:
        for key in (table := block.get("percentile", {})):
            name = f"{float(key):g}"
            value = (number(table, key) or 0.0) / NANOSECONDS
            worst[name] = max(worst.get(name, 0.0), value)
    return worst
