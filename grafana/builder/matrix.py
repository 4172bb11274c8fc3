"""Configuration matrix: which setting is best for this workload, and is the difference real?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, stat, table, timeseries
from grafana_foundation_sdk.models import common as models

from builder.looks import SAME, plain, prop, signed_words, values
from builder.panels import NEW_ROW, intro, lines, names
from builder.parts import (
    base,
    changes,
    environment_changes,
    instant,
    node_variable,
    place,
    query,
    storage_variable,
    workload_variable,
)
from builder.promql import SAME_CASE, in_words, series
from builder.tables import Column, as_text, grid, rows
from pvebench.metrics.catalog import (
    CHANGE,
    IOPS,
    LATENCY_PERCENTILE,
    RUN_SUCCESS,
    RUN_TIMESTAMP,
    SCENARIO_GAP,
    SCENARIO_GAP_NOISE,
    SCENARIO_RANK_INFO,
)
from pvebench.model.disk import Cache

CASE: Final = {"node": "$node", "storage": "$storage", "workload": "$workload"}
CORNER: Final = "disk, by cache mode"
STANDINGS: Final[dict[str, tuple[int, str, str, dict[str, str]]]] = {
    "fastest": (1001, "fastest", "semi-dark-blue", {"rank": "fastest", "excluded": ""}),
    "same": (1002, "as fast", "blue", {"rank": "equal", "excluded": ""}),
    "unknown": (1003, "too few runs", SAME, {"rank": "unknown", "excluded": ""}),
    "not_durable": (1004, "not durable", SAME, {"excluded": "not_durable"}),
    "warm": (1005, "warm cache", SAME, {"excluded": "warm"}),
    "host": (1006, "no VM", SAME, {"excluded": "host"}),
    "only": (1007, "only one so far", SAME, {"rank": "fastest", "excluded": ""}),
    "first": (1008, "most so far", SAME, {"rank": "fastest", "excluded": ""}),
}
"""Standing -> (number for it in a cell, word, colour, labels of the metric)."""
MORE_WORDS: Final = {"same": ", within noise"} | dict.fromkeys(
    ("not_durable", "warm", "host"), ", not compared"
)
"""Standing -> what a table with more room says too."""
INTRO: Final = (
    "**Which setting is best for this workload on this storage, and is that real?** Each cell is "
    "one scenario, the same one in all three tables: the disk of its row in the cache mode of its "
    "column. *As fast* cannot be told from the fastest by the noise of both; it takes three runs "
    "of each, so the answer comes with the third cycle. *Not durable* (the guest's flushes are "
    "ignored), *warm cache* (reads may come from the host's memory) and *no VM* stand apart."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base(
            "Configuration matrix",
            "pvebench-matrix",
            "Bus, format and options by cache mode: values, distance to the best, change.",
            since="7d",
        )
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable(multi=False))
        .with_variable(storage_variable(multi=False))
        .with_variable(workload_variable())
        .with_panel(_answer().grid_pos(place(0, 0, 24, 4)))
        .with_panel(_values().grid_pos(place(0, 4, 8, 9)))
        .with_panel(_gaps().grid_pos(place(8, 4, 8, 9)))
        .with_panel(_change().grid_pos(place(16, 4, 8, 9)))
        .with_panel(_details().grid_pos(place(0, 13, 24, 11)))
        .with_panel(_history().grid_pos(place(0, 24, 16, 9)))
        .with_panel(_not_ok().grid_pos(place(16, 24, 8, 9)))
        .with_panel(intro(INTRO, y=33))
    )


def _standing(name: str) -> str:
    found = series(SCENARIO_RANK_INFO, **CASE, **STANDINGS[name][3])
    # What nothing was compared with is the fastest of one, which is no praise; nor is it one to
    # be before others that have too few runs.
    several = f"(count({series(SCENARIO_RANK_INFO, **CASE, excluded='')}) > 1)"
    unknown = series(SCENARIO_RANK_INFO, **CASE, **STANDINGS["unknown"][3])
    known = {
        "fastest": f"({found} and on () {several} unless on () {unknown})",
        "first": f"({found} and on () {unknown})",
        "only": f"({found} unless on () {several})",
    }
    return known.get(name, found)


def _answer() -> stat.Panel:
    fastest, same, only, first = (
        in_words(_standing(name)) for name in ("fastest", "same", "only", "first")
    )
    return (
        names(
            "Best setting",
            "Of those that keep what the guest was told is safe, and that read from the disk.",
            "",
            "",
            missing="Known with the third run of each setting",
        )
        .targets(
            [
                instant(fastest, legend="{{description}} is fastest with {{configuration}}"),
                instant(
                    f"count by (description) ({same})",
                    legend="settings that cannot be told from it by their noise",
                    ref="B",
                ),
                instant(
                    only,
                    legend="{{description}}: only {{configuration}} is measured so far",
                    ref="C",
                ),
                instant(
                    first,
                    legend="{{description}}: {{configuration}} shows the most so far",
                    ref="D",
                ),
            ]
        )
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .override_by_query("A", [prop("mappings", values({"1": (" ", SAME)}))])
        .override_by_query("C", [prop("mappings", values({"1": (" ", SAME)}))])
        .override_by_query("D", [prop("mappings", values({"1": (" ", SAME)}))])
    )


def _cells(expression: str) -> str:
    """Return one value for each cell, with the labels of its row and column."""
    return f"max by (disk, cache) ({in_words(expression, workload=False, scenario='disk')})"


def _total(selector: str) -> str:
    """Return reads and writes of each case together, as they stand in its cell."""
    return f"sum by ({SAME_CASE}, cache) ({selector})"


def _grid(title: str, description: str, expression: str, unit: str) -> table.Panel:
    return grid(
        title,
        description,
        expression,
        unit=unit,
        row="disk",
        column="cache",
        corner=CORNER,
        order=tuple(Cache),
    )


def _values() -> table.Panel:
    return _grid(
        "IOPS",
        "Of the last good run, reads and writes together. Darker is more within this table, which "
        "says nothing of good or bad.",
        _cells(_total(series(IOPS, **CASE))),
        "iops",
    )


def _coded() -> str:
    """Return the standing of each case as a number, and of slower ones the distance in per cent."""
    slower = series(SCENARIO_RANK_INFO, **CASE, rank="slower", excluded="")
    parts = [f"{code} * {_standing(name)}" for name, (code, *_) in STANDINGS.items()]
    parts.append(f"round(100 * {series(SCENARIO_GAP, **CASE)}) and on ({SAME_CASE}) {slower}")
    return " or ".join(f"max by ({SAME_CASE}, cache) ({part})" for part in parts)


def _gaps() -> table.Panel:
    words = {str(code): (text, colour) for code, text, colour, _ in STANDINGS.values()}
    return (
        _grid(
            "Against the best",
            "How much less a setting gives than the fastest one, where that is beyond the noise of "
            "both. Grey: it does not compete, or it takes more runs.",
            _cells(f"({_coded()})"),
            "none",
        )
        .with_transformation(as_text(*Cache))
        .mappings([*values(words), *signed_words(neutral=True, nothing="not measured")])
        .color_scheme(plain())
        .display_mode(models.TableCellDisplayMode.COLOR_TEXT)
    )


def _change() -> table.Panel:
    change = f"max by ({SAME_CASE}, cache) ({series(CHANGE, **CASE, metric='throughput')})"
    panel = _grid(
        "Change since its baseline",
        "Of each case's throughput against its own baseline, in per cent; plus is better.",
        _cells(f"round(100 * {change})"),
        "none",
    )
    return (
        panel.display_mode(models.TableCellDisplayMode.COLOR_TEXT)
        .color_scheme(plain())
        .with_transformation(as_text(*Cache))
        .mappings(signed_words(nothing="–"))
        .no_value(NEW_ROW)
    )


def _details() -> table.Panel:
    keys = "node, storage, scenario, workload"
    result = f"sum by ({SAME_CASE}) ({series(IOPS, **CASE)})"
    percentile = series(LATENCY_PERCENTILE, **CASE, percentile="99")
    words = {
        str(code): (f"{text}{MORE_WORDS.get(name, '')}", colour)
        for name, (code, text, colour, _) in STANDINGS.items()
    } | {"0": ("slower", "orange")}
    coded = _coded().replace(f"round(100 * {series(SCENARIO_GAP, **CASE)})", series_zero())
    return rows(
        "All settings",
        "Last good run of each: whether it differs from the best beyond noise, by how much, the "
        "noise of both, 99th percentile of completion latency, age. A click leads to the case.",
        ("configuration", "storage", "node", "scenario", "workload"),
        (
            Column(
                title="IOPS", expression=in_words(result, workload=False), unit="iops", gauge=True
            ),
            Column(title="against the best", expression=f"max by ({keys}) ({coded})", wide=190),
            Column(
                title="distance",
                expression=f"max by ({keys}) ({series(SCENARIO_GAP, **CASE)})",
                change=True,
                neutral=True,
            ),
            Column(
                title="noise ±",
                expression=f"max by ({keys}) ({series(SCENARIO_GAP_NOISE, **CASE)})",
                unit="percentunit",
                decimals=1,
            ),
            Column(title="p99", expression=f"max by ({keys}) ({percentile})", unit="s", decimals=2),
            Column(
                title="age",
                expression=f"max by ({keys}) (time() - {series(RUN_TIMESTAMP, **CASE)})",
                unit="dtdurations",
                decimals=0,
            ),
        ),
        sort="IOPS",
        missing="nothing measured yet: the first row comes with the first run",
    ).override_by_name(
        "against the best",
        [prop("mappings", values(words)), prop("custom.displayMode", "color-text")],
    )


def series_zero() -> str:
    """Return the distances as zeroes: that there is one is what counts."""
    return f"0 * {series(SCENARIO_GAP, **CASE)}"


def _history() -> timeseries.Panel:
    result = series(IOPS, **CASE)
    return lines(
        "IOPS over time",
        "The held value of the eight settings that are fastest now; a step is a new run.",
        [
            query(
                in_words(f"({result} and topk(8, {result} @ end()))", workload=False),
                legend="{{configuration}} {{direction}}",
            )
        ],
        unit="iops",
        zero=True,
    )


def _not_ok() -> table.Panel:
    tried = in_words(f"({series(RUN_SUCCESS, **CASE)} == 0)", workload=False)
    return rows(
        "Holes explained",
        "Settings whose last attempt was not good; the exporter's page leads to the evidence.",
        ("configuration", "node", "scenario", "workload"),
        (Column(title="last attempt", expression=tried),),
        hidden=("storage", "bus", "cache", "format"),
        missing="no setting failed",
    ).override_by_name("last attempt", [prop("mappings", values({"0": ("FAILED", "orange")}))])
