"""Before/after upgrade: did the upgrade cost me anything?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, table, timeseries

from builder.bars import changes_bars
from builder.looks import BETTER, SAME, WORSE, steps
from builder.panels import intro, lines, number, verdict
from builder.parts import (
    base,
    custom_variable,
    environment_changes,
    node_variable,
    place,
    query,
    query_variable,
    storage_variable,
)
from builder.promql import series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    ENVIRONMENT_END,
    ENVIRONMENT_START,
    HOST_CPU,
    IOPS,
    LATENCY_PERCENTILE,
)

HERE: Final = {"node": "$node", "storage": "$storage"}
KEYS: Final = "node, storage, scenario, workload, direction"
NOISE: Final = "$noise"
INTRO: Final = (
    "**Did the upgrade cost me anything?** The end of environment *Before* is compared with that "
    "of *After* (the present one: now), each by the median of a window, so that one odd run does "
    "not decide. What is below *Hide below* is noise. **Plus is better**, for latency and CPU too."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base(
            "Before/after upgrade",
            "pvebench-upgrades",
            "Compares two environments of a node: what changed, what got slower or faster.",
            since="90d",
        )
        .annotation(environment_changes())
        .with_variable(node_variable(multi=False))
        .with_variable(storage_variable())
        .with_variable(_moment("before", "Before", newest=False))
        .with_variable(_moment("after", "After", newest=True))
        .with_variable(
            custom_variable("window", "Window", {"3 days": "3d", "1 day": "1d", "7 days": "7d"})
        )
        .with_variable(
            custom_variable(
                "noise",
                "Hide below",
                {"5 %": "0.05", "2 %": "0.02", "10 %": "0.10", "nothing": "0"},
            )
        )
        .with_panel(intro(INTRO))
        .with_panel(_count("Slower", f"< -{NOISE}", WORSE).grid_pos(place(0, 3, 3, 4)))
        .with_panel(_count("Faster", f"> {NOISE}", BETTER).grid_pos(place(3, 3, 3, 4)))
        .with_panel(_all().grid_pos(place(6, 3, 3, 4)))
        .with_panel(_mean().grid_pos(place(9, 3, 3, 4)))
        .with_panel(_environments().grid_pos(place(12, 3, 12, 9)))
        .with_panel(_worst().grid_pos(place(0, 7, 6, 12)))
        .with_panel(_best().grid_pos(place(6, 7, 6, 12)))
        .with_panel(_cases().grid_pos(place(12, 12, 12, 13)))
        .with_panel(_latency().grid_pos(place(0, 19, 6, 12)))
        .with_panel(_cpu().grid_pos(place(6, 19, 6, 12)))
        .with_panel(_trend().grid_pos(place(12, 25, 12, 10)))
    )


def _moment(name: str, label: str, *, newest: bool) -> dashboard.QueryVariable:
    ends = series(ENVIRONMENT_END, node="$node")
    latest = f"max by (node) ({ends})"
    if not newest:
        # With a single environment it is compared with itself, which is at least not an error.
        only = f"({ends} and on (node) count by (node) ({ends}) == 1)"
        ends = f"({ends} < on (node) group_left () {latest}) or {only}"
    return (
        query_variable(name, label, f"query_result(sort_desc({ends}))")
        .regex('/environment="(?<text>[^"]+)".*\\} (?<value>[0-9.e+]+) /')
        .multi(False)
        .include_all(False)
    )


def _side(selector: str, moment: str) -> str:
    return f"quantile_over_time(0.5, {selector}[$window] @ ${moment})"


def _ratio(*, better_is_more: bool = True, selector: str = "", by: str = KEYS) -> str:
    chosen = selector or series(IOPS, **HERE)
    before = f"max by ({by}) ({_side(chosen, 'before')} > 0)"
    after = f"max by ({by}) ({_side(chosen, 'after')} > 0)"
    return f"{after} / {before} - 1" if better_is_more else f"{before} / {after} - 1"


def _count(title: str, condition: str, colour: str) -> stat.Panel:
    ratio = _ratio()
    panel = number(
        title,
        f"Cases whose throughput is {title.lower()} by more than the noise limit.",
        f"count(({ratio}) {condition}) or 0 * count({ratio})",
        missing="no results on both sides",
    )
    return verdict(panel, steps(SAME, (1, colour)))


def _all() -> stat.Panel:
    return number(
        "Compared",
        "Cases with results on both sides.",
        f"count({_ratio()})",
        missing="no results on both sides",
    )


def _mean() -> stat.Panel:
    panel = number(
        "After/before",
        "Geometric mean over all compared cases; above 100 % is better.",
        f"exp(avg(ln(1 + {_ratio()})))",
        unit="percentunit",
        decimals=1,
        missing="no results on both sides",
    )
    return verdict(panel, steps(WORSE, (0.97, SAME), (1.03, BETTER)))


def _environments() -> table.Panel:
    keys = "environment, pve_version, kernel_version, qemu_version"
    begin = f"max by ({keys}) ({series(ENVIRONMENT_START, node='$node')})"
    end = f"max by ({keys}) ({series(ENVIRONMENT_END, node='$node')})"
    return rows(
        "Environments",
        "What ran on the node, and from when to when it was measured.",
        ("pve_version", "kernel_version", "qemu_version", "environment"),
        (
            Column(title="from", expression=f"{begin} * 1000", unit="dateTimeAsIso"),
            Column(title="to", expression=f"{end} * 1000", unit="dateTimeAsIso"),
            Column(title="measured for", expression=f"{end} - {begin}", unit="dtdurations"),
        ),
        sort="from",
        linked=False,
        missing="no environment yet",
    )


def _worst() -> bargauge.Panel:
    return changes_bars(
        "Largest losses",
        "Throughput, the worst first.",
        _ratio(),
        "{{scenario}} {{workload}}",
        better=0,
        limit=NOISE,
    )


def _best() -> bargauge.Panel:
    return changes_bars(
        "Largest gains",
        "Throughput, the best first. A gain that no device can give is an alarm, not a win.",
        _ratio(),
        "{{scenario}} {{workload}}",
        worse=0,
        limit=NOISE,
    )


def _cases() -> table.Panel:
    kept = f"(abs({_ratio()}) >= {NOISE})"
    chosen = series(IOPS, **HERE)
    before = f"max by ({KEYS}) ({_side(chosen, 'before')}) and on ({KEYS}) {kept}"
    after = f"max by ({KEYS}) ({_side(chosen, 'after')}) and on ({KEYS}) {kept}"
    return rows(
        "Cases that changed",
        "Median IOPS on both sides and the change; links to the case.",
        ("scenario", "workload", "direction"),
        (
            Column(title="before", expression=before, unit="iops"),
            Column(title="after", expression=after, unit="iops"),
            Column(
                title="change",
                expression=f"{_ratio()} and on ({KEYS}) {kept}",
                unit="percentunit",
                change=True,
            ),
        ),
        sort="change",
        descending=False,
        missing="no change beyond noise",
    )


def _latency() -> bargauge.Panel:
    p99 = series(LATENCY_PERCENTILE, percentile="99", **HERE)
    ratio = _ratio(better_is_more=False, selector=p99)
    return changes_bars(
        "Latency (p99), largest changes",
        "Better is less latency.",
        ratio,
        "{{scenario}} {{workload}}",
        worse=5,
        better=5,
        limit=NOISE,
    )


def _cpu() -> bargauge.Panel:
    total = series(HOST_CPU, component="qemu", **HERE)
    by = "node, storage, scenario, workload"
    ratio = _ratio(better_is_more=False, selector=total, by=by)
    return changes_bars(
        "Host CPU of QEMU, largest changes",
        "Better is less CPU; idle guests are among them.",
        ratio,
        "{{scenario}} {{workload}}",
        worse=5,
        better=5,
        limit=NOISE,
    )


def _trend() -> timeseries.Panel:
    now = series(IOPS, **HERE)
    expression = f"exp(avg by (node, storage) (ln({now} / ({now} @ $before > 0))))"
    return lines(
        "Throughput against the environment before",
        "Geometric mean over each storage's cases; 100 % is the level at the end of *Before*.",
        [query(expression, legend="{{node}}/{{storage}}")],
        unit="percentunit",
        linked=False,
        right=False,
    )
