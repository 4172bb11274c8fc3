"""Metrics of the state of pvebench: name, type, labels, help; and the catalog of all metrics.

Those of a run's numbers, such as `pvebench_iops`, are in `model/run_metrics.py`. Collectors,
docs/metrics.md and the dashboards take names from both. Names and labels follow the Prometheus
conventions: base units, `_info` for facts, `_timestamp_seconds` for times, `_total` for counters;
no label changes with every run.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pvebench.model.disk import DISK_OPTIONS, POOL_OPTIONS
from pvebench.model.figure import CASE, NODE, RESULT, SCENARIO, Exported, Kind, Metric
from pvebench.model.run_metrics import FIGURES
from pvebench.model.scenario import LAYOUT_OPTIONS

_VERDICT: Final = (*RESULT, "metric")
_PERIOD: Final = ("node", "environment", "pve_version", "kernel_version", "qemu_version")

_metrics: list[Metric] = []


def _add(kind: Kind, labels: tuple[str, ...], name: str, text: str) -> Metric:
    _metrics.append(Metric(f"pvebench_{name}", kind, labels, text))
    return _metrics[-1]


_gauge = partial(_add, "gauge")
_counter = partial(_add, "counter")
_single = partial(_gauge, ())
_of_node = partial(_gauge, NODE)
_of_storage = partial(_gauge, ("node", "storage"))
_of_case = partial(_gauge, CASE)
_judged = partial(_gauge, _VERDICT)
_of_change = partial(_gauge, ("change",))

# --- definitions and environments ---
SCENARIO_INFO = _gauge(
    (
        *SCENARIO,
        # VictoriaMetrics drops labels beyond 30; the scenario has these in its name.
        *(
            name
            for name in DISK_OPTIONS
            if name not in {*SCENARIO, "overlay_cluster", *POOL_OPTIONS}
        ),
        *LAYOUT_OPTIONS,
        *("cpus", "memory_bytes", "volume_bytes", "host_cache", "configuration", "disk"),
    ),
    "scenario_info",
    "Options of a scenario, always 1. Options that older results lack are empty. "
    "host_cache: warm if reads may come from the page cache of earlier runs, arc: of ZFS. "
    "configuration: description with non-default options first, without the storage. "
    "disk: the same without the cache mode.",
)
WORKLOAD_INFO = _gauge(
    (
        *("workload", "direction", "tool", "title", "rw", "block_size_bytes", "io_depth", "jobs"),
        *("caveats", "description"),
    ),
    "workload_info",
    "Definition of a workload, always 1. caveats: effects in its numbers other than the disk. "
    "description: for example 4k random read, depth 32.",
)
NODE_INFO = _gauge(
    ("node", "cpu_model", "microcode", "cpus", "governor"),
    "node_info",
    "Hardware of the node in its latest results, always 1.",
)
ENVIRONMENT_INFO = _gauge(
    (*_PERIOD, "machine", "accel", "guest_kernel", "fio_version", "cpu_model", "simulated"),
    "environment_info",
    "Software and hardware of the latest results of a node, always 1.",
)
ENVIRONMENT_START = _gauge(
    _PERIOD,
    "environment_start_timestamp_seconds",
    "Start of the first successful run in the latest period of an environment, for the last 20 "
    "environment periods of each node.",
)
ENVIRONMENT_END = _gauge(
    _PERIOD,
    "environment_end_timestamp_seconds",
    "End of the last successful run in the latest period of an environment.",
)
ENVIRONMENT_CHANGE = _gauge(
    ("node", "environment", "fact", "before", "after"),
    "environment_change_info",
    "Facts that changed between an environment period and the previous one, always 1, for the last "
    "20 periods of each node. pvebench_environment_start_timestamp_seconds has the start.",
)
# --- results ---
_metrics += [figure.metric for figure in FIGURES.values() if isinstance(figure, Exported)]
LATENCY = _add(
    "histogram",
    RESULT,
    "latency_seconds",
    "Completion latencies of all successful runs so far, for workloads with histogram: true (fio "
    "clat_ns.bins). All cases and nodes use the same buckets, so you can sum them.",
)
HOST_SWITCHES = _of_case(
    "host_context_switches_per_second", "Context switches of the host in the measured window."
)
VM_EXITS = _of_case(
    "vm_exits_per_operation",
    "VM exits to KVM in the measured window per operation that QEMU counted. Requires KVM and "
    "debugfs: nodes with ssh, and the driver qemu as root.",
)
# --- comparison of configurations ---
SCENARIO_RANK_INFO = _gauge(
    (*CASE, "rank", "excluded", "durable"),
    "scenario_rank_info",
    "Rank of a configuration for its workload and storage, always 1. rank: fastest, equal (within "
    "noise), slower, or unknown with too few runs; excluded: why it is not ranked (disturbed, "
    "not_durable, unflushed, warm, host, lxc, noisy), or empty; durable: measured, by design, or "
    "no, as of `pvebench durability`.",
)
SCENARIO_GAP = _of_case(
    "scenario_gap_ratio",
    "Gap between the level of a configuration and that of the fastest ranked one: -0.18 is 18% "
    "slower.",
)
SCENARIO_GAP_NOISE = _of_case(
    "scenario_gap_noise_ratio",
    "Half width of the 95% confidence interval of the gap; absent if unknown.",
)
# --- runs ---
RUN_TIMESTAMP = _of_case(
    "run_timestamp_seconds", "Unix time of the last successful run, the source of the values."
)
RUN_ATTEMPT_TIMESTAMP = _of_case(
    "run_attempt_timestamp_seconds", "Unix time of the last run, successful or not."
)
RUN_DURATION = _of_case(
    "run_duration_seconds", "Duration of the last run, including switching and settling."
)
RUN_SUCCESS = _of_case("run_success", "1 if the last run succeeded, 0 otherwise.")
RUN_IMPLAUSIBLE = _gauge(
    (*CASE, "reason"),
    "run_implausible",
    "1 for each reason why the last run is implausible: rate, size, latency, clock, cpu, "
    "qemu_bytes, device_share, flush_share, beats_host, beats_network, guest_starved, not_filled.",
)
RUNS = _counter((*CASE, "outcome"), "runs", "Finished runs by outcome.")
SCHEDULE_INTERVAL = _of_case(
    "schedule_interval_seconds", "Interval between runs of this case, as set in the pack."
)
MOVED_BYTES = _counter(
    ("node", "storage", "direction"),
    "moved_bytes",
    "Bytes read, written or trimmed by workloads in measured windows, since the first run.",
)
CYCLES = _counter(("node", "tier"), "cycles", "Completed cycles.")
RESULTS = _single("results", "Runs in the database.")
# --- verdicts ---
# `metric` is throughput, latency_p99, longest_stall, operation_gap, cpu_cost, idle_cost or
# boot_time; `direction` is empty if the metric does not belong to one direction.
CHANGE = _judged(
    "change_ratio",
    "Change of the level from the baseline, as a ratio of it. Positive is better for every metric: "
    "0.1 is 10% faster, or 10% less latency or CPU.",
)
CHANGE_THRESHOLD = _judged(
    "change_threshold_ratio",
    "Half width of the 95% confidence interval of the change: a smaller change is noise.",
)
CHANGE_STATE = _judged(
    "change_state",
    "Verdict relative to the baseline: -2 slower (confirmed), -1 possibly slower, 0 unchanged, "
    "1 possibly faster, 2 faster (confirmed); absent if inconclusive, see pvebench_verdict_cases.",
)
CHANGE_GRADUAL = _judged(
    "change_gradual_ratio",
    "Gradual change of the level over many runs, without a step: -0.1 is gradually 10% slower; "
    "absent without a gradual change.",
)
REGRESSION = _judged(
    "regression", "1 if a confirmed regression of the case is not accepted, 0 otherwise."
)
IMPLAUSIBLE_GAIN = _judged(
    "implausible_gain", "1 if a confirmed improvement is implausible and not accepted, 0 otherwise."
)
BASELINE_IOPS = _gauge(
    RESULT, "baseline_iops", "Baseline of the case, in I/O operations per second."
)
BASELINE_LATENCY = _gauge(
    (*RESULT, "percentile"),
    "baseline_latency_percentile_seconds",
    "Baseline of the case for a completion latency percentile.",
)
BASELINE_CPU = _of_case(
    "baseline_cpu_seconds_per_operation",
    "Baseline of the case for host CPU time per I/O operation.",
)
BASELINE_RUNS = _of_case("baseline_runs", "Successful runs in the baseline.")
BASELINE_START = _of_case(
    "baseline_start_timestamp_seconds",
    "Unix time of the first run of the baseline. An upgrade does not reset it; accepting a level "
    "does.",
)
# A change is one event, for any number of affected cases and metrics.
CHANGE_INFO = _gauge(
    ("change", "node", "storage", "kind", "severity", "since", "summary"),
    "change_info",
    "Open change, always 1; at most 50, the most severe first. summary: the verdict without "
    "numbers that vary with every run; since: a date; kind: level, drift, mode, "
    "bursts or implausible; severity: critical, warning, or info for an improvement. "
    "A change keeps its ID, also in pvebench_closed_change_info.",
)
CHANGE_CASES = _of_change("change_cases", "Number of cases that a change affects.")
CHANGE_CASE = _gauge(
    ("change", "node", "scenario", "workload"),
    "change_case_info",
    "Cases that a change of pvebench_change_info affects, always 1.",
)
CHANGE_EFFECT = _of_change(
    "change_effect_ratio",
    "Effect of a change on the first metric of its summary, as a ratio; positive is better.",
)
CHANGE_EFFECT_LOW = _of_change(
    "change_effect_low_ratio", "Lower bound of the effect's 95% confidence interval."
)
CHANGE_EFFECT_HIGH = _of_change(
    "change_effect_high_ratio", "Upper bound of the effect's 95% confidence interval."
)
CHANGE_CONFIDENCE = _of_change(
    "change_confidence_ratio",
    "Confidence that a change is not noise: 1 minus the p-value of its most significant metric.",
)
CHANGE_SINCE = _of_change(
    "change_since_timestamp_seconds",
    "Unix time when a change began: that of its likely cause, or of the first run after it.",
)
CHANGES = _gauge(
    ("severity",),
    "changes",
    "Number of open changes, including those beyond the 50 of pvebench_change_info; 0 if there "
    "are none.",
)
CLOSED_CHANGE_INFO = _gauge(
    ("change", "node", "storage", "kind", "metric", "state", "since", "until", "cause", "summary"),
    "closed_change_info",
    "Change that is no longer open, always 1; at most the 100 that began last. Labels as of "
    "pvebench_change_info, and metric: that of the effect; state: resolved or accepted; until: a "
    "date, empty without an end; cause: likely cause, empty if unknown.",
)
CLOSED_CHANGE_CASES = _of_change(
    "closed_change_cases", "Number of cases that a closed change affected."
)
CLOSED_CHANGE_EFFECT = _of_change(
    "closed_change_effect_ratio",
    "Effect of a closed change on the first metric of its summary, as a ratio; positive is better.",
)
CLOSED_CHANGE_BEGIN = _of_change(
    "closed_change_begin_timestamp_seconds", "Unix time when a closed change began."
)
CLOSED_CHANGE_END = _of_change(
    "closed_change_end_timestamp_seconds",
    "Unix time when later changes had taken back more than half of a closed change; absent if it "
    "was accepted or is no longer confirmed.",
)
VERDICT_INFO = _gauge(
    ("state", "headline", "summary"),
    "verdict_info",
    "Overall verdict, always 1; headline: up to 60 characters; summary: one sentence; state: "
    "regression, ok, partial if some metrics are inconclusive, or inconclusive.",
)
VERDICT_CASES = _gauge(
    ("node", "storage", "state"),
    "verdict_cases",
    "Metrics of cases by verdict: unchanged, possibly_slower, slower, gradually_slower, "
    "possibly_faster, faster, gradually_faster, implausible, and inconclusive with too few runs or "
    "too much noise to rule out a change.",
)
VERDICT_TIMESTAMP = _single(
    "verdict_timestamp_seconds", "Unix time of the latest run that the verdicts include."
)
PERFORMANCE_INDEX = _gauge(
    ("node", "storage", "environment"),
    "performance_index_ratio",
    "Throughput in this environment as a ratio of the baseline, geometric mean over the cases of "
    "the storage: 1 is the baseline, 0.9 is 10% slower.",
)
GATE_EXIT_CODE = _of_node(
    "gate_exit_code",
    "Result of `pvebench gate` for an upgraded node: 0 go on, 1 stop, 10 undecided; for 30 days "
    "after the start of a new environment.",
)
GATE_LOSS = _gauge(
    ("node", "group"),
    "gate_loss_ratio",
    "Throughput lost since the upgrade, as a ratio, for all cases and each group of cases that "
    "`pvebench gate` lists; absent with too few runs.",
)
GATE_LOSS_LOW = _gauge(
    ("node", "group"),
    "gate_loss_low_ratio",
    "Lower bound of the loss, valid at every look: above the tolerance, the gate stops.",
)
GATE_LOSS_HIGH = _gauge(
    ("node", "group"),
    "gate_loss_high_ratio",
    "Upper bound of the loss, valid at every look: with all below the tolerance, the gate passes.",
)
WALL_SLOT = _gauge(
    ("slot", "title", "node", "scenario", "workload", "direction", "figure"),
    "wall_slot_info",
    "Results on the wall dashboard, always 1; figure: iops or bandwidth.",
)
# --- live ---
BUILD_INFO = _gauge(("version", "python_version"), "build_info", "Version of pvebench, always 1.")
SCHEDULER_STATE = _gauge(
    ("node", "state"),
    "scheduler_state",
    "1 for the current scheduler state: idle, reconfiguring, warmup, running, collecting, paused "
    "or error; 0 for the others.",
)
SCHEDULER_PROGRESS = _of_node(
    "scheduler_progress_timestamp_seconds", "Unix time of the scheduler's last completed step."
)
QUEUE_LENGTH = _of_node("queue_length", "Remaining cases in the current cycle.")
CYCLE_PROGRESS = _of_node("cycle_progress_ratio", "Completed share of the current cycle.")
CYCLE_START = _of_node("cycle_start_timestamp_seconds", "Unix time when the cycle started.")
CYCLE_EXPECTED_END = _of_node(
    "cycle_expected_end_timestamp_seconds", "Expected Unix time of the cycle's end."
)
NEXT_RUN = _gauge(
    ("node", "storage", "title"),
    "next_run_timestamp_seconds",
    "Expected Unix time of the next run; title: description of its workload.",
)
CURRENT_RUN = _gauge(
    ("node", "storage", "title"),
    "current_run_info",
    "Currently running case, always 1; title: description of its workload.",
)
HOLD = _gauge(
    ("node", "reason"),
    "scheduler_hold",
    "Reason why the next case is waiting, always 1: paused, quiet_hours, busy, load or turn; "
    "absent if it is not waiting.",
)
PENDING_INFO = _gauge(
    ("node", "fact", "version"),
    "environment_pending_info",
    "Software that is installed on the node but not running yet, always 1.",
)
API_REQUESTS = _counter(
    ("node", "operation"),
    "pve_api_requests",
    "Requests to the node's Proxmox API since the exporter started: get, post, put, delete.",
)
API_FAILURES = _counter(
    ("node", "operation"),
    "pve_api_request_failures",
    "Failed requests to the node's Proxmox API: no response, no permission or a server error.",
)
API_TASKS = _counter(
    NODE,
    "pve_tasks",
    "Tasks that pvebench started on the Proxmox node since the exporter started. A node keeps "
    "about 1,200.",
)
STORAGE_INFO = _gauge(
    ("node", "storage", "type", "shared"),
    "storage_info",
    "Storage that packs can use, always 1. type: its type; shared: whether nodes share its disks.",
)
DAY_WRITTEN = _of_storage(
    "day_written_bytes",
    "Bytes written to test disks from the node in the last 24 hours, fills included.",
)
DAY_PLANNED = _of_storage(
    "planned_day_write_bytes",
    "Expected bytes written in 24 hours: as the newest runs wrote, else the plan's upper limit.",
)
DRIVE_WEAR = _of_storage(
    "drive_wear_ratio",
    "Used share of the rated endurance of the storage's most worn drive; may exceed 1.",
)
YEAR_WEAR = _of_storage(
    "planned_year_wear_ratio",
    "Share of a drive's rated endurance that pvebench uses in a year, from the drive's counters.",
)
WRITE_BUDGET = _of_storage(
    "write_budget_bytes", "Write budget of the storage for 24 hours, in bytes."
)
BUDGET_USED = _of_storage(
    "write_budget_used_ratio",
    "Used share of the write budget for 24 hours; for a shared storage, by all nodes together.",
)
STORAGE_FREE = _of_storage("storage_free_bytes", "Free bytes at the last check of the storage.")
STORAGE_FLOOR = _of_storage("storage_min_free_bytes", "Bytes that must stay free on the storage.")
CONFIG_INFO = _gauge(
    ("digest", "packs"),
    "config_info",
    "Active settings and packs, always 1; digest: digest of their files.",
)
CONFIG_RELOAD_SUCCESS = _single(
    "config_last_reload_successful",
    "1 if the settings on disk are active, 0 after a failed reload.",
)
CONFIG_RELOAD_TIMESTAMP = _single(
    "config_last_reload_success_timestamp_seconds",
    "Unix time when the active settings were loaded.",
)
NOTIFICATIONS_QUEUED = _gauge(
    ("receiver",), "notifications_queued", "Queued notifications for a receiver of `notify`."
)
NOTIFICATIONS_SENT = _counter(("receiver",), "notifications_sent", "Sent notifications.")
NOTIFICATIONS_DROPPED = _counter(
    ("receiver",),
    "notifications_dropped",
    "Dropped notifications: repeatedly rejected, or more than 100 queued.",
)
NOTIFICATION_FAILURES = _counter(
    ("receiver",), "notification_failures", "Failed delivery attempts."
)
NOTIFICATION_SUCCESS = _gauge(
    ("receiver",),
    "notification_success_timestamp_seconds",
    "Unix time of the last successful delivery.",
)
WEB_INFO = _gauge(
    ("url",),
    "web_info",
    "Address of the web UI (`external_url`, otherwise the listen address), always 1; alerts link "
    "to it.",
)
EXPOSITION_TIMESTAMP = _single(
    "exposition_timestamp_seconds",
    "Unix time of this exposition; `pvebench doctor` looks for it in Prometheus and Grafana.",
)
DATABASE_SIZE = _single("database_size_bytes", "Size of the results database.")
COLLECTOR_SUCCESS = _gauge(
    ("collector",), "collector_success", "1 if the collector succeeded, 0 otherwise."
)
COLLECTOR_DURATION = _gauge(
    ("collector",), "collector_duration_seconds", "Duration of the collector's last run."
)

CATALOG: Final[dict[str, Metric]] = {metric.name: metric for metric in _metrics}
