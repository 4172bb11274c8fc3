"""CSV and XLSX. No cell can become a formula of a spreadsheet."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.run import Outcome, Sample
from pvebench.references.reference_series import ReferenceSeries
from pvebench.store import StoredRun

# --- Results as a table: one row a case and direction, base units, ready for any file format.
#
# A row is of the newest run, and says beside it what several runs say together: best and median of
# all, passes of one cycle.

CellValue = str | int | float | None
"""What a field of a table holds; None: nothing is known."""
_NUMBERS: Final = {
    "iops": ("iops", ""),
    "bandwidth_bytes_per_second": ("bandwidth", ""),
    "latency_mean_seconds": ("clat_mean", ""),
    "latency_p99_seconds": ("clat_percentile", "99"),
    "device_share_ratio": ("device_share", ""),
    "guest_to_host_ratio": ("guest_to_host", ""),
    "network_share_ratio": ("network_share", ""),
}
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
    "run",
    "finished",
    *_NUMBERS,
    "network_round_trip_seconds",
    *OVER_RUNS_COLUMNS,
    *PASS_COLUMNS,
    "definition",
    "scale",
)
_PLACE: Final = ("node", "scenario", "workload")
"""Columns that definitions over time share."""
BESIDE_COLUMNS: Final = ("published_metric", "published", "ratio_to_published", "published_doubt")
RELATIVE_COLUMNS: Final = ("relative_to", "ratio_to_relative")


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The newest run of a case in one direction, and what all its good runs reached.

    Attributes:
        cells: column -> value; None where nothing is known.
        definition: what the case means; None only in tests of single cells.
        current: whether that is what the slugs meant last. Earlier definitions are other
            histories: they are kept in tables for programs, and shown to nobody beside these.
    """

    cells: Mapping[str, CellValue] = field(default_factory=dict)
    definition: Definition | None = None
    current: bool = True

    def __getitem__(self, column: str) -> CellValue:
        return self.cells.get(column)

    @property
    def good(self) -> bool:
        """Whether its outcome is one that others may be compared with."""
        return Outcome(str(self["outcome"])).good


def result_rows(
    runs: Iterable[StoredRun], series: ReferenceSeries | None = None, relative_to: str = ""
) -> list[ResultRow]:
    """Return the rows of the cases that `runs` (newest first) belong to, in a readable order.

    Args:
        relative_to: slug of the scenario whose rows the others are divided by; empty: none.
    """
    by_case: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_case.setdefault(run.case_key, []).append(run)
    rows = [row for history in by_case.values() for row in _rows_of_case(history, series)]
    rows = [*_with_currency(rows)]
    rows = relative(rows, relative_to) if relative_to else rows
    return sorted(rows, key=_order)


def _with_currency(rows: Sequence[ResultRow]) -> Iterator[ResultRow]:
    """Yield the rows, marked whether their definition is the last one of their slugs.

    A scaled run is the last one only where there is no other.
    """

    def rank(row: ResultRow) -> tuple[bool, str, int]:
        run = row["run"]
        return row["scale"] == 1.0, str(row["finished"]), run if isinstance(run, int) else 0

    newest: dict[tuple[CellValue, ...], ResultRow] = {}
    for row in sorted(rows, key=rank):
        newest[tuple(row[key] for key in _PLACE)] = row
    for row in rows:
        present = newest[tuple(row[key] for key in _PLACE)]
        yield replace(row, current=row["definition"] == present["definition"])


def relative(rows: Sequence[ResultRow], scenario: str) -> list[ResultRow]:
    """Return the rows with their speed over that of `scenario` with the same workload.

    Only rows of the same conditions (volume, VM, times) are divided. A row whose outcome is not
    good is no measure for others, and has no ratio itself.
    """

    def speed(row: ResultRow) -> float | None:
        value = row["iops"] if row["iops"] is not None else row["bandwidth_bytes_per_second"]
        return float(value) if row.good and isinstance(value, int | float) else None

    def alike(row: ResultRow) -> tuple[CellValue, ...]:
        conditions = row.definition.conditions if row.definition else ""
        return (row["node"], row["workload"], row["direction"], conditions)

    # What the slugs mean last goes over what they meant before.
    measures = sorted((row for row in rows if row["scenario"] == scenario), key=_is_current)
    base = {alike(row): speed(row) for row in measures}
    found = []
    for row in rows:
        own, theirs = speed(row), base.get(alike(row))
        ratio = own / theirs if own is not None and theirs else None
        cells = {**row.cells, "relative_to": scenario, "ratio_to_relative": ratio}
        found.append(replace(row, cells=cells))
    return found


