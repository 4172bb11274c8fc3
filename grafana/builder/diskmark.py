"""DiskMark view: the four rows of CrystalDiskMark."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table
from grafana_foundation_sdk.models import common as models

from builder import panels as p
from builder.looks import plain, prop
from builder.parts import base, described, label_variable, node_variable, table_query
from builder.promql import filter_workloads, label, series, with_descriptions
from builder.tables import by_rows, width
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.model.figure import Metric

HERE: Final = {"node": "$node", "scenario": "$scenario"}
ROWS: Final = {
    "SEQ1M Q8T1": ("read|write", "1048576", "8", "1"),
    "SEQ128K Q32T1": ("read|write", "131072", "32", "1"),
    "RND4K Q32T16": ("randread|randwrite", "4096", "32", "16"),
    "RND4K Q1T1": ("randread|randwrite", "4096", "1", "1"),
}
"""Row of CrystalDiskMark's NVMe profile -> rw, block size in bytes, depth, jobs of fio."""
INTRO: Final = (
    "**What are the results in CrystalDiskMark's format?** The four rows of its NVMe profile, "
    "measured by fio with the same block sizes, depths and threads, in SI megabytes. The tools "
    "differ, so compare only with other results of pvebench. To copy the workloads, run "
    "`pvebench packs --copy demo`."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    bars = "As in CrystalDiskMark: best pass of the day. Bars are relative to the best value."
    bandwidth = _table("MB/s", bars, f.BANDWIDTH.metric, "Bps", 2)
    iops = _table("IOPS", "Operations per second.", f.IOPS.metric, "iops", 1)
    latency = _table("Mean latency", "Lower is better.", f.CLAT_MEAN.metric, "s", 2)
    scenarios = label_variable("scenario", "Configuration", among='node=~"$node"')
    here = node_variable(multi=False), scenarios
    about = "The rows of CrystalDiskMark, for a screenshot."
    return p.stacked(
        base("DiskMark view", "pvebench-diskmark", about, *here, node=""),
        p.status(),
        (3, (14, _title()), (10, _measured())),
        (8, bandwidth),
        (8, iops, latency),
        p.intro(INTRO),
    )


def _rows(metric: Metric) -> str:
    """Return all rows in one query, named by the label `test`; numbers keep their order."""
    tests = []
    for index, (name, definition) in enumerate(ROWS.items(), start=1):
        options = zip(("rw", "block_size_bytes", "io_depth", "jobs"), definition, strict=True)
        latest = series(metric, **HERE)
        best = f"max_over_time({latest}[1d])" if metric is f.BANDWIDTH.metric else latest
        results = filter_workloads(best, **dict(options))
        tests.append(label("test", f"{index}  {name}", f"max by (direction) ({results})"))
    return " or ".join(tests)


def _table(title: str, text: str, metric: Metric, unit: str, decimals: int) -> p.Panel:
    missing = "not measured; add these workloads of the pack demo to your pack"
    query, look = table_query(_rows(metric)), [prop("custom.displayMode", "auto"), width(150)]
    return (
        described(table.Panel(), (title, text), query, unit=unit, missing=missing)
        .decimals(decimals)
        .min(0)
        .color_scheme(plain("blue"))
        .align(models.FieldTextAlignment.AUTO)
        .cell_height(models.TableCellHeight.LG)
        .display_mode(models.TableCellDisplayMode.GRADIENT_GAUGE)
        .transformations([*by_rows("test", "direction", "Test", read="Read", write="Write")])
        .override_by_name("Test", look)
    )


def _title() -> p.Panel:
    environment = series(m.ENVIRONMENT_INFO, node="$node")
    by = "job, instance, node, storage, scenario"
    named = with_descriptions(f"count by ({by}) ({series(f.IOPS.metric, **HERE)})", workload=False)
    return p.names(
        "Configuration",
        "Configuration, storage, node and environment.",
        f"({named}) * on () group_left (environment) topk(1, max by (environment) ({environment}))",
        "{{configuration}} on {{storage}}, {{node}}  ·  {{environment}}",
        missing="none before the first run",
    )


def _measured() -> p.Panel:
    end = f"max({series(m.RUN_TIMESTAMP, **HERE)}) * 1000"
    return p.number("Measured", "End of the latest run.", end, unit="dateTimeAsIso")
