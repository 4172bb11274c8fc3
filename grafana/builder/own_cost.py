"""Cost of measuring: exporter, scrapes and database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from grafana_foundation_sdk.builders import dashboard, table, timeseries

from builder.charts import chart
from builder.parts import collapsed
from builder.promql import series
from builder.tables import Column, rows
from pvebench.metrics import catalog as m

JOB: Final = 'job="pvebench"'


def _charts() -> Iterator[timeseries.Panel]:
    collectors = f"{series(m.COLLECTOR_DURATION)} * {series(m.COLLECTOR_SUCCESS)}"
    for title, text, unit, lines in (
        (
            "Scrapes",
            "Duration and number of samples of a scrape.",
            "none",
            {
                "seconds {{instance}}": f"scrape_duration_seconds{{{JOB}}}",
                "million samples {{instance}}": f"scrape_samples_scraped{{{JOB}}} / 1e6",
            },
        ),
        (
            "Metric collectors",
            "Duration of each collector; 0 if it failed.",
            "s",
            {"{{collector}}": collectors},
        ),
        (
            "Exporter memory and database size",
            "Resident memory and size on disk.",
            "bytes",
            {
                "memory {{instance}}": f"process_resident_memory_bytes{{{JOB}}}",
                "database {{instance}}": series(m.DATABASE_SIZE),
            },
        ),
    ):
        yield chart(title, text, lines, unit)


def _exporters() -> table.Panel:
    runs = f"{series(m.BUILD_INFO)} * on (instance) group_left () {series(m.RESULTS)}"
    return rows(
        "Exporters",
        "Version, and number of runs in the database.",
        ("instance", "version", "python_version"),
        (Column("runs", runs, unit="short"),),
        linked=False,
    )


def own_cost(y: int) -> dashboard.Row:
    """Return the row of the exporter's own cost."""
    return collapsed("Cost of pvebench", y, *_charts(), _exporters())
