"""Configuration matrix: ranking of configurations for one workload and storage."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table
from grafana_foundation_sdk.models import common as models

from builder import looks
from builder import promql as q
from builder import stat_panels as p
from builder.parts import base, instants, node_variable, storage_variable, workload_variable
from builder.tables import CASE_LABELS, Column, age_column, as_text, grid, noise_column, rows
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.disk import Cache

CASE: Final = {"node": "$node", "storage": "$storage", "workload": "$workload"}
DISTURBED: Final = {"rank": "fastest|equal|unknown", "excluded": "disturbed"}
STANDINGS: Final[dict[str, tuple[int, str, str, dict[str, str]]]] = {
    "fastest": (1001, "fastest", "semi-dark-blue", {"rank": "fastest", "excluded": ""}),
    "same": (1002, "within noise", "blue", {"rank": "equal", "excluded": ""}),
    "unknown": (1003, "too few runs", looks.NEUTRAL, {"rank": "unknown", "excluded": ""}),
    "disturbed": (1010, "not ranked", looks.NEUTRAL, DISTURBED),
    "not_durable": (1004, "not durable", looks.NEUTRAL, {"excluded": "not_durable"}),
    "unflushed": (1011, "in host memory", looks.NEUTRAL, {"excluded": "unflushed"}),
    "warm": (1005, "warm cache", looks.NEUTRAL, {"excluded": "warm"}),
    "host": (1006, "no VM", looks.NEUTRAL, {"excluded": "host|lxc"}),
    "noisy": (1009, "noisy", looks.POSSIBLY_WORSE, {"excluded": "noisy"}),
    "only": (1007, "only result", looks.NEUTRAL, {"rank": "fastest", "excluded": ""}),
    "first": (1008, "fastest so far", looks.NEUTRAL, {"rank": "fastest", "excluded": ""}),
}
"""Standing -> (number in a cell, text, color, labels of the metric)."""
INTRO: Final = (
    "**Which configuration is fastest for this workload, and is the difference significant?** "
    "Each cell is one configuration, the same in all three tables: the disk of its row with the "
    "cache mode of its column. *Within noise* means no significant difference from the fastest. "
    "A ranking needs three runs per configuration. *Not durable* (ignores the guest's flushes), "
    "*in host memory* (writes of writeback without flushes), *warm cache* (reads may come from the "
    "host's memory), *noisy* and *no VM* are excluded. "
    "*Not ranked*: measured with snapshots, during an operation or a fault, or in several VMs. "
    "*Emulated* results (no KVM) show differences, not the hardware's speed."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    about = "Bus, format and options by cache mode: values, gap to the fastest, change."
    here = node_variable(multi=False), storage_variable(multi=False), workload_variable()
    marked = {"workload": "$workload"}
    return p.stacked(
        base("Configuration matrix", "pvebench-matrix", about, *here, since="7d", **marked),
        p.status(),
        (4, _answer()),
        (p.fit(4), _values(), _gaps(), _change()),
        (p.fit(8), _details()),
        p.intro(INTRO),
    )


def _standing(name: str) -> str:
    ranks = q.series(m.SCENARIO_RANK_INFO, **CASE, **STANDINGS[name][3])
    # The fastest of one is not a ranking; nor is the fastest while others have too few runs.
    several = f"(count({q.series(m.SCENARIO_RANK_INFO, **CASE, excluded='')}) > 1)"
    unknown = q.series(m.SCENARIO_RANK_INFO, **CASE, **STANDINGS["unknown"][3])
    known = {
        "fastest": f"({ranks} and on () {several} unless on () {unknown})",
        "first": f"({ranks} and on () {unknown})",
        "only": f"({ranks} unless on () {several})",
    }
    return known.get(name, ranks)


def _answer() -> p.Panel:
    fastest, same, only, first = (
        q.with_descriptions(_standing(name)) for name in ("fastest", "same", "only", "first")
    )
    emulated = f"count by (node) ({q.series(m.ENVIRONMENT_INFO, node='$node', accel='tcg')})"
    ranked = q.series(m.SCENARIO_RANK_INFO, **CASE, rank="fastest", excluded="")
    sentences = (
        ("{{description}}: {{configuration}} is fastest", fastest),
        ("{{count}} other configurations within noise", f'count_values("count", count({same}))'),
        ("{{description}}: {{configuration}} is the only result", only),
        ("{{description}}: {{configuration}} is the fastest so far", first),
        ("{{node}}: emulated, without KVM", emulated),
        ("needs three runs of each configuration", q.if_empty(ranked)),
    )
    text = "Fastest durable configuration that reads from the disk."
    panel = p.names("Best configuration", text, "", "")
    return panel.targets([*instants(sentences)]).text(p.font(24))


def _cells(expression: str) -> str:
    """Return one value per cell, with the labels of its row and column."""
    cells = q.with_descriptions(expression, workload=False, scenario="disk")
    return f"max by (disk, cache) ({cells})"


def _values() -> p.Panel:
    return grid(
        "IOPS",
        "Latest successful runs, reads and writes together. Darker: larger value in this table.",
        _cells(f"sum by ({q.SAME_CASE}, cache) ({q.series(f.IOPS.metric, **CASE)})"),
        unit="iops",
    )


def _coded() -> str:
    """Return the standing of each case as a number, or the gap of slower ones in percent."""
    slower = q.series(m.SCENARIO_RANK_INFO, **CASE, rank="slower", excluded="|disturbed")
    parts = [f"{code} * {_standing(name)}" for name, (code, *_) in STANDINGS.items()]
    parts.append(f"round(100 * {q.series(m.SCENARIO_GAP, **CASE)}) and on ({q.SAME_CASE}) {slower}")
    return " or ".join(f"max by ({q.SAME_CASE}, cache) ({part})" for part in parts)


def _gaps() -> p.Panel:
    texts = looks.values({str(code): (text, "") for code, text, *_ in STANDINGS.values()})
    colors = sorted((code, color) for code, _, color, _ in STANDINGS.values())
    panel = grid(
        "Gap to the fastest",
        "Significant difference from the fastest one. Gray: excluded, or too few runs.",
        _cells(f"({_coded()})"),
        unit="none",
    ).thresholds(looks.signed_steps(*colors, neutral=True))
    return _signed(panel.mappings([*texts, *looks.signed_mappings("not measured")]))


def _change() -> p.Panel:
    change = f"max by ({q.SAME_CASE}, cache) ({q.series(m.CHANGE, **CASE, metric='throughput')})"
    text, none = "Throughput change of each case, in percent.", "no verdict yet"
    cells = _cells(f"round(100 * {change})")
    panel = grid("Change from baseline", text, cells, unit="none", missing=none)
    return _signed(panel.mappings(looks.signed_mappings("–")).thresholds(looks.signed_steps()))


def _signed(panel: table.Panel) -> p.Panel:
    panel = panel.color_scheme(looks.by_steps()).with_transformation(as_text(*Cache))
    return panel.display_mode(models.TableCellDisplayMode.COLOR_TEXT)


def _details() -> p.Panel:
    rate = q.series(f.IOPS.metric, **CASE)
    p99 = q.max_by(q.CASE_KEYS, f.CLAT_PERCENTILE.metric, percentile="99", **CASE)
    iops = q.with_descriptions(f"sum by ({q.SAME_CASE}) ({rate})", workload=False)
    texts = {str(code): (text, color) for code, text, color, _ in STANDINGS.values()}
    gap = q.series(m.SCENARIO_GAP, **CASE)
    coded = _coded().replace(f"round(100 * {gap})", f"0 * {gap}")
    return rows(
        "All configurations",
        "Latest successful run of each: standing, gap to the fastest, noise, p99 of completion "
        "latency, host CPU time per I/O, age. Click a configuration to see its case.",
        CASE_LABELS[1:],
        (
            Column("IOPS", iops, unit="iops", trend=f"sum by ({q.CASE_KEYS}) ({rate})"),
            Column("standing", f"max by ({q.CASE_KEYS}) ({coded})", wide=160),
            Column("gap", q.max_by(q.CASE_KEYS, m.SCENARIO_GAP, **CASE), change=True, neutral=True),
            noise_column(q.max_by(q.CASE_KEYS, m.SCENARIO_GAP_NOISE, **CASE)),
            Column("p99", p99, unit="s"),
            Column("CPU per I/O", q.cpu_per_io(**CASE), unit="µs", decimals=1),
            age_column(f"time() - {q.max_by(q.CASE_KEYS, m.RUN_TIMESTAMP, **CASE)}"),
        ),
        sort="IOPS",
        styles={"standing": looks.rated(texts | {"0": ("slower", "orange")})},
    )
