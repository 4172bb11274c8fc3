"""Every metric of pvebench: name, type, labels, help. The only place where names are spelled.

Collectors, docs/metrics.md and the dashboards take names from here. Names and labels follow
the Prometheus conventions: base units, `_info` for facts, `_timestamp_seconds` for times,
`_total` for counters; no label changes with every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pvebench.model.disk import DISK_OPTIONS, LAYOUT_OPTIONS

Kind = Literal["gauge", "counter", "histogram"]

NODE: Final = ("node",)
SCENARIO: Final = ("node", "storage", "bus", "cache", "format", "scenario")
CASE: Final = (*SCENARIO, "workload")
RESULT: Final = (*CASE, "direction")
JUDGED: Final = (*RESULT, "metric")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    A counter's `name` is without `_total`, a histogram's without `_bucket`, as the client library
    wants; a histogram's label `le` goes without saying.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def exposed(self) -> str:
        """The series' name as Prometheus stores it."""
        suffix = {"counter": "_total", "histogram": "_bucket"}.get(self.kind, "")
        return f"{self.name}{suffix}"


_metrics: list[Metric] = []


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    _metrics.append(Metric(f"pvebench_{name}", "gauge", labels, text))
    return _metrics[-1]


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    _metrics.append(Metric(f"pvebench_{name}", "counter", labels, text))
    return _metrics[-1]


def _histogram(name: str, labels: tuple[str, ...], text: str) -> Metric:
    _metrics.append(Metric(f"pvebench_{name}", "histogram", labels, text))
    return _metrics[-1]


