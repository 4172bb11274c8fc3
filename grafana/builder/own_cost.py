"""What measuring itself costs: the exporter, its page and database, and the host beside it."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table, timeseries

from builder.panels import lines
from builder.parts import place, query
from builder.promql import series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    BUILD_INFO,
    COLLECTOR_DURATION,
    COLLECTOR_SUCCESS,
    DATABASE_SIZE,
    RESULTS,
)

JOB: Final = 'job="pvebench"'


def scrapes() -> timeseries.Panel:
    """Return duration and size of the exporter's scrapes."""
    return lines(
        "Scrapes",
        "Duration of a scrape, and samples in it.",
        [
            query(f"scrape_duration_seconds{{{JOB}}}", legend="seconds {{instance}}"),
            query(
                f"scrape_samples_scraped{{{JOB}}} / 1e6",
                legend="million samples {{instance}}",
                ref="B",
            ),
        ],
        unit="none",
        linked=False,
        right=False,
        zero=True,
    )


def page_parts() -> timeseries.Panel:
    """Return how long each part of its page took."""
    return lines(
        "Parts of the page",
        "How long each took to make; 0 where it failed.",
        [
            query(
                f"{series(COLLECTOR_DURATION)} * {series(COLLECTOR_SUCCESS)}",
                legend="{{collector}}",
            )
        ],
        unit="s",
        linked=False,
        right=False,
        zero=True,
    )


def memory_and_database() -> timeseries.Panel:
    """Return what it keeps in memory and on disk."""
    return lines(
        "Memory of the exporter, size of its database",
        "Resident memory; bytes on disk.",
        [
            query(f"process_resident_memory_bytes{{{JOB}}}", legend="memory {{instance}}"),
            query(series(DATABASE_SIZE), legend="database {{instance}}", ref="B"),
        ],
        unit="bytes",
        linked=False,
        right=False,
        zero=True,
    )


def exporters() -> table.Panel:
    """Return which exporters there are."""
    return rows(
        "Exporters",
        "Version of each, runs in its database.",
        ("instance", "version", "python_version"),
        (
            Column(
                title="runs",
                expression=f"{series(BUILD_INFO)} * on (instance) group_left () {series(RESULTS)}",
                unit="short",
            ),
        ),
        linked=False,
    )


def host() -> dashboard.Row:
    """Return what the whole host does, for those who look for the cause."""
    busy = 'rate(node_cpu_seconds_total{mode!="idle"}[$__rate_interval])'
    disk = "rate(node_disk_io_time_seconds_total[$__rate_interval])"
    cpu = lines(
        "Host CPU busy",
        "Cores in use, from node_exporter.",
        [query(f"sum by (instance) ({busy})", legend="{{instance}}")],
        unit="none",
        linked=False,
        right=False,
        zero=True,
    ).grid_pos(place(0, 62, 12, 8))
    disks = lines(
        "Disks busy",
        "Share of time with I/O under way, from node_exporter.",
        [query(disk, legend="{{instance}} {{device}}")],
        unit="percentunit",
        linked=False,
        right=False,
        zero=True,
    ).grid_pos(place(12, 62, 12, 8))
    row = dashboard.Row("Host (node_exporter)").collapsed(True).grid_pos(place(0, 60, 24, 1))
    return row.with_panel(cpu).with_panel(disks)