def _is_current(row: ResultRow) -> bool:
    return row.current


def _order(row: ResultRow) -> tuple[str, ...]:
    # The host's own row stands first: the others are compared with it.
    host = "0" if row["bus"] == "host" else "1"
    keys = ("tool", "title", "workload", "direction", "storage")
    return (*(str(row[key]) for key in keys), host, str(row["scenario"]))


def _rows_of_case(history: Sequence[StoredRun], series: ReferenceSeries | None) -> list[ResultRow]:
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
        "caveats": ", ".join(definition.beside),
        "definition": definition.fingerprint,
        "scale": definition.scale,
        "run": last.number,
        "finished": last.finished.isoformat(timespec="seconds"),
    }
    trip = _values(last.samples, "").get(("network_round_trip", ""))
    common["network_round_trip_seconds"] = trip
    rows = []
    for direction in map(str, definition.directions or ("",)):
        values = _values(last.samples, direction)
        cells: dict[str, CellValue] = {**common, "direction": direction}
        cells |= {column: values.get(key) for column, key in _NUMBERS.items()}
        cells |= over_runs(history, direction) | passes(history, direction)
        if series is not None:
            cells |= _beside(series, definition, direction, cells)
        rows.append(ResultRow(cells, definition))
    return rows


def _values(samples: Iterable[Sample], direction: str) -> dict[tuple[str, str], float]:
    return {
        (sample.metric, sample.part): sample.value
        for sample in samples
        if str(sample.direction or "") == direction
    }


def _beside(
    series: ReferenceSeries, definition: Definition, direction: str, cells: Mapping[str, CellValue]
) -> dict[str, CellValue]:
    known = {
        **definition.options,
        **definition.labels,
        "tool": definition.tool,
        **definition.parameters,
    }
    row = series.beside(known)
    if row is None:
        return {}
    doubts = "; ".join(implausibility.text for implausibility in row.implausibilities())
    own = {"iops": cells["iops"], "bandwidth": cells["bandwidth_bytes_per_second"]}
    for metric, value in own.items():
        theirs = row.values.get((metric, direction))
        if theirs is not None:
            ratio = float(value) / theirs if value is not None and theirs else None
            return {
                "published_metric": metric,
                "published": theirs,
                "ratio_to_published": ratio,
                "published_doubt": doubts,
            }
    return {}


def rates(run: StoredRun, direction: str) -> tuple[str, float] | None:
    """Return the metric that tells a run's speed in a direction, and its value.

    I/O per second, or bytes per second where the tool gives no other rate; None: neither.
    """
    values = {
        one.metric: one.value
        for one in run.samples
        if str(one.direction or "") == direction and not one.part
    }
    found = [(metric, values[metric]) for metric in ("iops", "bandwidth") if metric in values]
    return found[0] if found else None


def over_runs(history: Sequence[StoredRun], direction: str) -> dict[str, CellValue]:
    """Return the best and the median of all good runs of a case."""
    good = [run for run in history if run.outcome.good]
    known = [found for run in good if (found := rates(run, direction)) is not None]
    if not known:
        return {"good_runs": len(good)}
    reached = [value for _, value in known]
    return {
        "good_runs": len(good),
        "best": max(reached),
        "median": statistics.median(reached),
        "best_metric": known[0][0],
    }


