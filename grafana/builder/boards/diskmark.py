"""DiskMark view: the rows of CrystalDiskMark, of guests with Linux and with Windows."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table
from grafana_foundation_sdk.models import common as models

from builder import stat_panels as p
from builder.looks import plain, prop
from builder.parts import base, described, label_variable, node_variable, table_query
from builder.promql import filter_workloads, label, series, with_descriptions
from builder.tables import by_rows, width
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.figure import Metric

WINDOWS: Final = "[.]os-windows"
"""End of the slug of a scenario with Windows; the rest is that of the same one with Linux."""
HERE: Final = {"node": "$node", "scenario": f"$scenario({WINDOWS})?"}
ROWS: Final = {
    "SEQ1M Q8T1": ("read|write", "1048576", "8", "1"),
    "SEQ128K Q32T1": ("read|write", "131072", "32", "1"),
    "RND4K Q32T16": ("randread|randwrite", "4096", "32", "16"),
    "RND4K Q1T1": ("randread|randwrite", "4096", "1", "1"),
    "SEQ1M Q1T1": ("read|write", "1048576", "1", "1"),
    "RND4K Q32T1": ("randread|randwrite", "4096", "32", "1"),
    "RND4K Q8T8": ("randread|randwrite", "4096", "8", "8"),
}
"""Row of CrystalDiskMark, NVMe profile first -> rw, block size in bytes, depth, jobs of fio."""
COLUMNS: Final = ("read", "write", "Windows read", "Windows write")
INTRO: Final = (
    "**What are the results in CrystalDiskMark's format?** Its rows, measured by fio with the same "
    "block sizes, depths and threads. The tools differ, so compare only results of pvebench. For "
    "all rows, run `pvebench packs --copy crystaldiskmark`."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    bars = "As in CrystalDiskMark: best pass of the day. Bars are relative to the best value."
    bandwidth = _table("MB/s", bars, f.BANDWIDTH.metric, "none", 2)
    iops = _table("IOPS", "Operations per second.", f.IOPS.metric, "iops", 1)
    latency = _table("Mean latency", "Lower is better.", f.CLAT_MEAN.metric, "s", 2)
    scenarios = label_variable("scenario", "Configuration", among='node=~"$node"')
    here = node_variable(multi=False), scenarios.regex(f"/^(.*?)({WINDOWS})?$/")
    about = "The rows of CrystalDiskMark, for a screenshot."
    end = f"max({series(m.RUN_TIMESTAMP, **HERE)}) * 1000"
    measured = p.number("Measured", "End of the latest run.", end, unit="dateTimeAsIso")
    return p.stacked(
        base("DiskMark view", "pvebench-diskmark", about, *here, node=""),
        p.status(),
        (3, (14, _title()), (10, measured)),
        (9, bandwidth),
        (9, iops, latency),
        p.intro(INTRO),
    )


def _rows(metric: Metric) -> str:
    """Return all rows in one query, named by the label `test`; numbers keep their order."""
    tests = []
    for index, (name, definition) in enumerate(ROWS.items(), start=1):
        options = zip(("rw", "block_size_bytes", "io_depth", "jobs"), definition, strict=True)
        latest = series(metric, **HERE)
        best = f"max_over_time({latest}[1d]) / 1e6" if metric is f.BANDWIDTH.metric else latest
        results = filter_workloads(best, **dict(options))
        tests.append(label("test", f"{index}  {name}", results))
    both = f'label_join({" or ".join(tests)}, "way", " ", "scenario", "direction")'
    named = f'label_replace({both}, "direction", "Windows $1", "way", ".*{WINDOWS} (.*)")'
    return f"max by (test, direction) ({named})"


def _table(title: str, text: str, metric: Metric, unit: str, decimals: int) -> p.Panel:
    missing = "not measured; add workloads of the pack crystaldiskmark to your pack"
    rows = [*by_rows("test", "direction", "Test", COLUMNS, read="Read", write="Write")]
    query, look = table_query(_rows(metric)), [prop("custom.displayMode", "auto"), width(150)]
    return (
        described(table.Panel(), (title, text), query, unit=unit, missing=missing)
        .decimals(decimals)
        .min(0)
        .color_scheme(plain("blue"))
        .display_mode(models.TableCellDisplayMode.GRADIENT_GAUGE)
        .transformations(rows)
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
