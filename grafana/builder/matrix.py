"""Configuration matrix: which setting is best for this workload, what do the others lose?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import barchart, bargauge, dashboard, table, timeseries
from grafana_foundation_sdk.models import common as models

from builder.bars import bars, ranking
from builder.looks import by_steps, change_steps, prop
from builder.panels import intro, lines
from builder.parts import (
    base,
    environment_changes,
    label_variable,
    node_variable,
    place,
    query,
    storage_variable,
    table_query,
    transformation,
    workload_variable,
)
from builder.promql import SAME_CASE, recorded, series
from builder.tables import Column, grid, rows
from pvebench.metrics.catalog import (
    CHANGE,
    CHANGE_THRESHOLD,
    IOPS,
    LATENCY_PERCENTILE,
    RUN_SUCCESS,
    RUN_TIMESTAMP,
    SCENARIO_INFO,
)

CASE: Final = {"node": "$node", "storage": "$storage", "workload": "$workload"}
RESULT: Final = {**CASE, "direction": "$direction"}
INTRO: Final = (
    "**Which setting is best for this workload, and what do the others lose?** Every cell is the "
    "last good run of one scenario: the disk on one bus, in one cache mode, in one format; where "
    "several scenarios share a cell (other aio, I/O thread …) the fastest is shown. A cell that "
    "says *not measured* was never run: the plan left it out, or it failed. Where *All scenarios* "
    "says *warm*, reads may have come from what earlier runs left in the host's memory."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    directions = label_variable(
        "direction", "Direction", among='node=~"$node",workload=~"$workload"', multi=True
    )
    return (
        base(
            "Configuration matrix",
            "pvebench-matrix",
            "Bus by cache mode for each format: values, share of the best, change, ranking.",
        )
        .annotation(environment_changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable())
        .with_variable(directions)
        .with_panel(intro(INTRO))
        .with_panel(_values("raw").grid_pos(place(0, 3, 8, 7)))
        .with_panel(_share("raw").grid_pos(place(8, 3, 8, 7)))
        .with_panel(_change("raw").grid_pos(place(16, 3, 8, 7)))
        .with_panel(_values("qcow2").grid_pos(place(0, 10, 8, 7)))
        .with_panel(_share("qcow2").grid_pos(place(8, 10, 8, 7)))
        .with_panel(_change("qcow2").grid_pos(place(16, 10, 8, 7)))
        .with_panel(_ranking().grid_pos(place(0, 17, 12, 12)))
        .with_panel(_details().grid_pos(place(12, 17, 12, 12)))
        .with_panel(_by_cache().grid_pos(place(0, 29, 12, 9)))
        .with_panel(_history().grid_pos(place(12, 29, 12, 9)))
        .with_panel(_not_ok().grid_pos(place(0, 38, 24, 6)))
    )


def _values(kind: str) -> table.Panel:
    return grid(
        f"IOPS, {kind}",
        f"I/O per second of the last good run, {kind} volume. The colour says how it ranks in "
        f"this table, not whether it is good.",
        f"max by (bus, cache) ({series(IOPS, **RESULT, format=kind)})",
        unit="iops",
    )


def _share(kind: str) -> table.Panel:
    name = "scenario_workload_direction:pvebench_iops:ratio_of_best"
    return (
        grid(
            f"Share of the best, {kind}",
            "Value divided by the best of all formats, buses and cache modes of the same storage.",
            f"max by (bus, cache) ({recorded(name, **RESULT, format=kind)})",
            unit="percentunit",
        )
        .decimals(0)
        .min(0)
        .max(1)
    )


def _change(kind: str) -> table.Panel:
    throughput = series(CHANGE, **RESULT, format=kind, metric="throughput")
    return (
        grid(
            f"Change of throughput, {kind}",
            "Against each case's own baseline; plus is better, grey is within a few percent.",
            f"min by (bus, cache) ({throughput})",
            unit="percentunit",
        )
        .decimals(1)
        .color_scheme(by_steps())
        .thresholds(change_steps())
        .display_mode(models.TableCellDisplayMode.COLOR_TEXT)
        .no_value("no baseline")
    )


def _ranking() -> bargauge.Panel:
    return ranking(
        "Ranking",
        "The 20 fastest scenarios. What is within its noise of the first is a tie with "
        "it: the table beside says so.",
        f"sort_desc(topk(20, {series(IOPS, **RESULT)}))",
        unit="iops",
        legend="{{scenario}} {{direction}}",
    )


def _details() -> table.Panel:
    keys = "node, storage, scenario, workload, direction"
    result = series(IOPS, **RESULT)
    percentile = series(LATENCY_PERCENTILE, **RESULT, percentile="99")
    noise = f"max by ({keys}) ({series(CHANGE_THRESHOLD, **RESULT, metric='throughput')})"
    share = f"max by ({keys}) ({result}) / scalar(max({result}))"
    age = f"(time() - {series(RUN_TIMESTAMP, **CASE)})"
    warm = series(SCENARIO_INFO, node="$node", storage="$storage", host_cache="warm")
    marked = (
        f"max by ({keys}) (0 * {result} + on (node, scenario) group_left () "
        f"max by (node, scenario) ({warm}))"
    )
    by_direction = f"max by ({keys}) (0 * {result} + on ({SAME_CASE}) group_left () {age})"
    return (
        rows(
            "All scenarios",
            "Last good run of each: IOPS, share of the best shown, whether that is a tie with it "
            "(within its own noise), 99th percentile of completion latency, age, and whether the "
            "host's cache was warm, so that reads say little about the disk.",
            ("scenario", "direction"),
            (
                Column(
                    title="IOPS", expression=f"max by ({keys}) ({result})", unit="iops", gauge=True
                ),
                Column(title="of the best", expression=share, unit="percentunit", decimals=0),
                Column(title="tie", expression=f"{share} >= bool 1 - {noise}"),
                Column(
                    title="p99", expression=f"max by ({keys}) ({percentile})", unit="s", decimals=2
                ),
                Column(title="age", expression=by_direction, unit="dtdurations", decimals=0),
                Column(title="cache", expression=marked),
            ),
            sort="IOPS",
        )
        .override_by_name(
            "cache",
            [prop("mappings", [{"type": "value", "options": {"1": {"text": "warm", "index": 0}}}])],
        )
        .override_by_name(
            "tie",
            [
                prop(
                    "mappings",
                    [
                        {
                            "type": "value",
                            "options": {
                                "1": {"text": "tie with the best", "index": 0},
                                "0": {"text": "", "index": 1},
                            },
                        }
                    ],
                )
            ],
        )
        .override_by_name("workload", [prop("custom.hidden", True)])
        .override_by_name("node", [prop("custom.hidden", True)])
        .override_by_name("storage", [prop("custom.hidden", True)])
    )


def _by_cache() -> barchart.Panel:
    best = f"max by (cache, direction) ({series(IOPS, **CASE, direction='.*')})"
    return bars(
        "Reads and writes by cache mode",
        "The fastest scenario of each cache mode. `unsafe` "
        "ignores the guest's flushes: its writes are promises.",
        [table_query(best)],
        unit="short",
        x="cache\\direction",
        transformations=[
            transformation(
                "groupingToMatrix", rowField="cache", columnField="direction", valueField="Value"
            )
        ],
    )


def _history() -> timeseries.Panel:
    return lines(
        "IOPS over time",
        "The held value of the eight fastest scenarios; a step is a new run.",
        [
            query(
                f"topk(8, {series(IOPS, **RESULT)} @ end()) * 0 + {series(IOPS, **RESULT)}",
                legend="{{scenario}} {{direction}}",
            )
        ],
        unit="iops",
    )


def _not_ok() -> table.Panel:
    keys = "node, storage, scenario, workload"
    tried = f"max by ({keys}) ({series(RUN_SUCCESS, **CASE)} == 0)"
    return rows(
        "Holes explained",
        "Cases of this workload whose last attempt was not good; the "
        "exporter's page leads to the evidence.",
        ("node", "storage", "scenario", "workload"),
        (Column(title="last attempt", expression=tried),),
        missing="no case failed",
    ).override_by_name(
        "last attempt",
        [prop("mappings", [{"type": "value", "options": {"0": {"text": "FAILED", "index": 0}}}])],
    )
