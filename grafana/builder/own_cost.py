"""Cost of measuring: exporter, scrapes and database."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table, timeseries

from builder.charts import chart
from builder.parts import collapsed
from builder.promql import series
from builder.tables import Column, rows
from pvebench.metrics import catalog as m

JOB: Final = 'job="pvebench"'


def _scrapes() -> timeseries.Panel:
    return chart(
        "Scrapes",
        "Duration and number of samples of a scrape.",
        {
            "seconds {{instance}}": f"scrape_duration_seconds{{{JOB}}}",
            "million samples {{instance}}": f"scrape_samples_scraped{{{JOB}}} / 1e6",
        },
        "none",
    )


def _collectors() -> timeseries.Panel:
    return chart(
        "Metric collectors",
        "Duration of each collector; 0 if it failed.",
        {"{{collector}}": f"{series(m.COLLECTOR_DURATION)} * {series(m.COLLECTOR_SUCCESS)}"},
        "s",
    )


def _memory_and_database() -> timeseries.Panel:
    return chart(
        "Exporter memory and database size",
        "Resident memory and size on disk.",
        {
            "memory {{instance}}": f"process_resident_memory_bytes{{{JOB}}}",
            "database {{instance}}": series(m.DATABASE_SIZE),
        },
        "bytes",
    )


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
    panels = (_scrapes(), _collectors(), _memory_and_database(), _exporters())
    return collapsed("Cost of pvebench", y, *panels)
