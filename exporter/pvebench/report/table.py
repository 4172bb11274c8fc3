"""Results as a table: one row a case and direction, base units, ready for any file format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pvebench.model.run import Outcome, Sample
from pvebench.report.series import Cell, Series
from pvebench.report.several import OVER_RUNS, PASSES, over_runs, passes
from pvebench.store import StoredRun

_NUMBERS: Final = {
    "iops": ("iops", ""),
    "bandwidth_bytes_per_second": ("bandwidth", ""),
    "latency_mean_seconds": ("clat_mean", ""),
    "latency_p99_seconds": ("clat_percentile", "99"),
    "device_share_ratio": ("device_share", ""),
    "guest_to_host_ratio": ("guest_to_host", ""),
    "network_share_ratio": ("network_share", ""),
}
COLUMNS: Final = (
    "node", "storage", "bus", "format", "cache", "scenario", "workload", "title", "tool", "rw",
    "block_size_bytes", "io_depth", "jobs", "direction", "outcome", "reason", "caveats", "run",
    "finished", *_NUMBERS,
    "network_round_trip_seconds", *OVER_RUNS, *PASSES,
)  # fmt: skip
BESIDE_COLUMNS: Final = ("published_metric", "published", "ratio_to_published", "published_doubt")
RELATIVE_COLUMNS: Final = ("relative_to", "ratio_to_relative")


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The newest run of a case in one direction, and what all its good runs reached.

    Attributes:
        cells: column -> value; None where nothing is known.
    """

    cells: Mapping[str, Cell] = field(default_factory=dict)

    def __getitem__(self, column: str) -> Cell:
        return self.cells.get(column)


def result_rows(
    runs: Iterable[StoredRun], series: Series | None = None, relative_to: str = ""
) -> list[ResultRow]:
    """Return the rows of the cases that `runs` (newest first) belong to, in a readable order.

    Args:
        relative_to: slug of the scenario whose rows the others are divided by; empty: none.
    """
    by_case: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_case.setdefault(run.case_key, []).append(run)
    rows = [
        row
        for history in by_case.values()
        for row in _rows_of_case(history, series)
    ]  # fmt: skip
    rows = relative(rows, relative_to) if relative_to else rows
    return sorted(rows, key=_order)


def relative(rows: Sequence[ResultRow], scenario: str) -> list[ResultRow]:
    """Return the rows with their speed over that of `scenario` with the same workload.

    A row whose outcome is not good is no measure for others, and has no ratio itself.
    """

    def speed(row: ResultRow) -> float | None:
        value = row["iops"] if row["iops"] is not None else row["bandwidth_bytes_per_second"]
        good = Outcome(str(row["outcome"])).good
        return float(value) if good and isinstance(value, int | float) else None

    keys = ("node", "workload", "direction")
    base = {
        tuple(row[key] for key in keys): speed(row) for row in rows if row["scenario"] == scenario
    }
    found = []
    for row in rows:
        own, theirs = speed(row), base.get(tuple(row[key] for key in keys))
        ratio = own / theirs if own is not None and theirs else None
        found.append(ResultRow({**row.cells, "relative_to": scenario, "ratio_to_relative": ratio}))
    return found


def _order(row: ResultRow) -> tuple[str, ...]:
    # The host's own row stands first: the others are compared with it.
    host = "0" if row["bus"] == "host" else "1"
    keys = ("tool", "title", "workload", "direction", "storage")
    return (*(str(row[key]) for key in keys), host, str(row["scenario"]))


def _rows_of_case(history: Sequence[StoredRun], series: Series | None) -> list[ResultRow]:
    last = history[0]
    definition = last.definition
    workload = definition["workload"]
    parameters = workload["parameters"]
    common: dict[str, Cell] = {
        **{key: str(value) for key, value in definition["labels"].items()},
        "title": workload["title"], "tool": workload["tool"],
        "rw": str(parameters.get("rw", "")), "block_size_bytes": parameters.get("bs"),
        "io_depth": parameters.get("iodepth"), "jobs": parameters.get("numjobs"),
        "outcome": str(last.outcome), "reason": last.reason,
        "caveats": ", ".join(workload.get("caveats", ())), "run": last.number,
        "finished": last.finished.isoformat(timespec="seconds"),
    }  # fmt: skip
    trip = _values(last.samples, "").get(("network_round_trip", ""))
    common["network_round_trip_seconds"] = trip
    rows = []
    for direction in workload["directions"] or ("",):
        values = _values(last.samples, direction)
        cells: dict[str, Cell] = {**common, "direction": direction}
        cells |= {column: values.get(key) for column, key in _NUMBERS.items()}
        cells |= over_runs(history, direction) | passes(history, direction)
        if series is not None:
            cells |= _beside(series, definition, direction, cells)
        rows.append(ResultRow(cells))
    return rows


def _values(samples: Iterable[Sample], direction: str) -> dict[tuple[str, str], float]:
    return {
        (sample.metric, sample.part): sample.value
        for sample in samples
        if str(sample.direction or "") == direction
    }


def _beside(
    series: Series, definition: Mapping[str, Any], direction: str, cells: Mapping[str, Cell]
) -> dict[str, Cell]:
    known = {
        **definition["scenario"], **definition["labels"], "tool": definition["workload"]["tool"],
        **definition["workload"]["parameters"],
    }  # fmt: skip
    row = series.beside(known)
    if row is None:
        return {}
    doubts = "; ".join(suspicion.text for suspicion in row.suspicions())
    own = {"iops": cells["iops"], "bandwidth": cells["bandwidth_bytes_per_second"]}
    for metric, value in own.items():
        theirs = row.values.get((metric, direction))
        if theirs is not None:
            ratio = float(value) / theirs if value is not None and theirs else None
            return {
                "published_metric": metric, "published": theirs, "ratio_to_published": ratio,
                "published_doubt": doubts,
            }  # fmt: skip
    return {}
