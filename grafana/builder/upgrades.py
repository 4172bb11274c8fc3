"""Before/after upgrade: did the upgrade cost me anything?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, table, timeseries

from builder.bars import changes_bars
from builder.looks import BETTER, SAME, WORSE, prop, steps, values
from builder.panels import FEW_POINTS, intro, lines, number, signed, verdict
from builder.parts import (
    base,
    changes,
    custom_variable,
    environment_changes,
    node_variable,
    place,
    query,
    query_variable,
    storage_variable,
)
from builder.promql import in_words, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    ENVIRONMENT_END,
    ENVIRONMENT_START,
    HOST_CPU,
    IOPS,
    LATENCY_PERCENTILE,
    RUN_TIMESTAMP,
)

HERE: Final = {"node": "$node", "storage": "$storage"}
CASE: Final = "job, instance, node, storage, scenario, workload"
KEYS: Final = f"{CASE}, direction"
NOISE: Final = "$noise"
NOTHING: Final = "now"
TWO_MOMENTS: Final = " and on () (vector($before) != $after)"
"""Nothing is said to be the same because it was compared with itself."""
NO_SIDES: Final = "no upgrade to compare yet"
NOTHING_TOLD: Final = "no change beyond noise can be told"
"""Of bars that may be empty as nothing was compared: that nothing changed would be a claim."""
INTRO: Final = (
    "**Did the upgrade cost me anything?** The moment *Before* is compared with *After* (the end "
    "of the present environment: now) on every node chosen, each by the median of a window, so "
    "that one odd run does not decide. *Certain* is a change larger than what single runs vary "
    "by in both windows. **Plus is better**, for latency and CPU too. Until there are two "
    "environments there is nothing to compare."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base(
            "Before/after upgrade",
            "pvebench-upgrades",
            "Compares two moments: what changed, what got slower or faster, how certain it is.",
            since="90d",
        )
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(_moment("before", "Before: end of", newest=False))
        .with_variable(_moment("after", "After: end of", newest=True))
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
        .with_panel(_count("Slower", f"< bool -{NOISE}", WORSE).grid_pos(place(0, 0, 4, 4)))
        .with_panel(_count("Faster", f"> bool {NOISE}", BETTER).grid_pos(place(4, 0, 4, 4)))
        .with_panel(_all().grid_pos(place(8, 0, 4, 4)))
        .with_panel(_mean().grid_pos(place(12, 0, 12, 4)))
        .with_panel(_cases().grid_pos(place(0, 4, 24, 12)))
        .with_panel(_environments().grid_pos(place(0, 16, 14, 9)))
        .with_panel(_trend().grid_pos(place(14, 16, 10, 9)))
        .with_panel(_worst().grid_pos(place(0, 25, 12, 10)))
        .with_panel(_best().grid_pos(place(12, 25, 12, 10)))
        .with_panel(_latency().grid_pos(place(0, 35, 12, 10)))
        .with_panel(_cpu().grid_pos(place(12, 35, 12, 10)))
        .with_panel(intro(INTRO, y=45))
    )


def _moment(name: str, label: str, *, newest: bool) -> dashboard.QueryVariable:
    """Return a variable whose values are times; there is always one, else queries have none."""
    ends = series(ENVIRONMENT_END, node="$node")
    latest = f"max by (node) ({ends})"
    if not newest:
        # With a single environment it is compared with itself, which is at least not an error.
        only = f"({ends} and on (node) count by (node) ({ends}) == 1)"
        ends = f"(({ends} < on (node) group_left () {latest}) or {only})"
    named = f'label_join({ends}, "shown", ": ", "node", "environment")'
    none = f'label_replace(vector(time()), "shown", "{NOTHING}", "", "")'
    return (
        query_variable(
            name, label, f"query_result(sort_desc(max by (shown) ({named} or on () {none})))"
        )
        .regex('/shown="(?<text>[^"]+)"\\} (?<value>[0-9.e+]+) /')
        .multi(False)
        .include_all(False)
    )


def _looks(selector: str, moment: str) -> str:
    """Return a window's values: one an hour, as they are held for that long and samples cost."""
    return f"({selector})[$window:1h] @ ${moment}"


def _side(selector: str, moment: str) -> str:
    return f"quantile_over_time(0.5, {_looks(selector, moment)})"


def _ratio(*, better_is_more: bool = True, selector: str = "", by: str = KEYS) -> str:
    chosen = selector or series(IOPS, **HERE)
    before = f"max by ({by}) ({_side(chosen, 'before')} > 0)"
    after = f"max by ({by}) ({_side(chosen, 'after')} > 0)"
    return f"{after} / {before} - 1" if better_is_more else f"{before} / {after} - 1"


def _single_runs() -> str:
    """Return what a difference of the two medians may be by chance: two standard errors, 95 %."""

    def error(moment: str) -> str:
        # Of a single run nobody knows how far chance goes: not "0".
        runs = f"(changes({_looks(series(RUN_TIMESTAMP, **HERE), moment)}) > 0) + 1"
        # Of logarithms, so that it is relative without another look at the window for the mean.
        spread = f"stdvar_over_time({_looks(f'ln({series(IOPS, **HERE)} > 0)', moment)})"
        return f"{spread} / on ({CASE}) group_left () max by ({CASE}) ({runs})"

    # A median is less certain than a mean by a quarter; few runs ask for more than two errors.
    both = f"max by ({KEYS}) ({error('before')}) + max by ({KEYS}) ({error('after')})"
    return f"(2.78 * 1.25 * sqrt({both}))"


