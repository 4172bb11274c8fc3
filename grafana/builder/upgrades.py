"""Before/after upgrade: comparison of two environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, table, timeseries

from builder.bars import changes_bars
from builder.charts import FEW_POINTS, lines
from builder.looks import BETTER, NEUTRAL, WORSE, rated, steps
from builder.panels import intro, number, signed, verdict
from builder.parts import (
    base,
    custom_variable,
    node_variable,
    place,
    query_variable,
    storage_variable,
)
from builder.promql import CASE_KEYS, HELD, cpu_per_io, label, series, with_descriptions
from builder.tables import Column, noise_column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f

HERE: Final = {"node": "$node", "storage": "$storage"}
CASE: Final = f"job, instance, {CASE_KEYS}"
KEYS: Final = f"{CASE}, direction"
NOISE: Final = "$noise"
NOTHING: Final = "now"
SIDES: Final = ("before", "after")
TWO_MOMENTS: Final = " and on () (vector($before) != $after)"
"""Condition that keeps an environment from being compared with itself."""
NO_SIDES: Final = "no upgrade to compare yet"
NO_CHANGES: Final = "no significant changes to show"
"""Text of empty bars; does not claim "unchanged", since there may have been no comparison."""
INTRO: Final = (
    "**Did the upgrade change performance?** Compares *Before* with *After* (by default the end "
    "of the current environment: now) on all selected nodes. Each side is the median of a window, "
    "which limits the influence of single runs. A *significant* change exceeds the noise of the "
    "verdict. Throughput changes in percent; ×1.67 is 1.67 times the latency or the "
    "CPU per I/O, where less is better. A comparison needs "
    "two environments."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    latency, cpu = _factors()
    return (
        base(
            "Before/after upgrade",
            "pvebench-upgrades",
            "Compares two environments: regressions, improvements and their significance.",
            since="90d",
        )
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(_moment("before", "Before: end of", newest=False))
        .with_variable(_moment("after", "After: end of", newest=True))
        .with_variable(
            custom_variable("window", "Window", {"3 days": "3d", "1 day": "1d", "7 days": "7d"})
        )
        .with_variable(
            custom_variable(
                "noise", "Hide below", {"5%": "0.05", "2%": "0.02", "10%": "0.10", "nothing": "0"}
            )
        )
        .with_panel(_count("Slower", f"< bool -{NOISE}", WORSE).grid_pos(place(0, 0, 4, 4)))
        .with_panel(_count("Faster", f"> bool {NOISE}", BETTER).grid_pos(place(4, 0, 4, 4)))
        .with_panel(_compared().grid_pos(place(8, 0, 4, 4)))
        .with_panel(_mean().grid_pos(place(12, 0, 12, 4)))
        .with_panel(_cases().grid_pos(place(0, 4, 24, 12)))
        .with_panel(_environments().grid_pos(place(0, 16, 14, 9)))
        .with_panel(_trend().grid_pos(place(14, 16, 10, 9)))
        .with_panel(latency.grid_pos(place(0, 25, 12, 10)))
        .with_panel(cpu.grid_pos(place(12, 25, 12, 10)))
        .with_panel(intro(INTRO, y=35))
    )


def _moment(name: str, title: str, *, newest: bool) -> dashboard.QueryVariable:
    """Return a variable of times; it always has a value, since queries need one."""
    ends = series(m.ENVIRONMENT_END, node="$node")
    latest = f"max by (node) ({ends})"
    if not newest:
        # A single environment is compared with itself, which avoids an error.
        only = f"({ends} and on (node) count by (node) ({ends}) == 1)"
        ends = f"(({ends} < on (node) group_left () {latest}) or {only})"
    named = f'label_join({ends}, "shown", ": ", "node", "environment")'
    fallback = label("shown", NOTHING, "vector(time())")
    return (
        query_variable(
            name, title, f"query_result(sort_desc(max by (shown) ({named} or on () {fallback})))"
        )
        .regex('/shown="(?<text>[^"]+)"\\} (?<value>[0-9.e+]+) /')
        .multi(False)
        .include_all(False)
    )


def _window(selector: str, moment: str) -> str:
    """Return the values of a window, one per hour: values are held longer, and samples cost."""
    return f"({selector})[$window:1h] @ ${moment}"


def _side(selector: str, moment: str) -> str:
    return f"quantile_over_time(0.5, {_window(selector, moment)})"


def _ratio() -> str:
    """Return after / before - 1 of the throughput."""
    return f"{_factor(series(f.IOPS.metric, **HERE))} - 1"


def _factor(values: str, by: str = KEYS) -> str:
    """Return after / before."""
    before = f"max by ({by}) ({_side(values, 'before')} > 0)"
    after = f"max by ({by}) ({_side(values, 'after')} > 0)"
    return f"{after} / {before}"


def _noise() -> str:
    """Return the noise of the verdicts, where both windows have several runs."""
    now = f"{series(m.CHANGE_THRESHOLD, metric='throughput', **HERE)} @ {HELD}"
    runs = (f"changes({_window(series(m.RUN_TIMESTAMP, **HERE), one)})" for one in SIDES)
    several = " and ".join(f"(max by ({CASE}) ({one}) > 0)" for one in runs)
    return f"(max by ({KEYS}) ({now}) and on ({CASE}) ({several}))"


def _count(title: str, condition: str, color: str) -> stat.Panel:
    panel = number(
        title,
        f"Cases whose throughput is {title.lower()} by more than *Hide below*.",
        f"sum({_ratio()} {condition}){TWO_MOMENTS}",
        missing=NO_SIDES,
    )
    return verdict(panel, steps(NEUTRAL, (1, color)))


def _compared() -> stat.Panel:
    return number(
        "Compared cases",
        "Cases with results on both sides.",
        f"count({_ratio()}){TWO_MOMENTS}",
        missing=NO_SIDES,
    )


def _mean() -> stat.Panel:
    return signed(
        "Throughput change, %",
        "Geometric mean over the compared cases of each storage.",
        f"((exp(avg by (node, storage) (ln(1 + {_ratio()}))) - 1){TWO_MOMENTS})",
        legend="{{storage}}, {{node}}",
        missing=NO_SIDES,
    )


def _environments() -> table.Panel:
    keys = "node, environment, pve_version, kernel_version, qemu_version"
    begin = f"max by ({keys}) ({series(m.ENVIRONMENT_START, node='$node')})"
    end = f"max by ({keys}) ({series(m.ENVIRONMENT_END, node='$node')})"
    return rows(
        "Environments",
        "Software of each node, with the start and end of its results.",
        ("node", "pve_version", "kernel_version", "qemu_version"),
        (
            Column("from", f"{begin} * 1000", unit="dateTimeAsIso", wide=160),
            Column("to", f"{end} * 1000", unit="dateTimeAsIso", wide=160),
            Column(
                "measured for", f"{end} - {begin} > 0", unit="dtdurations", decimals=1, wide=190
            ),
        ),
        sort="from",
        linked=False,
        hidden=("environment",),
        missing="none before the first run",
    )


def _cases() -> table.Panel:
    large = f"(abs({_ratio()}) >= {NOISE})"
    iops = series(f.IOPS.metric, **HERE)
    change = with_descriptions(f"({_ratio()} and on ({KEYS}) {large})")
    before = f"max by ({KEYS}) ({_side(iops, 'before')}) and on ({KEYS}) {large}"
    after = f"max by ({KEYS}) ({_side(iops, 'after')}) and on ({KEYS}) {large}"
    significant = f"{large} > bool {_noise()}"
    return rows(
        "Changed cases",
        "Median IOPS of both sides, the change, the noise of the verdict, and the significance. "
        "The last two are empty without a verdict, or if a side has a single run; select a longer "
        "window then. Click a configuration to see its case.",
        ("description", "configuration", "node", "storage", "direction", "scenario", "workload"),
        (
            # On a narrow screen, the table ends here.
            Column("change", change, change=True),
            Column("before", before, unit="iops"),
            Column("after", after, unit="iops"),
            noise_column(f"{_noise()} and on ({KEYS}) {large}"),
            Column("significance", significant, wide=150),
        ),
        sort="change",
        descending=False,
        present=large,
        missing="no changes above the limit",
    ).override_by_name(
        "significance", rated({"1": ("significant", NEUTRAL), "0": ("within noise", NEUTRAL)})
    )


def _factors() -> Iterator[bargauge.Panel]:
    """Yield the bars of p99 and of the CPU time per I/O."""
    p99 = series(f.CLAT_PERCENTILE.metric, percentile="99", **HERE)
    longer = "After / before: ×1.67 is 1.67 times as long. Less is better."
    more = "After / before: ×1.68 is 1.68 times as much host CPU for an operation. Less is better."
    for title, text, factor in (
        ("Latency (p99), largest changes", longer, _factor(p99)),
        ("CPU per I/O, largest changes", more, _factor(cpu_per_io(**HERE), CASE)),
    ):
        yield changes_bars(title, text, factor, limit=NOISE, factor=True, missing=NO_CHANGES)


def _trend() -> timeseries.Panel:
    now = series(f.IOPS.metric, **HERE)
    expression = f"exp(avg by (node, storage) (ln({now} / ({now} @ $before > 0)))){TWO_MOMENTS}"
    return lines(
        "Throughput relative to the previous environment",
        "Geometric mean over each storage's cases; 100% is the level at the end of *Before*.",
        {"{{storage}}, {{node}}": expression},
        unit="percentunit",
        linked=False,
        right=False,
        points=FEW_POINTS,
        missing=NO_SIDES,
    )
