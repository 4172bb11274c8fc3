"""Results as a table and CSV. No cell can become a spreadsheet formula."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.durability import NOTHING_KNOWN, KnownDurability, durable_of
from pvebench.model.reference_series import ReferenceSeries
from pvebench.model.run import Outcome, Sample
from pvebench.model.run_metrics import BANDWIDTH, FIGURES, IOPS, warm_text
from pvebench.store.records import StoredRun

# --- table: one row per case and direction, in base units ---
#
# A row has the values of the latest run, and those of several runs: best and median in
# the current environment, passes of one cycle.

CellValue = str | int | float | None
"""Value of a table cell; None: unknown."""
_NUMBERS: Final = {
    figure.column[0]: (figure.name, figure.column[1])
    for figure in FIGURES.values()
    if figure.column[0]
}
"""Column -> figure and part."""
OVER_RUNS_COLUMNS: Final = ("good_runs", "best", "median", "best_metric")
PASS_COLUMNS: Final = ("pass", "first_pass", "last_pass", "passes", "last_to_first_ratio")
RESULT_COLUMNS: Final = (
    "node",
    "storage",
    "bus",
    "format",
    "cache",
    "scenario",
    "workload",
    "title",
    "tool",
    "rw",
    "block_size_bytes",
    "io_depth",
    "jobs",
    "direction",
    "outcome",
    "reason",
    "caveats",
    "durable",
    "run",
    "finished",
    *_NUMBERS,
    *OVER_RUNS_COLUMNS,
    *PASS_COLUMNS,
    "definition",
    "scale",
)
_PLACE: Final = ("node", "scenario", "workload")
"""Columns that identify a case across its definitions."""
REFERENCE_COLUMNS: Final = (
    "published_metric",
    "published",
    "ratio_to_published",
    "published_doubt",
)
RELATIVE_COLUMNS: Final = ("relative_to", "ratio_to_relative")


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Latest run of a case in one direction, and the results of all its successful runs.

    Attributes:
        cells: column -> value; None: unknown.
        definition: definition of the case; None only in tests of single cells.
        current: whether this is the latest definition of the slugs. Earlier definitions are
            separate histories: exports contain them, reports do not show them together.
    """

    cells: Mapping[str, CellValue] = field(default_factory=dict)
    definition: Definition | None = None
    current: bool = True

    def __getitem__(self, column: str) -> CellValue:
        return self.cells.get(column)

    @property
    def good(self) -> bool:
        """Whether its outcome permits comparisons."""
        return Outcome(str(self["outcome"])).good


def result_rows(
    runs: Iterable[StoredRun],
    series: ReferenceSeries | None = None,
    relative_to: str = "",
    durability: KnownDurability = NOTHING_KNOWN,
) -> list[ResultRow]:
    """Return the rows of the cases of `runs` (newest first), in display order.

    Args:
        relative_to: slug of the scenario to divide the others by; empty: none.
        durability: measured by `pvebench durability`.
    """
    by_case: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_case.setdefault(run.case_key, []).append(run)
    rows = [
        row for history in by_case.values() for row in _rows_of_case(history, series, durability)
    ]
    rows = [*_with_currency(rows)]
    rows = relative(rows, relative_to) if relative_to else rows
    return sorted(rows, key=_order)


def _with_currency(rows: Sequence[ResultRow]) -> Iterator[ResultRow]:
    """Yield the rows with `current`: whether their definition is the latest of their slugs.

    A scaled run is only the latest if there is no other.
    """

    def rank(row: ResultRow) -> tuple[bool, str, int]:
        run = row["run"]
        return row["scale"] == 1.0, str(row["finished"]), run if isinstance(run, int) else 0

    newest: dict[tuple[CellValue, ...], ResultRow] = {}
    for row in sorted(rows, key=rank):
        newest[tuple(row[key] for key in _PLACE)] = row
    for row in rows:
        latest = newest[tuple(row[key] for key in _PLACE)]
        yield replace(row, current=row["definition"] == latest["definition"])


def relative(rows: Sequence[ResultRow], scenario: str) -> list[ResultRow]:
    """Return the rows with their speed divided by that of `scenario` with the same workload.

    Only rows with equal conditions (volume, VM, times) are divided. A row with a failed outcome
    has no ratio and is not used as a reference.
    """

    def speed(row: ResultRow) -> float | None:
        value = row["iops"] if row["iops"] is not None else row["bandwidth_bytes_per_second"]
        return float(value) if row.good and isinstance(value, int | float) else None

    def conditions_of(row: ResultRow) -> tuple[CellValue, ...]:
        conditions = row.definition.conditions if row.definition else ""
        return (row["node"], row["workload"], row["direction"], conditions)

    # The latest definition of the slugs replaces earlier ones.
    references = sorted(
        (row for row in rows if row["scenario"] == scenario), key=attrgetter("current")
    )
    speeds = {conditions_of(row): speed(row) for row in references}
    divided = []
    for row in rows:
        own, reference = speed(row), speeds.get(conditions_of(row))
        ratio = own / reference if own is not None and reference else None
        cells = {**row.cells, "relative_to": scenario, "ratio_to_relative": ratio}
        divided.append(replace(row, cells=cells))
    return divided


def _order(row: ResultRow) -> tuple[str, ...]:
    # The host case comes first: the others are compared with it.
    host = "0" if row["bus"] == "host" else "1"
    keys = ("tool", "title", "workload", "direction", "storage")
    return (*(str(row[key]) for key in keys), host, str(row["scenario"]))


