"""Every number of a run, in one table: unit, source, metric, column, display name, limit.

Tools and the runner make samples with `Figure.sample`. Metrics, tables, `reparse`, limits of valid
values and docs read this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from pvebench.model.figure import CASE, RESULT, Exported, Figure, Metric, Source, VerdictFigure
from pvebench.model.run import Sample, Unit
from pvebench.model.workload import Direction

FIGURES: Final[dict[str, Figure]] = {}
"""Name -> figure."""


def impossible_number(names: Iterable[str], values: Iterable[float]) -> str:
    """Return the first number that no machine can have; empty: none. Unknown ones may be any."""
    numbers = zip(names, values, strict=True)
    wrong = (n for n in numbers if n[0] in FIGURES and not FIGURES[n[0]].allows(n[1]))
    return next((f"{name} of {value:.3g} is impossible" for name, value in wrong), "")


def of_source(source: Source) -> frozenset[str]:
    """Return the names of the figures of a source."""
    return frozenset(name for name, figure in FIGURES.items() if figure.source is source)


def _figure(
    source: Source, name: str, unit: Unit, *, title: str = "", limit: float = 0.0
) -> Figure:
    figure = Figure(name=name, unit=unit, source=source, title=title, limit=limit)
    FIGURES[name] = figure
    return figure


def _exported(  # noqa: PLR0913 # one row of the table
    source: Source,
    name: str,
    unit: Unit,
    text: str,
    *,
    per: tuple[str, ...] = CASE,
    metric: str = "",
    part: str = "",
    tool: str = "",
    title: str = "",
    column: tuple[str, str] = ("", ""),
    limit: float = 0.0,
) -> Exported:
    """Return a figure with a metric, by default named after the figure and its unit."""
    suffix = "" if unit in (Unit.IOPS, Unit.OPERATIONS) else f"_{unit}"
    labels = (*per, part) if part else per
    figure = Exported(
        name=name,
        unit=unit,
        source=source,
        title=title,
        column=column,
        limit=limit,
        metric=Metric(f"pvebench_{metric or name + suffix}", "gauge", labels, text),
        part=part,
        tool=tool,
    )
    FIGURES[name] = figure
    return figure


_tool = partial(_exported, Source.TOOL)
_host = partial(_exported, Source.HOST)
_derived = partial(_exported, Source.DERIVED)

# --- in the output of the tool ---
IOPS = _tool(
    "iops",
    Unit.IOPS,
    "I/O operations per second, mean of the last successful run (fio iops).",
    per=RESULT,
    title="IOPS",
    column=("iops", ""),
)
BANDWIDTH = _tool(
    "bandwidth",
    Unit.BYTES_PER_SECOND,
    "Bytes per second, mean of the last successful run (fio bw_bytes).",
    per=RESULT,
    column=("bandwidth_bytes_per_second", ""),
)
CLAT_MEAN = _tool(
    "clat_mean",
    Unit.SECONDS,
    "Mean completion latency (fio clat_ns.mean).",
    per=RESULT,
    metric="latency_mean_seconds",
    title="mean latency",
    column=("latency_mean_seconds", ""),
)
CLAT_MAX = _tool(
    "clat_max",
    Unit.SECONDS,
    "Longest completion latency (fio clat_ns.max).",
    per=RESULT,
    metric="latency_max_seconds",
    title="longest latency",
)
IOPS_VARIATION = _tool(
    "iops_variation",
    Unit.RATIO,
    "Standard deviation divided by mean of the per-interval IOPS in the last successful run.",
    per=RESULT,
    title="IOPS variation",
)
IOPS_SLOPE = _tool(
    "iops_slope",
    Unit.RATIO,
    "Change of the rate over the measured window of the last successful run, by a fitted line, as"
    " a ratio of its mean.",
    per=RESULT,
    title="IOPS change over the run, fitted",
)
LATENCY_DEPTH = _tool(
    "latency_depth",
    Unit.OPERATIONS,
    "I/O depth at which fio met the latency_target of the workload; pvebench_iops is the rate at "
    "that depth.",
    metric="latency_target_depth",
    limit=1e6,
)
FAULT_DIP = _tool(
    "fault_dip",
    Unit.RATIO,
    "Largest drop of the rate during a fault, as a share of the rate before it; 1: no I/O at all.",
)
FAULT_DIP_TIME = _tool(
    "fault_dip_time",
    Unit.SECONDS,
    "Time with a rate below half of the rate before the fault.",
    metric="fault_dip_seconds",
)
FAULT_RECOVERY = _tool(
    "fault_recovery",
    Unit.SECONDS,
    "Time from the start of the dip to the first of three intervals with 80% of the rate before, "
    "including the fault; absent if the window ended earlier.",
)
FAULT_ERRORS = _tool(
    "fault_errors", Unit.OPERATIONS, "I/O errors in the guest during the whole run."
)
CLAT_PERCENTILE = _tool(
    "clat_percentile",
    Unit.SECONDS,
    "Completion latency percentile (fio clat_ns.percentile).",
    per=RESULT,
    part="percentile",
    metric="latency_percentile_seconds",
    title="latency",
    column=("latency_p99_seconds", "99"),
)
SYNC_PERCENTILE = _tool(
    "sync_percentile",
    Unit.SECONDS,
    "Latency percentile of fsync and fdatasync calls (fio sync.lat_ns); only sync workloads.",
    part="percentile",
    metric="fsync_latency_percentile_seconds",
    title="sync latency",
)
GUEST_CPU = _tool(
    "guest_cpu",
    Unit.RATIO,
    "CPU usage of the benchmark tool in the guest, user and system, as a ratio of one CPU (fio "
    "usr_cpu, sys_cpu); on Windows, of the whole guest, per job of the tool.",
    part="mode",
    metric="guest_cpu_usage_ratio",
    limit=64.0,
)
BYTES = _figure(Source.TOOL, "bytes", Unit.BYTES)
LATENCIES: Final = {
    (kind, statistic): FIGURES.get(f"{kind}_{statistic}")
    or _figure(Source.TOOL, f"{kind}_{statistic}", Unit.SECONDS)
    for kind in ("slat", "clat", "lat", "sync")
    for statistic in ("min", "mean", "max", "stddev", "percentile")
}
"""Kind and statistic -> latency: submission, completion, both together, syncs."""
CLAT_HISTOGRAM = _figure(Source.TOOL, "clat_histogram", Unit.OPERATIONS)
CLAT_VARIATION = _figure(Source.TOOL, "clat_variation", Unit.RATIO)
CONTEXT_SWITCHES = _figure(Source.TOOL, "context_switches", Unit.OPERATIONS, limit=1e12)
OPERATIONS = _figure(Source.TOOL, "operations", Unit.OPERATIONS)
PHASE_CPU = _figure(Source.TOOL, "phase_cpu", Unit.RATIO)
REWRITE_BANDWIDTH = _figure(Source.TOOL, "rewrite_bandwidth", Unit.BYTES_PER_SECOND)
RUNTIME = _figure(Source.TOOL, "runtime", Unit.SECONDS)
SEEKS = _figure(Source.TOOL, "seeks", Unit.IOPS)
SYNC_OPERATIONS = _figure(Source.TOOL, "sync_operations", Unit.OPERATIONS)

# --- measured by the host, the hypervisor and the scheduler ---
PASS_TO_FIRST = _host(
    "pass_to_first",
    Unit.RATIO,
    "Rate of the last successful run divided by that of the first run in its cycle, if the pack "
    "repeats its cases: above 1 if a cache of the storage has warmed up.",
    per=RESULT,
)
STEADY_TIME = _host(
    "steady_time",
    Unit.SECONDS,
    "Time until the workload reached a steady state; only if the pack waits for it.",
    metric="steady_seconds",
)
STEADY_SLOPE = _host(
    "steady_slope",
    Unit.RATIO,
    "Remaining slope when the wait for a steady state ended: change of the fitted line over its "
    "window, as a ratio of the mean.",
)
GUEST_CPU_WAIT = _host(
    "guest_cpu_wait",
    Unit.CORES,
    "Mean number of guest CPUs that were ready to run but waited for a host CPU.",
)
NETWORK_ROUND_TRIP = _host(
    "network_round_trip",
    Unit.SECONDS,
    "Time to open a TCP connection from the host to the storage server just before the run: the "
    "network's share of the latency.",
    column=("network_round_trip_seconds", ""),
)
FAULT_TIME = _host(
    "fault_time",
    Unit.SECONDS,
    "Duration of the fault that pvebench injected during the run, as the storage settings define.",
    metric="fault_seconds",
)
OPERATION_TIME = _host(
    "operation_time",
    Unit.SECONDS,
    "Duration of the backup, move or snapshot during the run; absent if it did not end.",
    metric="operation_seconds",
)
OPERATION_GAP = _host(
    "operation_gap",
    Unit.SECONDS,
    "Longest time without completed I/O that began before the operation ended, from outside the "
    "guest; can be longer by pvebench_operation_resolution_seconds.",
    title="longest time without I/O",
)
OPERATION_RESOLUTION = _host(
    "operation_resolution",
    Unit.SECONDS,
    "Interval between two readings of the disk's counters before the longest gap.",
)
OPERATION_LOST = _host(
    "operation_lost",
    Unit.OPERATIONS,
    "I/O that the rate before the operation would have completed until the end of the window.",
    metric="operation_lost_operations",
    title="I/O lost to the operation",
)
OPERATION_RECOVERY = _host(
    "operation_recovery",
    Unit.SECONDS,
    "Time from the start of the dip to the first of three seconds with 80% of the rate before the"
    " operation; 0: no dip; absent if the window ended earlier.",
)
OPERATION_BYTES = _host(
    "operation_bytes", Unit.BYTES, "Bytes that the operation processed.", metric="operation_bytes"
)
VMS_FAIRNESS = _host(
    "vms_fairness",
    Unit.RATIO,
    "Jain's index of the IOPS of VMs that run a workload at the same time; 1: all have the same.",
)
VMS_SLOWEST = _host(
    "vms_slowest", Unit.IOPS, "IOPS of the slowest of these VMs.", metric="vms_slowest_iops"
)
VMS_BOOT_TIME = _host(
    "vms_boot_time",
    Unit.SECONDS,
    "Time until the last of the further VMs answers, which boot at the same time.",
    metric="vms_boot_seconds",
)
HOST_CPU = _host(
    "host_cpu",
    Unit.CORES,
    "Host CPU in use during the measured window, in cores: total of the host, its modes if "
    "node_exporter reports them, the qemu process and its vcpu, iothread and other threads; "
    "container: control group of a container (bus lxc); total_coarse: value of the Proxmox API "
    "for nodes without node_exporter.",
    part="component",
    metric="host_cpu_usage_cores",
)
HOST_BYTES = _host(
    "host_bytes",
    Unit.BYTES,
    "Bytes transferred on the host in the measured window: process_read and process_write by "
    "QEMU; device_read and device_write by the backing block device, or between an NFS or CIFS "
    "mount and its server.",
    part="counter",
    metric="host_io_bytes",
)
OPERATION_P99 = _host(
    "operation_p99",
    Unit.SECONDS,
    "99th percentile of QEMU's completion latencies before, during and after the operation, "
    "rounded up by at most 12%.",
    part="phase",
    metric="operation_latency_p99_seconds",
)
HOST_PRESSURE = _host(
    "host_pressure",
    Unit.RATIO,
    "Share of the measured window in which host tasks waited (Linux PSI): cpu_some, io_some, "
    "io_full, memory_some, memory_full for nodes with node_exporter or ssh; vm_io_some … for the "
    "VM alone at the end of the window (Proxmox VE 9).",
    part="resource",
)
BOOT_TIME = _host(
    "boot_time",
    Unit.SECONDS,
    "Time from power-on of the guest to the first response of its agent (workload boot).",
    tool="boot",
    metric="guest_boot_seconds",
)
DISK_MARGIN = _figure(Source.HOST, "disk_margin", Unit.CELSIUS)
DISK_WEAR = _figure(Source.HOST, "disk_wear", Unit.RATIO)
DISTURBED = _figure(Source.HOST, "disturbed", Unit.RATIO)
HOST_CONTEXT_SWITCHES = _figure(Source.HOST, "host_context_switches", Unit.OPERATIONS)
IO_TIME = _figure(Source.HOST, "io_time", Unit.SECONDS)
MD_SYNC = _figure(Source.HOST, "md_sync", Unit.RATIO)
NETWORK_LIMIT = _figure(Source.HOST, "network_limit", Unit.BYTES_PER_SECOND)
QEMU_BYTES = _figure(Source.HOST, "qemu_bytes", Unit.BYTES)
QEMU_OPERATIONS = _figure(Source.HOST, "qemu_operations", Unit.OPERATIONS)
STEADY_RANGE = _figure(Source.HOST, "steady_range", Unit.RATIO)
STORAGE_USED = _figure(Source.HOST, "storage_used", Unit.RATIO)
VM_EXITS = _figure(Source.HOST, "vm_exits", Unit.OPERATIONS)
VMS_VARIATION = _figure(Source.HOST, "vms_variation", Unit.RATIO)
WINDOW = _figure(Source.HOST, "window", Unit.SECONDS)
WINDOW_LAG = _figure(Source.HOST, "window_lag", Unit.SECONDS)
ZFS_CACHE = _figure(Source.HOST, "zfs_cache", Unit.BYTES)
ZFS_FRAGMENTATION = _figure(Source.HOST, "zfs_fragmentation", Unit.RATIO)
ZFS_SCAN = _figure(Source.HOST, "zfs_scan", Unit.RATIO)

# --- derived from both ---
DEVICE_SHARE = _derived(
    "device_share",
    Unit.RATIO,
    "Bytes on the backing device, or to and from the NFS or CIFS server, divided by bytes that "
    "the guest transferred: 1 without a cache, 0 all from a cache; above 1 with format metadata "
    "or read-ahead.",
    per=RESULT,
    column=("device_share_ratio", ""),
)
GUEST_TO_HOST = _derived(
    "guest_to_host",
    Unit.RATIO,
    "Rate of the guest or container divided by the rate of the host with the same workload on the"
    " same storage: 1 means no virtualization overhead.",
    per=RESULT,
    column=("guest_to_host_ratio", ""),
)
NETWORK_SHARE = _derived(
    "network_share",
    Unit.RATIO,
    "Bandwidth divided by the capacity of the link to the storage server, if the settings declare"
    " it.",
    per=RESULT,
    column=("network_share_ratio", ""),
)
FLUSH_SHARE = _derived(
    "flush_share", Unit.RATIO, "Flushes that QEMU received divided by flushes issued in the guest."
)
IMPLAUSIBILITY = _figure(Source.DERIVED, "implausibility", Unit.RATIO)
WARM = _figure(Source.DERIVED, "warm", Unit.RATIO, title="reads not from the device")
"""Share of the read bytes that came from memory, if it is too large for a cold run."""
UNKNOWN: Final = "unknown"
"""Its part if the device's bytes are not known, so that any share may have."""

