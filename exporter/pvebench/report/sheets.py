"""CSV and XLSX. No cell can become a formula of a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pvebench.report.table import (
    BESIDE_COLUMNS,
    RELATIVE_COLUMNS,
    RESULT_COLUMNS,
    CellValue,
    ResultRow,
)

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
