"""Tables of the latest results of many cases, with the columns that a dashboard chooses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from grafana_foundation_sdk.builders import table

from builder import promql as q
from builder.tables import RESULT_LABELS, Column, age_column, rows
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f


def results(
    title: str, description: str, where: Mapping[str, str], *titles: str, named: bool = False
) -> table.Panel:
    """Return one row per result, with some columns of `_columns`; `named`: with the workload."""
    columns = _columns(where, named=named)
    return rows(
        title,
        f"{description} Click a configuration to see its case.",
        RESULT_LABELS if named else RESULT_LABELS[1:],
        [columns[one] for one in ("IOPS", *titles)],
        sort="IOPS",
    )


def _columns(where: Mapping[str, str], *, named: bool) -> dict[str, Column]:
    of, of_case = (partial(q.max_by, keys, **where) for keys in (q.RESULT_KEYS, q.CASE_KEYS))
    percentile = partial(of, f.CLAT_PERCENTILE.metric)
    rate = q.series(f.IOPS.metric, **where)
    described = q.max_by(f"job, instance, {q.RESULT_KEYS}", f.IOPS.metric, **where)
    mean = f"max by ({q.RESULT_KEYS}) (avg_over_time({rate}[$__range]))"
    iops, cost, longest = of(f.IOPS.metric), q.cpu_per_io(**where), of(f.CLAT_MAX.metric)
    columns = (
        Column("IOPS", q.with_descriptions(described, workload=named), unit="iops", trend=iops),
        Column("to mean", f"{iops} / ({mean} > 0) - 1", change=True),
        Column("bandwidth", of(f.BANDWIDTH.metric), unit="Bps", decimals=1),
        Column("p50", percentile(percentile="50"), unit="s"),
        Column("p99", percentile(percentile="99"), unit="s", trend=percentile(percentile="99")),
        Column("p99.9", percentile(percentile="99.9"), unit="s"),
        Column("max", longest, unit="s", trend=longest),
        Column("sync p99", of_case(f.SYNC_PERCENTILE.metric, percentile="99"), unit="s"),
        Column("CPU per I/O", cost, unit="µs", decimals=1, trend=cost),
        Column("host, cores", of_case(f.HOST_CPU.metric, component="total"), decimals=2),
        Column("QEMU, cores", of_case(f.HOST_CPU.metric, component="qemu"), decimals=2),
        age_column(f"time() - {of_case(m.RUN_TIMESTAMP)}"),
    )
    return {column.title: column for column in columns}


def outcomes(where: Mapping[str, str]) -> table.Panel:
    """Return the numbers of runs by outcome."""
    runs = Column("runs", f"sum by (outcome) ({q.series(m.RUNS, **where)})")
    text = "Since the first run. Only `ok` has no reason."
    return rows("Runs by outcome", text, ("outcome",), (runs,), sort="runs")