# --- with verdicts: the words for their changes, and the numbers that they are read from ---
_HIGHER: Final = ("higher", "lower")
_LONGER: Final = ("longer", "shorter")
_GAP: Final = "gap during the operation"
_IDLE: Final = "host CPU of the idle VM"
_TIME: Final = "duration"
_ROWS: Final = (
    VerdictFigure("throughput", "speed", IOPS, "", "throughput", "slower", "faster", 0.015, 1e-3),
    VerdictFigure("longest_stall", "stall", CLAT_MAX, "", "longest stall", *_LONGER, 0.4, 1e-3),
    VerdictFigure("operation_gap", "stall", OPERATION_GAP, "", _GAP, *_LONGER, 0.4, 0.1),
    VerdictFigure("cpu_cost", "cost", HOST_CPU, "qemu", "host CPU per I/O", *_HIGHER, 0.03, 1e-9),
    VerdictFigure("idle_cost", "cost", HOST_CPU, "qemu", _IDLE, *_HIGHER, 0.05, 1e-5),
    VerdictFigure("operation_time", "operation", OPERATION_TIME, "", _TIME, *_LONGER, 0.05, 1e-4),
    VerdictFigure("boot_time", "operation", BOOT_TIME, "", "boot time", *_LONGER, 0.05, 1e-3),
    VerdictFigure(
        "latency_p99", "speed", CLAT_PERCENTILE, "99", "p99 latency", *_HIGHER, 0.05, 1e-7
    ),
)
JUDGED: Final[Mapping[str, VerdictFigure]] = {row.name: row for row in _ROWS}
"""In display order: a change is named after the first one that shifted."""