def _rows_of_case(
    history: Sequence[StoredRun], series: ReferenceSeries | None, durability: KnownDurability
) -> list[ResultRow]:
    last = history[0]
    definition = last.definition
    parameters = definition.parameters
    common: dict[str, CellValue] = {
        **definition.labels,
        "title": definition.title,
        "tool": definition.tool,
        "rw": str(parameters.get("rw", "")),
        "block_size_bytes": parameters.get("bs"),
        "io_depth": parameters.get("iodepth"),
        "jobs": parameters.get("numjobs"),
        "outcome": str(last.outcome),
        "reason": last.reason,
        "caveats": ", ".join(filter(None, (*definition.all_caveats, warm_text(last.samples)))),
        "durable": str(durable_of(definition, durability)),
        "case": last.case_key,
        "definition": definition.fingerprint,
        "scale": definition.scale,
        "run": last.number,
        "finished": last.finished.isoformat(timespec="seconds"),
    }
    of_run = _values(last.samples, "")
    rows = []
    for direction in map(str, definition.directions or ("",)):
        values = {**of_run, **_values(last.samples, direction)}
        cells: dict[str, CellValue] = {**common, "direction": direction}
        cells |= {column: values.get(key) for column, key in _NUMBERS.items()}
        cells |= over_runs(history, direction) | passes(history, direction)
        if series is not None:
            cells |= _reference(series, definition, direction, cells)
        rows.append(ResultRow(cells, definition))
    return rows


def _values(samples: Iterable[Sample], direction: str) -> dict[tuple[str, str], float]:
    return {
        (sample.metric, sample.part): sample.value
        for sample in samples
        if str(sample.direction or "") == direction
    }


def _reference(
    series: ReferenceSeries, definition: Definition, direction: str, cells: Mapping[str, CellValue]
) -> dict[str, CellValue]:
    known = {
        **definition.options,
        **definition.labels,
        "tool": definition.tool,
        **definition.parameters,
    }
    row = series.matching(known)
    if row is None:
        return {}
    problems = "; ".join(implausibility.text for implausibility in row.implausibilities())
    own = {"iops": cells["iops"], "bandwidth": cells["bandwidth_bytes_per_second"]}
    for metric, value in own.items():
        published = row.values.get((metric, direction))
        if published is not None:
            ratio = float(value) / published if value is not None and published else None
            return {
                "published_metric": metric,
                "published": published,
                "ratio_to_published": ratio,
                "published_doubt": problems,
            }
    return {}


def rate_of(run: StoredRun, direction: str) -> tuple[str, float] | None:
    """Return the metric of a run's speed in a direction, and its value.

    I/O per second, or bytes per second if the tool reports no other rate; None: neither.
    """
    rates = (
        (sample.metric, sample.value)
        for figure in (IOPS, BANDWIDTH)
        for sample in figure.of(run.samples)
        if str(sample.direction or "") == direction and not sample.part
    )
    return next(rates, None)


def over_runs(history: Sequence[StoredRun], direction: str) -> dict[str, CellValue]:
    """Return best and median of the successful runs in the environment of the latest one."""
    good = [run for run in history if run.outcome.good]
    successful = [run for run in good if run.environment == good[0].environment]
    known = [rate for run in successful if (rate := rate_of(run, direction)) is not None]
    if not known:
        return {"good_runs": len(successful)}
    values = [value for _, value in known]
    return {
        "good_runs": len(successful),
        "best": max(values),
        "median": statistics.median(values),
        "best_metric": known[0][0],
    }


def passes(history: Sequence[StoredRun], direction: str) -> dict[str, CellValue]:
    """Return the first and the last pass of the latest cycle with several passes of a case.

    Args:
        history: runs of one case, newest first. A pass without a successful run has no value.
    """
    newest: dict[str, CellValue] = {"pass": history[0].pass_number or None}
    cycle = next((run.cycle for run in history if run.pass_number > 1), None)
    if cycle is None:
        return newest
    runs = {run.pass_number: run for run in history if run.cycle == cycle and run.pass_number}
    values = _values_by_pass(runs, direction)
    last = max(runs)
    first_value, last_value = values.get(1), values.get(last)
    ratio = last_value / first_value if first_value and last_value is not None else None
    return newest | {
        "passes": last,
        "first_pass": first_value,
        "last_pass": last_value,
        "last_to_first_ratio": ratio,
    }


def _values_by_pass(runs: Mapping[int, StoredRun], direction: str) -> dict[int, float]:
    known = {number: rate_of(run, direction) for number, run in runs.items() if run.outcome.good}
    return {number: rate[1] for number, rate in known.items() if rate is not None}


def of_pass(runs: Sequence[StoredRun], number: int) -> list[StoredRun]:
    """Return the runs of a pass number, without skipped runs."""
    return [run for run in runs if run.pass_number == number and run.outcome is not Outcome.SKIPPED]


# --- CSV ---

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def columns_of(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """Return the columns; those of a reference series or of ratios only if they have values."""
    has_reference = any(row["published"] is not None for row in rows)
    relative = any(row["relative_to"] for row in rows)
    return (
        *RESULT_COLUMNS,
        *(REFERENCE_COLUMNS if has_reference else ()),
        *(RELATIVE_COLUMNS if relative else ()),
    )


def csv_text(rows: Sequence[ResultRow]) -> str:
    """Return the rows as CSV with a header line."""
    columns = columns_of(rows)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_safe(row[column]) for column in columns] for row in rows)
    return text.getvalue()


def _safe(cell: CellValue) -> CellValue:
    """Return the cell as text for a spreadsheet, since external titles may look like formulas."""
    if isinstance(cell, str) and cell.startswith(_FORMULA):
        return f"'{cell}"
    return "" if cell is None else cell
