"""Catalog of all pvebench metrics: name, type, labels, help.

`model/figures.py` has those of a run's numbers. Collectors, docs/metrics.md and the dashboards
take names from both. Names and labels follow the Prometheus conventions: base units, `_info` for
facts, `_timestamp_seconds` for times, `_total` for counters; no label changes with every run.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pvebench.model.disk import DISK_OPTIONS, LAYOUT_OPTIONS, POOL_OPTIONS
from pvebench.model.figure import Exported
from pvebench.model.figures import FIGURES
from pvebench.model.metric import CASE, NODE, RESULT, SCENARIO, Kind, Metric

JUDGED: Final = (*RESULT, "metric")


_metrics: list[Metric] = []


def _add(kind: Kind, name: str, labels: tuple[str, ...], text: str) -> Metric:
    _metrics.append(Metric(f"pvebench_{name}", kind, labels, text))
    return _metrics[-1]


_gauge = partial(_add, "gauge")
_counter = partial(_add, "counter")
_histogram = partial(_add, "histogram")


# --- definitions and environments ---
SCENARIO_INFO = _gauge(
    "scenario_info",
    (
        *SCENARIO,
        # VictoriaMetrics drops labels beyond 30; the scenario has these in its name.
        *(
            name
            for name in DISK_OPTIONS
            if name not in {*SCENARIO, "overlay_cluster", *POOL_OPTIONS}
        ),
        *LAYOUT_OPTIONS,
        "cpus",
        "memory_bytes",
        "volume_bytes",
        "host_cache",
        "configuration",
        "disk",
    ),
    "Options of a scenario, always 1. Options that older results lack are empty. "
    "host_cache: warm if reads may come from the page cache of earlier runs, arc: of ZFS. "
    "configuration: description with non-default options first, without the storage. "
    "disk: the same without the cache mode.",
)
WORKLOAD_INFO = _gauge(
    "workload_info",
    (
        "workload",
        "direction",
        "tool",
        "title",
        "rw",
        "block_size_bytes",
        "io_depth",
        "jobs",
        "caveats",
        "description",
    ),
    "Definition of a workload, always 1. caveats: effects in its numbers other than the disk. "
    "description: for example 4k random read, depth 32.",
)
NODE_INFO = _gauge(
    "node_info",
    ("node", "cpu_model", "microcode", "cpus", "governor"),
    "Hardware of the node in its latest results, always 1.",
)
ENVIRONMENT_INFO = _gauge(
    "environment_info",
    (
        "node",
        "environment",
        "pve_version",
        "kernel_version",
        "qemu_version",
        "machine",
        "accel",
        "guest_kernel",
        "fio_version",
        "cpu_model",
        "simulated",
    ),
    "Software and hardware of the latest results of a node, always 1.",
)
ENVIRONMENT_START = _gauge(
    "environment_start_timestamp_seconds",
    ("node", "environment", "pve_version", "kernel_version", "qemu_version"),
    "Start of the first successful run in the latest period of an environment, for the last 20 "
    "environment periods of each node.",
)
ENVIRONMENT_END = _gauge(
    "environment_end_timestamp_seconds",
    ("node", "environment", "pve_version", "kernel_version", "qemu_version"),
    "End of the last successful run in the latest period of an environment.",
)
ENVIRONMENT_CHANGE = _gauge(
    "environment_change_info",
    ("node", "environment", "fact", "before", "after"),
    "Facts that changed between an environment period and the previous one, always 1, for the last "
    "20 periods of each node. pvebench_environment_start_timestamp_seconds has the start.",
)
# --- results ---
_metrics += [figure.metric for figure in FIGURES.values() if isinstance(figure, Exported)]
LATENCY = _histogram(
    "latency_seconds",
    RESULT,
    "Completion latencies of all successful runs so far, for workloads with histogram: true (fio "
    "clat_ns.bins). All cases and nodes use the same buckets, so you can sum them.",
)
HOST_SWITCHES = _gauge(
    "host_context_switches_per_second", CASE, "Context switches of the host in the measured window."
)
VM_EXITS = _gauge(
    "vm_exits_per_operation",
    CASE,
    "VM exits to KVM in the measured window per operation that QEMU counted. Requires KVM and "
    "debugfs: nodes with ssh, and the driver qemu as root.",
)
# --- comparison of configurations ---
SCENARIO_RANK_INFO = _gauge(
    "scenario_rank_info",
    (*CASE, "rank", "excluded", "durable"),
    "Rank of a configuration for its workload and storage, always 1. rank: fastest, equal (within "
    "noise), slower, or unknown with too few runs; excluded: why it is not ranked (disturbed, "
    "not_durable, unflushed, warm, host, lxc, noisy), or empty; durable: measured, by design, or "
    "no, as of `pvebench durability`.",
)
SCENARIO_GAP = _gauge(
    "scenario_gap_ratio",
    CASE,
    "Gap between the level of a configuration and that of the fastest ranked one: -0.18 is 18% "
    "slower.",
)
SCENARIO_GAP_NOISE = _gauge(
    "scenario_gap_noise_ratio",
    CASE,
    "Half width of the 95% confidence interval of the gap; absent if unknown.",
)
# --- runs ---
RUN_TIMESTAMP = _gauge(
    "run_timestamp_seconds", CASE, "Unix time of the last successful run, the source of the values."
)
RUN_ATTEMPT_TIMESTAMP = _gauge(
    "run_attempt_timestamp_seconds", CASE, "Unix time of the last run, successful or not."
)
RUN_DURATION = _gauge(
    "run_duration_seconds", CASE, "Duration of the last run, including switching and settling."
)
RUN_SUCCESS = _gauge("run_success", CASE, "1 if the last run succeeded, 0 otherwise.")
RUN_IMPLAUSIBLE = _gauge(
    "run_implausible",
    (*CASE, "reason"),
    "1 for each reason why the last run is implausible: rate, size, latency, clock, cpu, "
    "qemu_bytes, device_share, flush_share, beats_host, beats_network, guest_starved, not_filled.",
)
RUNS = _counter("runs", (*CASE, "outcome"), "Finished runs by outcome.")
SCHEDULE_INTERVAL = _gauge(
    "schedule_interval_seconds", CASE, "Interval between runs of this case, as set in the pack."
)
MOVED_BYTES = _counter(
    "moved_bytes",
    ("node", "storage", "direction"),
    "Bytes read, written or trimmed by workloads in measured windows, since the first run.",
)
CYCLES = _counter("cycles", ("node", "tier"), "Completed cycles.")
RESULTS = _gauge("results", (), "Runs in the database.")
# --- verdicts ---
# `metric` is throughput, latency_p99, longest_stall, operation_gap, cpu_cost, idle_cost or
# boot_time; `direction` is empty if the metric does not belong to one direction.
CHANGE = _gauge(
    "change_ratio",
    JUDGED,
    "Change of the level from the baseline, as a ratio of it. Positive is better for every metric: "
    "0.1 is 10% faster, or 10% less latency or CPU.",
)
CHANGE_THRESHOLD = _gauge(
    "change_threshold_ratio",
    JUDGED,
    "Half width of the 95% confidence interval of the change: a smaller change is noise.",
)
CHANGE_STATE = _gauge(
    "change_state",
    JUDGED,
    "Verdict relative to the baseline: -2 slower (confirmed), -1 possibly slower, 0 unchanged, "
    "1 possibly faster, 2 faster (confirmed); absent if inconclusive, see pvebench_verdict_cases.",
)
CHANGE_GRADUAL = _gauge(
    "change_gradual_ratio",
    JUDGED,
    "Gradual change of the level over many runs, without a step: -0.1 is gradually 10% slower; "
    "absent without a gradual change.",
)
REGRESSION = _gauge(
    "regression", JUDGED, "1 if a confirmed regression of the case is not accepted, 0 otherwise."
)
IMPLAUSIBLE_GAIN = _gauge(
    "implausible_gain",
    JUDGED,
    "1 if a confirmed improvement is implausible and not accepted, 0 otherwise.",
)
BASELINE_IOPS = _gauge(
    "baseline_iops", RESULT, "Baseline of the case, in I/O operations per second."
)
BASELINE_LATENCY = _gauge(
    "baseline_latency_percentile_seconds",
    (*RESULT, "percentile"),
    "Baseline of the case for a completion latency percentile.",
)
BASELINE_CPU = _gauge(
    "baseline_cpu_seconds_per_operation",
    CASE,
    "Baseline of the case for host CPU time per I/O operation.",
)
BASELINE_RUNS = _gauge("baseline_runs", CASE, "Successful runs in the baseline.")
BASELINE_START = _gauge(
    "baseline_start_timestamp_seconds",
    CASE,
    "Unix time of the first run of the baseline. An upgrade does not reset it; accepting a level "
    "does.",
)
# A change is one event, for any number of affected cases and metrics.
CHANGE_INFO = _gauge(
    "change_info",
    ("change", "node", "storage", "kind", "severity", "since", "summary"),
    "Open change, always 1; at most 50, the most severe first. summary: the verdict without "
    "numbers that vary with every run; since: a date; kind: level, drift, mode, "
    "bursts or implausible; severity: critical, warning, or info for an improvement. "
    "A change keeps its ID, also in pvebench_closed_change_info.",
)
CHANGE_CASES = _gauge("change_cases", ("change",), "Number of cases that a change affects.")
CHANGE_CASE = _gauge(
    "change_case_info",
    ("change", "node", "scenario", "workload"),
    "Cases that a change of pvebench_change_info affects, always 1.",
)
CHANGE_EFFECT = _gauge(
    "change_effect_ratio",
    ("change",),
    "Effect of a change on the first metric of its summary, as a ratio; positive is better.",
)
CHANGE_EFFECT_LOW = _gauge(
    "change_effect_low_ratio", ("change",), "Lower bound of the effect's 95% confidence interval."
)
CHANGE_EFFECT_HIGH = _gauge(
    "change_effect_high_ratio", ("change",), "Upper bound of the effect's 95% confidence interval."
)
CHANGE_CONFIDENCE = _gauge(
    "change_confidence_ratio",
    ("change",),
    "Confidence that a change is not noise: 1 minus the p-value of its most significant metric.",
)
CHANGE_SINCE = _gauge(
    "change_since_timestamp_seconds",
    ("change",),
    "Unix time when a change began: that of its likely cause, or of the first run after it.",
)
CHANGES = _gauge(
    "changes",
    ("severity",),
    "Number of open changes, including those beyond the 50 of pvebench_change_info; 0 if there "
    "are none.",
)
CLOSED_CHANGE_INFO = _gauge(
    "closed_change_info",
    ("change", "node", "storage", "kind", "metric", "state", "since", "until", "cause", "summary"),
    "Change that is no longer open, always 1; at most the 100 that began last. Labels as of "
    "pvebench_change_info, and metric: that of the effect; state: resolved or accepted; until: a "
    "date, empty without an end; cause: likely cause, empty if unknown.",
)
CLOSED_CHANGE_CASES = _gauge(
    "closed_change_cases", ("change",), "Number of cases that a closed change affected."
)
CLOSED_CHANGE_EFFECT = _gauge(
    "closed_change_effect_ratio",
    ("change",),
    "Effect of a closed change on the first metric of its summary, as a ratio; positive is better.",
)
CLOSED_CHANGE_BEGIN = _gauge(
    "closed_change_begin_timestamp_seconds", ("change",), "Unix time when a closed change began."
)
CLOSED_CHANGE_END = _gauge(
    "closed_change_end_timestamp_seconds",
    ("change",),
    "Unix time when later changes had taken back more than half of a closed change; absent if it "
    "was accepted or is no longer confirmed.",
)
VERDICT_INFO = _gauge(
    "verdict_info",
    ("state", "headline", "summary"),
    "Overall verdict, always 1; headline: up to 60 characters; summary: one sentence; state: "
    "regression, ok, partial if some metrics are inconclusive, or inconclusive.",
)
VERDICT_CASES = _gauge(
    "verdict_cases",
    ("node", "storage", "state"),
    "Metrics of cases by verdict: unchanged, possibly_slower, slower, gradually_slower, "
    "possibly_faster, faster, gradually_faster, implausible, and inconclusive with too few runs or "
    "too much noise to rule out a change.",
)
VERDICT_TIMESTAMP = _gauge(
    "verdict_timestamp_seconds", (), "Unix time of the latest run that the verdicts include."
)
PERFORMANCE_INDEX = _gauge(
    "performance_index_ratio",
    ("node", "storage", "environment"),
    "Throughput in this environment as a ratio of the baseline, geometric mean over the cases of "
    "the storage: 1 is the baseline, 0.9 is 10% slower.",
)
GATE_EXIT_CODE = _gauge(
    "gate_exit_code",
    NODE,
    "Result of `pvebench gate` for an upgraded node: 0 go on, 1 stop, 10 undecided; for 30 days "
    "after the start of a new environment.",
)
GATE_LOSS = _gauge(
    "gate_loss_ratio",
    ("node", "group"),
    "Throughput lost since the upgrade, as a ratio, for all cases and each group of cases that "
    "`pvebench gate` lists; absent with too few runs.",
)
GATE_LOSS_LOW = _gauge(
    "gate_loss_low_ratio",
    ("node", "group"),
    "Lower bound of the loss, valid at every look: above the tolerance, the gate stops.",
)
GATE_LOSS_HIGH = _gauge(
    "gate_loss_high_ratio",
    ("node", "group"),
    "Upper bound of the loss, valid at every look: with all below the tolerance, the gate passes.",
)
WALL_SLOT = _gauge(
    "wall_slot_info",
    ("slot", "title", "node", "scenario", "workload", "direction", "figure"),
    "Results on the wall dashboard, always 1; figure: iops or bandwidth.",
)
# --- live ---
BUILD_INFO = _gauge("build_info", ("version", "python_version"), "Version of pvebench, always 1.")
SCHEDULER_STATE = _gauge(
    "scheduler_state",
    ("node", "state"),
    "1 for the current scheduler state: idle, reconfiguring, warmup, running, collecting, paused "
    "or error; 0 for the others.",
)
SCHEDULER_PROGRESS = _gauge(
    "scheduler_progress_timestamp_seconds",
    NODE,
    "Unix time of the scheduler's last completed step.",
)
QUEUE_LENGTH = _gauge("queue_length", NODE, "Remaining cases in the current cycle.")
CYCLE_PROGRESS = _gauge("cycle_progress_ratio", NODE, "Completed share of the current cycle.")
CYCLE_START = _gauge("cycle_start_timestamp_seconds", NODE, "Unix time when the cycle started.")
CYCLE_EXPECTED_END = _gauge(
    "cycle_expected_end_timestamp_seconds", NODE, "Expected Unix time of the cycle's end."
)
NEXT_RUN = _gauge(
    "next_run_timestamp_seconds",
    ("node", "storage", "title"),
    "Expected Unix time of the next run; title: description of its workload.",
)
CURRENT_RUN = _gauge(
    "current_run_info",
    ("node", "storage", "title"),
    "Currently running case, always 1; title: description of its workload.",
)
HOLD = _gauge(
    "scheduler_hold",
    ("node", "reason"),
    "Reason why the next case is waiting, always 1: paused, quiet_hours, busy, load or turn; "
    "absent if it is not waiting.",
)
PENDING_INFO = _gauge(
    "environment_pending_info",
    ("node", "fact", "version"),
    "Software that is installed on the node but not running yet, always 1.",
)
API_REQUESTS = _counter(
    "pve_api_requests",
    ("node", "operation"),
    "Requests to the node's Proxmox API since the exporter started: get, post, put, delete.",
)
API_FAILURES = _counter(
    "pve_api_request_failures",
    ("node", "operation"),
    "Failed requests to the node's Proxmox API: no response, no permission or a server error.",
)
API_TASKS = _counter(
    "pve_tasks",
    ("node",),
    "Tasks that pvebench started on the Proxmox node since the exporter started. A node keeps "
    "about 1,200.",
)
STORAGE_INFO = _gauge(
    "storage_info",
    ("node", "storage", "type", "shared"),
    "Storage that packs can use, always 1. type: its type; shared: whether nodes share its disks.",
)
DAY_WRITTEN = _gauge(
    "day_written_bytes",
    ("node", "storage"),
    "Bytes written to test disks from the node in the last 24 hours, fills included.",
)
DAY_PLANNED = _gauge(
    "planned_day_write_bytes",
    ("node", "storage"),
    "Expected bytes written in 24 hours: as the newest runs wrote, else the plan's upper limit.",
)
DRIVE_WEAR = _gauge(
    "drive_wear_ratio",
    ("node", "storage"),
    "Used share of the rated endurance of the storage's most worn drive; may exceed 1.",
)
YEAR_WEAR = _gauge(
    "planned_year_wear_ratio",
    ("node", "storage"),
    "Share of a drive's rated endurance that pvebench uses in a year, from the drive's counters.",
)
WRITE_BUDGET = _gauge(
    "write_budget_bytes", ("node", "storage"), "Write budget of the storage for 24 hours, in bytes."
)
BUDGET_USED = _gauge(
    "write_budget_used_ratio",
    ("node", "storage"),
    "Used share of the write budget for 24 hours; for a shared storage, by all nodes together.",
)
STORAGE_FREE = _gauge(
    "storage_free_bytes", ("node", "storage"), "Free bytes at the last check of the storage."
)
STORAGE_FLOOR = _gauge(
    "storage_min_free_bytes", ("node", "storage"), "Bytes that must stay free on the storage."
)
CONFIG_INFO = _gauge(
    "config_info",
    ("digest", "packs"),
    "Active settings and packs, always 1; digest: digest of their files.",
)
CONFIG_RELOAD_SUCCESS = _gauge(
    "config_last_reload_successful",
    (),
    "1 if the settings on disk are active, 0 after a failed reload.",
)
CONFIG_RELOAD_TIMESTAMP = _gauge(
    "config_last_reload_success_timestamp_seconds",
    (),
    "Unix time when the active settings were loaded.",
)
NOTIFICATIONS_QUEUED = _gauge(
    "notifications_queued", ("receiver",), "Queued notifications for a receiver of `notify`."
)
NOTIFICATIONS_SENT = _counter("notifications_sent", ("receiver",), "Sent notifications.")
NOTIFICATIONS_DROPPED = _counter(
    "notifications_dropped",
    ("receiver",),
    "Dropped notifications: repeatedly rejected, or more than 100 queued.",
)
NOTIFICATION_FAILURES = _counter(
    "notification_failures", ("receiver",), "Failed delivery attempts."
)
NOTIFICATION_SUCCESS = _gauge(
    "notification_success_timestamp_seconds",
    ("receiver",),
    "Unix time of the last successful delivery.",
)
WEB_INFO = _gauge(
    "web_info",
    ("url",),
    "Address of the web UI (`external_url`, otherwise the listen address), always 1; alerts link "
    "to it.",
)
EXPOSITION_TIMESTAMP = _gauge(
    "exposition_timestamp_seconds",
    (),
    "Unix time of this exposition; `pvebench selftest` looks for it in Prometheus and Grafana.",
)
DATABASE_SIZE = _gauge("database_size_bytes", (), "Size of the results database.")
COLLECTOR_SUCCESS = _gauge(
    "collector_success", ("collector",), "1 if the collector succeeded, 0 otherwise."
)
COLLECTOR_DURATION = _gauge(
    "collector_duration_seconds", ("collector",), "Duration of the collector's last run."
)

CATALOG: Final[dict[str, Metric]] = {metric.name: metric for metric in _metrics}