Number = tuple[str, str, str]
"""Key of one of a run's numbers: metric, direction or "", part."""
CORES: Final[tuple[Number, ...]] = tuple((HOST_CPU.name, "", part) for part in ("qemu", "total"))
NUMBER_OF: Final[Mapping[tuple[str, str], Number]] = {
    (row.name, way): (row.source.name, way, row.part)
    for row in _ROWS
    if row.source is not HOST_CPU
    for way in (map(str, Direction) if row.per_direction else ("",))
}
"""Judged figure and its direction or "" -> the stored number it is."""
NUMBERS: Final[tuple[Number, ...]] = (*NUMBER_OF.values(), *CORES)
"""Stored numbers that judged figures are read or computed from."""

# --- read from several ---


def warm_text(samples: Iterable[Sample]) -> str:
    """Return how much a run read from memory, or may have; empty: nothing that matters."""
    for sample in samples:
        if sample.metric == WARM.name:
            known = f"warm cache: {sample.value:.0%} of the reads did not come from the device"
            return "possibly warm cache: no counters of the device" if sample.part else known
    return ""


def was_canceled(samples: Iterable[Sample]) -> bool:
    """Return whether the operation of a run had not ended with it, so that pvebench canceled it."""
    metrics = {sample.metric for sample in samples}
    return OPERATION_BYTES.name in metrics and OPERATION_TIME.name not in metrics


def rates(samples: Iterable[Sample]) -> dict[Direction, float]:
    """Return direction -> I/O per second, or bytes per second where the tool counts no I/O."""
    values = {(sample.metric, sample.direction): sample.value for sample in samples}
    result: dict[Direction, float] = {}
    for metric in (BANDWIDTH.name, IOPS.name):
        result |= {way: values[metric, way] for way in Direction if (metric, way) in values}
    return result