def passes(history: Sequence[StoredRun], direction: str) -> dict[str, CellValue]:
    """Return the first and the last pass of the newest cycle that made several of a case.

    Args:
        history: runs of one case, newest first. A pass that was not good has no value.
    """
    newest: dict[str, CellValue] = {"pass": history[0].pass_number or None}
    cycle = next((run.cycle for run in history if run.pass_number > 1), None)
    if cycle is None:
        return newest
    made = {run.pass_number: run for run in history if run.cycle == cycle and run.pass_number}
    reached = _reached(made, direction)
    last = max(made)
    first_value, last_value = reached.get(1), reached.get(last)
    ratio = last_value / first_value if first_value and last_value is not None else None
    return newest | {
        "passes": last,
        "first_pass": first_value,
        "last_pass": last_value,
        "last_to_first_ratio": ratio,
    }


def _reached(made: Mapping[int, StoredRun], direction: str) -> dict[int, float]:
    known = {number: rates(run, direction) for number, run in made.items() if run.outcome.good}
    return {number: found[1] for number, found in known.items() if found is not None}


def of_pass(runs: Sequence[StoredRun], number: int) -> list[StoredRun]:
    """Return the runs that were that pass of their case; those that were skipped were none."""
    return [run for run in runs if run.pass_number == number and run.outcome is not Outcome.SKIPPED]


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def columns_of(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """Return the columns; those of a published table or of ratios only if there are any."""
    beside = any(row["published"] is not None for row in rows)
    relative = any(row["relative_to"] for row in rows)
    return (
        *RESULT_COLUMNS,
        *(BESIDE_COLUMNS if beside else ()),
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
    """Return the cell so that a spreadsheet takes it for text: a title may come from anywhere."""
    if isinstance(cell, str) and cell.startswith(_FORMULA):
        return f"'{cell}"
    return "" if cell is None else cell


def write_xlsx(rows: Sequence[ResultRow], path: Path) -> None:
    """Write a workbook: all results on one sheet, with a filter, and a chart for each workload.

    Raises:
        OSError: the file cannot be written.
    """
    from xlsxwriter import Workbook  # noqa: PLC0415 # a quick command must start quickly
    from xlsxwriter.exceptions import FileCreateError  # noqa: PLC0415 # likewise

    columns = columns_of(rows)
    book = Workbook(str(path), {"strings_to_formulas": False, "strings_to_urls": False})
    sheet = book.add_worksheet("results")
    bold = book.add_format({"bold": True})
    for place, column in enumerate(columns):
        sheet.write_string(0, place, column, bold)
    for line, row in enumerate(rows, start=1):
        for place, column in enumerate(columns):
            cell = row[column]
            if isinstance(cell, str):
                sheet.write_string(line, place, cell)
            elif cell is not None:
                sheet.write_number(line, place, cell)
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, len(rows), len(columns) - 1)
    charts = book.add_worksheet("charts")
    at = {name: columns.index(name) for name in ("scenario", "iops", "bandwidth_bytes_per_second")}
    for number, (title, first, last, column) in enumerate(_blocks(rows)):
        chart = book.add_chart({"type": "bar"})
        chart.add_series(
            {
                "name": column,
                "categories": ["results", first, at["scenario"], last, at["scenario"]],
                "values": ["results", first, at[column], last, at[column]],
            }
        )
        chart.set_title({"name": title})
        chart.set_legend({"none": True})
        charts.insert_chart(number * 16, 0, chart, {"x_scale": 1.5})
    try:
        book.close()
    except FileCreateError as error:
        raise OSError(str(error)) from error


def _blocks(rows: Sequence[ResultRow]) -> list[tuple[str, int, int, str]]:
    """Return (title, first line, last line, column) of each workload and direction."""
    blocks: list[tuple[str, int, int, str]] = []
    for line, row in enumerate(rows, start=1):
        title = f"{row['workload']} {row['direction']}"
        column = "iops" if row["iops"] is not None else "bandwidth_bytes_per_second"
        if blocks and blocks[-1][0] == title:
            blocks[-1] = (title, blocks[-1][1], line, blocks[-1][3])
        elif row[column] is not None:
            blocks.append((title, line, line, column))
    return blocks