# --- what the results are about ---
SCENARIO_INFO = _gauge(
    "scenario_info",
    (
        *SCENARIO,
        *(name for name in DISK_OPTIONS if name not in SCENARIO),
        *LAYOUT_OPTIONS,
        "cpus",
        "memory_bytes",
        "volume_bytes",
        "host_cache",
        "configuration",
        "disk",
    ),
    "Options of a scenario, always 1; an option that older results did not know is empty. "
    "host_cache: warm means that reads may come from the page cache of earlier runs. "
    "configuration: description with unusual options first, without the storage; disk: the same "
    "without the cache mode.",
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
    "Definition of a workload, always 1; caveats: what its numbers measure besides the disk; "
    "description: such as 4k random read, depth 32.",
)
NODE_INFO = _gauge(
    "node_info",
    ("node", "cpu_model", "microcode", "cpus", "governor"),
    "Hardware of the node as the newest results found it, always 1.",
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
    "Software and hardware that the newest results of a node were measured with, always 1.",
)
ENVIRONMENT_START = _gauge(
    "environment_start_timestamp_seconds",
    ("node", "environment", "pve_version", "kernel_version", "qemu_version"),
    "Start of the first good run in the newest episode of an environment; the last 20 episodes "
    "of each node.",
)
ENVIRONMENT_END = _gauge(
    "environment_end_timestamp_seconds",
    ("node", "environment", "pve_version", "kernel_version", "qemu_version"),
    "End of the last good run in the newest episode of an environment.",
)
ENVIRONMENT_CHANGE = _gauge(
    "environment_change_info",
    ("node", "environment", "fact", "before", "after"),
    "What was another one in an episode than before it, always 1; the last 20 episodes "
    "of each node. When it began is in pvebench_environment_start_timestamp_seconds.",
)
# --- results ---
IOPS = _gauge("iops", RESULT, "I/O operations per second, mean of the last good run (fio iops).")
BANDWIDTH = _gauge(
    "bandwidth_bytes_per_second",
    RESULT,
    "Bytes per second, mean of the last good run (fio bw_bytes).",
)
LATENCY_MEAN = _gauge("latency_mean_seconds", RESULT, "Mean completion latency (fio clat_ns.mean).")
LATENCY_MAX = _gauge("latency_max_seconds", RESULT, "Longest completion latency (fio clat_ns.max).")
LATENCY_PERCENTILE = _gauge(
    "latency_percentile_seconds",
    (*RESULT, "percentile"),
    "Completion latency percentile (fio clat_ns.percentile).",
)
LATENCY = _histogram(
    "latency_seconds",
    RESULT,
    "Completion latencies of all good runs so far, of workloads with histogram: true (fio "
    "clat_ns.bins). Buckets are equal everywhere, so they add up over cases and nodes.",
)
SYNC_LATENCY_PERCENTILE = _gauge(
    "fsync_latency_percentile_seconds",
    (*CASE, "percentile"),
    "Latency percentile of fsync and fdatasync calls (fio sync.lat_ns), sync workloads only.",
)
VARIATION = _gauge(
    "iops_variation_ratio",
    RESULT,
    "Standard deviation over mean of the per-interval IOPS within the last good run.",
)
SLOPE = _gauge(
    "iops_slope_ratio",
    RESULT,
    "How much the rate still rose or fell over the measured window of the last good run, by a "
    "fitted line, as ratio of its mean.",
)
STEADY_TIME = _gauge(
    "steady_seconds",
    CASE,
    "How long the workload ran before it was steady; only where the pack waits for that.",
)
STEADY_SLOPE = _gauge(
    "steady_slope_ratio",
    CASE,
    "Slope that was left when the wait for steadiness ended: rise or fall of the fitted line "
    "over its window, as ratio of the mean.",
)
BOOT_TIME = _gauge(
    "guest_boot_seconds",
    CASE,
    "From power-on of the guest to its agent's first answer (workload boot).",
)
HOST_CPU = _gauge(
    "host_cpu_usage_cores",
    (*CASE, "component"),
    "Host CPU in use during the measured window, in cores: total of the host, its modes where "
    "node_exporter tells them, the qemu process, and of qemu its vcpu, iothread and other threads; "
    "container: the control group of a container (bus lxc); "
    "total_coarse is the Proxmox API's own figure for nodes without node_exporter.",
)
LATENCY_DEPTH = _gauge(
    "latency_target_depth",
    CASE,
    "Operations in flight at which fio kept the workload's latency_target; pvebench_iops is the "
    "rate at that depth.",
)
HOST_PRESSURE = _gauge(
    "host_pressure_ratio",
    (*CASE, "resource"),
    "Share of the measured window in which tasks of the host waited (Linux PSI): cpu_some, "
    "io_some, io_full, memory_some, memory_full of nodes with node_exporter or ssh; vm_io_some … "
    "of the VM alone at the window's end (Proxmox VE 9).",
)
HOST_SWITCHES = _gauge(
    "host_context_switches_per_second", CASE, "Context switches of the host in the measured window."
)
VM_EXITS = _gauge(
    "vm_exits_per_operation",
    CASE,
    "How often the VM left its CPUs for KVM in the measured window, for each operation that QEMU "
    "counted; where KVM runs it and debugfs tells: of nodes with ssh, and in the lab as root.",
)
HOST_BYTES = _gauge(
    "host_io_bytes",
    (*CASE, "counter"),
    "Bytes moved on the host in the measured window: process_read and process_write by QEMU, "
    "device_read and device_write by the backing block device, or between a mounted NFS or CIFS "
    "and its server.",
)
GUEST_CPU = _gauge(
    "guest_cpu_usage_ratio",
    (*CASE, "mode"),
    "CPU of the tool in the guest, user and system, as ratio of one CPU (fio usr_cpu, sys_cpu).",
)
DEVICE_SHARE = _gauge(
    "device_share_ratio",
    RESULT,
    "Bytes that reached the backing device, or a mounted NFS' or CIFS' server, over bytes that the "
    "guest moved: 1 from there, 0 from a cache; above 1 with the format's own data or read-ahead.",
)
FLUSH_SHARE = _gauge(
    "flush_share_ratio", CASE, "Flushes that QEMU saw over flushes that the guest's tool issued."
)
GUEST_TO_HOST = _gauge(
    "guest_to_host_ratio",
    RESULT,
    "Rate of the guest, or of the container, over the host's own with the same workload on the "
    "same storage: 1 means that it costs nothing.",
)
NETWORK_SHARE = _gauge(
    "network_share_ratio",
    RESULT,
    "Bandwidth over what the link to the storage's server carries, where the settings declare it.",
)
NETWORK_ROUND_TRIP = _gauge(
    "network_round_trip_seconds",
    CASE,
    "Time to open a TCP connection from the host to the storage's server just before the run: the "
    "part of a latency that is the network's.",
)
FAULT_TIME = _gauge(
    "fault_seconds",
    CASE,
    "How long the fault lasted that the storage's settings name and pvebench made during the run.",
)
FAULT_DIP = _gauge(
    "fault_dip_ratio",
    CASE,
    "Share of the rate before a fault that was missing at its lowest; 1: nothing went through.",
)
FAULT_DIP_TIME = _gauge(
    "fault_dip_seconds", CASE, "How long the rate was below half of that before the fault."
)
FAULT_RECOVERY = _gauge(
    "fault_recovery_seconds",
    CASE,
    "From the begin of the dip to the first of three intervals with 80 % of the rate before, the "
    "fault's own time included; absent if the window ended before.",
)
FAULT_ERRORS = _gauge("fault_errors", CASE, "I/O errors that the guest saw, in the whole run.")
PASS_TO_FIRST = _gauge(
    "pass_to_first_ratio",
    RESULT,
    "Rate of the last good run over that of the first run in its cycle, where the pack repeats "
    "its cases: above 1 where a cache of the storage has warmed up.",
)
GUEST_CPU_WAIT = _gauge(
    "guest_cpu_wait_cores",
    CASE,
    "How many of the guest's CPUs, on average, were ready to run but waited for one of the host.",
)
# --- settings against each other ---
SCENARIO_RANK_INFO = _gauge(
    "scenario_rank_info",
    (*CASE, "rank", "excluded"),
    "Rank of a configuration for its workload and storage, always 1. rank: fastest, equal (within "
    "the noise of both), slower, or unknown while either has too few runs; excluded: why it is not "
    "ranked (not_durable, warm, host, lxc), or empty.",
)
SCENARIO_GAP = _gauge(
    "scenario_gap_ratio",
    CASE,
    "How far a setting's level is from that of the fastest one that competes: -0.18 is 18 % less.",
)
SCENARIO_GAP_NOISE = _gauge(
    "scenario_gap_noise_ratio",
    CASE,
    "Half width of the interval of that distance; absent while it is unknown.",
)
# --- runs ---
RUN_TIMESTAMP = _gauge(
    "run_timestamp_seconds", CASE, "End of the last good run, the one whose values are shown."
)
RUN_ATTEMPT_TIMESTAMP = _gauge(
    "run_attempt_timestamp_seconds", CASE, "End of the last attempt, good or not."
)
RUN_DURATION = _gauge(
    "run_duration_seconds", CASE, "Wall time of the last attempt, switching and settling included."
)
RUN_SUCCESS = _gauge("run_success", CASE, "Whether the last attempt gave a good run.")
RUN_IMPLAUSIBLE = _gauge(
    "run_implausible",
    (*CASE, "reason"),
    "1 for each reason why the last attempt is implausible: rate, size, cpu, device_share, "
    "flush_share, beats_host, beats_network, guest_starved, not_filled.",
)
RUNS = _counter("runs", (*CASE, "outcome"), "Finished runs by outcome.")
SCHEDULE_INTERVAL = _gauge(
    "schedule_interval_seconds", CASE, "How often the pack wants this case to run."
)
MOVED_BYTES = _counter(
    "moved_bytes",
    ("node", "storage", "direction"),
    "Bytes that workloads read, wrote or trimmed in measured windows, since the first run.",
)
CYCLES = _counter("cycles", ("node", "tier"), "Cycles that went through to their end.")
RESULTS = _gauge("results", (), "Runs in the database.")
# --- verdicts ---
# `metric` is what is judged: throughput, latency_p99, longest_stall, cpu_cost, idle_cost or
# boot_time; `direction` is empty where the figure is not of one direction.
CHANGE = _gauge(
    "change_ratio",
    JUDGED,
    "How far the present level is from the baseline, as ratio of it; plus is better, whatever the "
    "metric: 0.1 is a tenth faster, or a tenth less latency or CPU.",
)
CHANGE_THRESHOLD = _gauge(
    "change_threshold_ratio",
    JUDGED,
    "Half width of the 95 % interval of the change: a smaller change is noise.",
)
CHANGE_STATE = _gauge(
    "change_state",
    JUDGED,
    "Verdict against the baseline: -2 worse (confirmed), -1 maybe worse, 0 same, 1 maybe better, "
    "2 better (confirmed); absent where there is none, see pvebench_verdict_cases.",
)
CHANGE_GRADUAL = _gauge(
    "change_gradual_ratio",
    JUDGED,
    "How far the level has crept over many runs, with no step to be seen: -0.1 is slowly a tenth "
    "slower; absent where it does not creep.",
)
REGRESSION = _gauge(
    "regression", JUDGED, "Whether the case is confirmed worse and nobody has acknowledged it."
)
IMPLAUSIBLE_GAIN = _gauge(
    "implausible_gain",
    JUDGED,
    "Whether a confirmed gain is too good to be true: an alarm, not a win, until acknowledged.",
)
BASELINE_IOPS = _gauge(
    "baseline_iops", RESULT, "I/O operations per second that the case is compared with."
)
BASELINE_LATENCY = _gauge(
    "baseline_latency_percentile_seconds",
    (*RESULT, "percentile"),
    "Completion latency percentile that the case is compared with.",
)
BASELINE_CPU = _gauge(
    "baseline_cpu_seconds_per_operation",
    CASE,
    "Host CPU time per I/O operation that the case is compared with.",
)
BASELINE_RUNS = _gauge("baseline_runs", CASE, "Good runs that make the baseline.")
BASELINE_START = _gauge(
    "baseline_start_timestamp_seconds",
    CASE,
    "End of the first run of the baseline; an upgrade does not reset it, accepting one does.",
)
# A change is one thing that happened, whatever the number of cases and figures it moved.
CHANGE_INFO = _gauge(
    "change_info",
    ("change", "node", "storage", "kind", "severity", "since", "summary"),
    "A change that lasts and that nobody has accepted, always 1: at most 50, the weightiest "
    "first. summary is the sentence of the verdict without what is another with every run, since "
    "a date; kind: slower, stall, cost, operation, accounting, implausible or faster; severity: "
    "critical, warning, or info where it is for the better. Its id stays while it is open.",
)
CHANGE_CASES = _gauge("change_cases", ("change",), "Cases that a change has moved.")
CHANGE_CASE = _gauge(
    "change_case_info",
    ("change", "node", "scenario", "workload"),
    "Which cases a change of pvebench_change_info has moved, always 1.",
)
CHANGE_EFFECT = _gauge(
    "change_effect_ratio",
    ("change",),
    "By how much a change has moved the first figure that it is told by; plus is better.",
)
CHANGE_EFFECT_LOW = _gauge(
    "change_effect_low_ratio", ("change",), "Lower end of the effect's 95 % interval."
)
CHANGE_EFFECT_HIGH = _gauge(
    "change_effect_high_ratio", ("change",), "Upper end of the effect's 95 % interval."
)
CHANGE_CONFIDENCE = _gauge(
    "change_confidence_ratio",
    ("change",),
    "How sure it is that a change is no chance: 1 less the p-value of its clearest figure.",
)
CHANGE_SINCE = _gauge(
    "change_since_timestamp_seconds",
    ("change",),
    "When a change began: the event that it came with, or the first run after it.",
)
CHANGES = _gauge(
    "changes",
    ("severity",),
    "Changes that last and that nobody has accepted, those beyond the 50 included; 0 where all "
    "that is judged is as it was.",
)
VERDICT_INFO = _gauge(
    "verdict_info",
    ("state", "summary"),
    "The verdict on everything in one sentence, always 1; state: regression, ok, partial where "
    "some cannot be told, or inconclusive.",
)
VERDICT_CASES = _gauge(
    "verdict_cases",
    ("node", "storage", "state"),
    "Judged metrics of cases by state: unchanged, possibly_slower, slower, gradually_slower, "
    "possibly_faster, faster, gradually_faster, implausible, and inconclusive if the runs are too "
    "few or vary too much to rule out a change.",
)
VERDICT_TIMESTAMP = _gauge(
    "verdict_timestamp_seconds", (), "End of the newest run that the verdicts take into account."
)
PERFORMANCE_INDEX = _gauge(
    "performance_index_ratio",
    ("node", "storage", "environment"),
    "Geometric mean over the storage's cases of their throughput in this environment, as ratio of "
    "the baseline: 1 is the baseline, 0.9 a tenth slower.",
)
WALL_SLOT = _gauge(
    "wall_slot_info",
    ("slot", "title", "node", "scenario", "workload", "direction", "figure"),
    "Which results the wall dashboard shows, always 1; figure is iops or bandwidth.",
)
# --- live ---
BUILD_INFO = _gauge("build_info", ("version", "python_version"), "Version of pvebench, always 1.")
SCHEDULER_STATE = _gauge(
    "scheduler_state",
    ("node", "state"),
    "What the scheduler does: 1 for one of idle, reconfiguring, warmup, running, collecting, "
    "paused, error.",
)
SCHEDULER_PROGRESS = _gauge(
    "scheduler_progress_timestamp_seconds", NODE, "When the scheduler last completed a step."
)
QUEUE_LENGTH = _gauge("queue_length", NODE, "Cases left in the present cycle.")
CYCLE_PROGRESS = _gauge("cycle_progress_ratio", NODE, "Share of the present cycle that is done.")
CYCLE_START = _gauge("cycle_start_timestamp_seconds", NODE, "Start of the present cycle.")
CYCLE_EXPECTED_END = _gauge(
    "cycle_expected_end_timestamp_seconds", NODE, "Expected end of the present cycle."
)
NEXT_RUN = _gauge(
    "next_run_timestamp_seconds", NODE, "When the next case is due, while the scheduler is idle."
)
CURRENT_RUN = _gauge("current_run_info", ("node", "title"), "The case that runs now, always 1.")
HOLD = _gauge(
    "scheduler_hold",
    ("node", "reason"),
    "What the next case waits for, always 1: paused, quiet_hours, busy, load or turn; absent while "
    "nothing holds it.",
)
PENDING_INFO = _gauge(
    "environment_pending_info",
    ("node", "fact", "version"),
    "Software that is installed on the node but does not run yet, always 1.",
)
API_REQUESTS = _counter(
    "pve_api_requests",
    ("node", "operation"),
    "Requests to the node's Proxmox API since the start: get, post, put, delete.",
)
API_FAILURES = _counter(
    "pve_api_request_failures",
    ("node", "operation"),
    "Requests to the node's Proxmox API that got no answer, no access, or a server in trouble.",
)
API_TASKS = _counter(
    "pve_tasks",
    ("node",),
    "Tasks that pvebench started on the Proxmox node since the start. A node keeps about 1,200.",
)
STORAGE_INFO = _gauge(
    "storage_info",
    ("node", "storage", "type", "shared"),
    "A storage that packs may name, always 1: its type, and whether nodes share its disks.",
)
MONTH_WRITTEN = _gauge(
    "month_written_bytes",
    ("node", "storage"),
    "Bytes written to test disks from the node in this calendar month (UTC), fills included.",
)
WRITE_BUDGET = _gauge(
    "write_budget_bytes", ("node", "storage"), "Bytes that may be written to the storage a month."
)
BUDGET_USED = _gauge(
    "write_budget_used_ratio",
    ("node", "storage"),
    "Share of the month's write budget that is used; of a shared storage by all nodes together.",
)
STORAGE_FREE = _gauge(
    "storage_free_bytes", ("node", "storage"), "Free bytes when the storage was last looked at."
)
STORAGE_FLOOR = _gauge(
    "storage_min_free_bytes", ("node", "storage"), "Bytes that must stay free on the storage."
)
CONFIG_INFO = _gauge(
    "config_info",
    ("digest", "packs"),
    "Settings and packs in force, always 1; the digest is of their files.",
)
CONFIG_RELOAD_SUCCESS = _gauge(
    "config_last_reload_successful",
    (),
    "Whether the settings on disk are those in force: 0 after a reload that was refused.",
)
CONFIG_RELOAD_TIMESTAMP = _gauge(
    "config_last_reload_success_timestamp_seconds", (), "When the settings in force were loaded."
)
NOTIFICATIONS_QUEUED = _gauge(
    "notifications_queued", ("receiver",), "Messages that wait for a target of `notify`."
)
NOTIFICATIONS_SENT = _counter("notifications_sent", ("receiver",), "Messages that a target took.")
NOTIFICATIONS_DROPPED = _counter(
    "notifications_dropped",
    ("receiver",),
    "Messages that were given up: refused again and again, or more than 100 waited.",
)
NOTIFICATION_FAILURES = _counter(
    "notification_failures", ("receiver",), "Attempts in vain to send a message, since the start."
)
NOTIFICATION_SUCCESS = _gauge(
    "notification_success_timestamp_seconds", ("receiver",), "When a target last took a message."
)
WEB_INFO = _gauge(
    "web_info",
    ("url",),
    "Address under which people reach the page (`external_url`, else where it listens), always 1: "
    "alerts lead there.",
)
EXPOSITION_TIMESTAMP = _gauge(
    "exposition_timestamp_seconds",
    (),
    "When this page was made; `pvebench selftest` follows it to Prometheus and Grafana.",
)
DATABASE_SIZE = _gauge("database_size_bytes", (), "Size of the results database.")
COLLECTOR_SUCCESS = _gauge(
    "collector_success",
    ("collector",),
    "Whether this part of the page could be made, and is current.",
)
COLLECTOR_DURATION = _gauge(
    "collector_duration_seconds", ("collector",), "How long this part of the page took to make."
)

CATALOG: Final[dict[str, Metric]] = {metric.name: metric for metric in _metrics}