def _count(title: str, condition: str, colour: str) -> stat.Panel:
    panel = number(
        title,
        f"Cases whose throughput is {title.lower()} by more than the noise limit.",
        f"sum({_ratio()} {condition}){TWO_MOMENTS}",
        missing=NO_SIDES,
    )
    return verdict(panel, steps(SAME, (1, colour)))


def _all() -> stat.Panel:
    return number(
        "Compared",
        "Cases with results on both sides.",
        f"count({_ratio()}){TWO_MOMENTS}",
        missing=NO_SIDES,
    )


def _mean() -> stat.Panel:
    return signed(
        "Throughput after against before, %",
        "Geometric mean over the compared cases of each storage; plus is better.",
        f"((exp(avg by (node, storage) (ln(1 + {_ratio()}))) - 1){TWO_MOMENTS})",
        legend="{{storage}}, {{node}}",
        missing=NO_SIDES,
    )


def _environments() -> table.Panel:
    keys = "node, environment, pve_version, kernel_version, qemu_version"
    begin = f"max by ({keys}) ({series(ENVIRONMENT_START, node='$node')})"
    end = f"max by ({keys}) ({series(ENVIRONMENT_END, node='$node')})"
    return rows(
        "Environments",
        "What ran on each node, and from when to when it was measured.",
        ("node", "pve_version", "kernel_version", "qemu_version"),
        (
            Column(title="from", expression=f"{begin} * 1000", unit="dateTimeAsIso", wide=160),
            Column(title="to", expression=f"{end} * 1000", unit="dateTimeAsIso", wide=160),
            Column(
                title="measured for", expression=f"{end} - {begin}", unit="dtdurations", decimals=0
            ),
        ),
        sort="from",
        linked=False,
        hidden=("environment",),
        missing="none yet: the first comes with the first run",
    )


def _worst() -> bargauge.Panel:
    return changes_bars(
        "Largest losses",
        "Throughput, the worst five; all are in the table.",
        _ratio(),
        "{{configuration}}, {{description}} ({{storage}}, {{node}})",
        better=0,
        limit=NOISE,
        missing=NOTHING_TOLD,
    )


def _best() -> bargauge.Panel:
    return changes_bars(
        "Largest gains",
        "Throughput, the best five. A gain that no device can give is an alarm, not a win.",
        _ratio(),
        "{{configuration}}, {{description}} ({{storage}}, {{node}})",
        worse=0,
        limit=NOISE,
        missing=NOTHING_TOLD,
    )


def _cases() -> table.Panel:
    kept = f"(abs({_ratio()}) >= {NOISE})"
    chosen = series(IOPS, **HERE)
    change = in_words(f"({_ratio()} and on ({KEYS}) {kept})")
    before = f"max by ({KEYS}) ({_side(chosen, 'before')}) and on ({KEYS}) {kept}"
    after = f"max by ({KEYS}) ({_side(chosen, 'after')}) and on ({KEYS}) {kept}"
    certain = f"{kept} > bool {_single_runs()}"
    return rows(
        "Cases that changed",
        "Median IOPS on both sides, the change, what single runs may make of it, and whether "
        "the change is larger; empty where a side has one run. Few runs in a window leave much "
        "to chance: choose a longer one. "
        "A click on the setting leads to the case.",
        ("description", "configuration", "node", "storage", "direction", "scenario", "workload"),
        (
            Column(title="before", expression=before, unit="iops"),
            Column(title="after", expression=after, unit="iops"),
            Column(title="change", expression=change, change=True),
            Column(
                title="by chance ±",
                expression=f"{_single_runs()} and on ({KEYS}) {kept}",
                unit="percentunit",
                decimals=1,
            ),
            Column(title="certain", expression=certain, wide=150),
        ),
        sort="change",
        descending=False,
        there=kept,
        missing="no change above the limit can be told",
    ).override_by_name(
        "certain",
        [prop("mappings", values({"1": ("certain", SAME), "0": ("may be chance", SAME)}))],
    )


def _latency() -> bargauge.Panel:
    p99 = series(LATENCY_PERCENTILE, percentile="99", **HERE)
    ratio = _ratio(better_is_more=False, selector=p99)
    return changes_bars(
        "Latency (p99), largest changes",
        "Better is less latency.",
        ratio,
        "{{configuration}}, {{description}} ({{storage}}, {{node}})",
        limit=NOISE,
        missing=NOTHING_TOLD,
    )


def _cpu() -> bargauge.Panel:
    total = series(HOST_CPU, component="qemu", **HERE)
    by = CASE
    ratio = _ratio(better_is_more=False, selector=total, by=by)
    return changes_bars(
        "Host CPU of QEMU, largest changes",
        "Better is less CPU; idle guests are among them.",
        ratio,
        "{{configuration}}, {{description}} ({{storage}}, {{node}})",
        limit=NOISE,
        missing=NOTHING_TOLD,
    )


def _trend() -> timeseries.Panel:
    now = series(IOPS, **HERE)
    expression = f"exp(avg by (node, storage) (ln({now} / ({now} @ $before > 0)))){TWO_MOMENTS}"
    return lines(
        "Throughput against the environment before",
        "Geometric mean over each storage's cases; 100 % is the level at the end of *Before*.",
        [query(expression, legend="{{storage}}, {{node}}")],
        unit="percentunit",
        linked=False,
        right=False,
        points=FEW_POINTS,
        missing=NO_SIDES,
    )
