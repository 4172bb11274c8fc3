"""Overview: level of each storage over time, changes, freshness of the results."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import common as models

from builder import promql as q
from builder import stat_panels as p
from builder.changes import change_log, open_changes, worst_change
from builder.charts import levels
from builder.looks import BETTER, compare_link, prop, rated
from builder.parts import base, node_variable, storage_variable
from builder.tables import RESULT_LABELS, Column, age_column, rows, width
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.figure import Metric

HERE: Final = {"node": "$node", "storage": "$storage"}
BY: Final = "node, storage"
SMALL: Final = {"block_size_bytes": "4096"}
INTRO: Final = (
    "**What changed, how fast is my storage, and is the data current?** pvebench cycles a "
    "benchmark disk through configurations and measures each one in a guest. Each value is held "
    "until the case's next successful run. A *change* is one event that affects any number of "
    "cases; it is listed once it is significant and confirmed by further runs."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    about = "What changed, how fast is my storage?"
    here, further = (
        (node_variable(), storage_variable()),
        ((4, p.failing(**HERE)), (6, _software())),
    )
    return p.stacked(
        base("Overview", "pvebench-overview", about, *here, since="90d"),
        (3, p.headline("Verdict").text(p.font(16))),
        (9, _levels()),
        (p.fit(5), _storages()),
        (p.fit(1), open_changes("$node")),
        (4, (5, p.case_counts(**HERE)), (5, p.newest(**HERE)), (4, p.stale(**HERE)), *further),
        (p.fit(9), _best()),
        (p.fit(5), (16, change_log("$node")), (8, _alerts())),
        p.intro(INTRO),
    )


def _levels() -> p.Panel:
    baseline, latest = (q.series(one, **HERE) for one in (m.BASELINE_IOPS, f.IOPS.metric))
    return levels(
        "Throughput relative to the baseline",
        "Geometric mean over the cases of each storage; 100% is the current baseline, for a case "
        "without a baseline its latest result. Purple: software updates. Orange: open changes.",
        HERE,
        f"({baseline} @ end() or {latest} @ end())",
    )


def _software() -> p.Panel:
    environments = f"max by (node, environment) ({q.series(m.ENVIRONMENT_INFO, node='$node')})"
    text, none = "Environment of the latest results per node.", "none before the first run"
    name = "{{node}}: {{environment}}"
    return p.names("Tested software", text, environments, name, missing=none).text(p.font(13))


def _candidates(metric: Metric, **more: str) -> str:
    """Return the results of configurations that are durable and read from the disk."""
    ranked = f"{q.series(m.SCENARIO_RANK_INFO, excluded='', **HERE)} @ end()"
    return f"{q.series(metric, **HERE, **more)} and on ({q.SAME_CASE}) {ranked}"


def _storages() -> p.Panel:
    def best(metric: Metric, direction: str, rw: str, **more: str) -> str:
        ranked = f"({_candidates(metric, direction=direction)})"
        return f"max by ({BY}) ({q.filter_workloads(ranked, rw=rw, **more)})"

    slower = q.recorded("node_storage:pvebench_change_state:count_regressed", **HERE)
    sync = f"min by ({BY}) ({_candidates(f.SYNC_PERCENTILE.metric, percentile='99')})"
    newest_run = f"max by ({BY}) ({q.series(m.RUN_TIMESTAMP, **HERE)})"
    fastest = {
        "4k read": best(f.IOPS.metric, "read", "randread", **SMALL),
        "4k write": best(f.IOPS.metric, "write", "randwrite", **SMALL),
        "seq. read": best(f.BANDWIDTH.metric, "read", "read"),
        "seq. write": best(f.BANDWIDTH.metric, "write", "write"),
    }
    effect = worst_change("$node", "$storage")
    variables = "&".join(f"var-{name}=${{__data.fields.{name}}}" for name in ("node", "storage"))
    url = f"/d/pvebench-matrix?${{datasource:queryparam}}&{variables}"
    to_matrix = dashboard.DashboardLink("Configuration matrix").url(url)
    return rows(
        "Storage summary",
        "Fastest durable configuration per storage: 4k random and large sequential I/O, p99 of "
        "sync latency, each with its trend; the worst open change, age. Click a storage to see "
        "its matrix, or *compare* to compare it with another one.",
        ("storage", "node"),
        (
            Column("another", f"0 * {newest_run}"),
            Column("change", effect, wide=70, change=True, coded=True),
            Column("slower", f"max by ({BY}) ({slower})", wide=66),
            *(
                Column(name, one, wide=88, unit="iops" if "4k" in name else "Bps", trend=one)
                for name, one in fastest.items()
            ),
            Column("sync p99", sync, unit="s", wide=80, trend=sync),
            age_column(f"time() - {newest_run}"),
        ),
        styles={
            "storage": [prop("links", [to_matrix])],
            "another": [
                prop("links", [compare_link("__data.fields", "storage")]),
                *rated({"0": ("compare", BETTER)}),
                prop("displayName", "compare"),
                width(78),
            ],
        },
    )


def _best() -> p.Panel:
    def of(metric: Metric, blocks: str) -> str:
        best = f"(topk by (workload, direction) (1, {_candidates(metric)}))"
        return q.with_descriptions(f"({q.filter_workloads(best, block_size_bytes=blocks)})")

    return rows(
        "Fastest configuration per workload",
        "Fastest durable configuration of the selected nodes and storages: operations for blocks "
        "below 64 KiB, otherwise bytes. Click a configuration to see its case.",
        RESULT_LABELS,
        (
            Column("IOPS", of(f.IOPS.metric, q.SMALL_BLOCKS), unit="iops"),
            Column("bandwidth", of(f.BANDWIDTH.metric, q.LARGE_BLOCKS), unit="Bps"),
        ),
        sort="workload description",
        descending=False,
        hidden=("bus", "cache", "format"),
        present=_candidates(f.IOPS.metric),
    )


def _alerts() -> p.Panel:
    by = "alertname, severity, node, storage"
    firing = f'count by ({by}) (ALERTS{{alertname=~"PVEBench.*",alertstate="firing"}})'
    return rows(
        "Firing alerts",
        "Alerts that Prometheus fires now. PVEBenchWatchdog always fires: it shows that alerting "
        "works.",
        ("alertname", "severity", "node", "storage"),
        (Column("firing", firing),),
        missing="no alerts, not even PVEBenchWatchdog: Prometheus has not loaded the rules",
    ).cell_height(models.TableCellHeight.SM)
