"""Execution of one job in the guest, with measurements from outside."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

from pvebench.errors import DriverError, Interrupted, ToolFailed, ToolStuck, WorkloadError
from pvebench.model.disk import option_text
from pvebench.model.guest import Completed, Guest, Question
from pvebench.model.ports import Site
from pvebench.model.scenario import Scenario
from pvebench.model.status import Phase
from pvebench.model.volume import Attachment, IdentityRecords, change, is_same, show
from pvebench.runner.window import Activity, Mark, Window
from pvebench.workloads import Job
from pvebench.workloads.fault_dip import QUIET_SHARE
from pvebench.workloads.tool import CPU_LOG

# --- comparison of the requested and the effective disk


class Invalid(Exception):  # an outcome, not an error
    """Run that does not measure its case."""


def mismatch(scenario: Scenario, attachment: Attachment) -> str:
    """Return the differences of the scenario and the read-back, or an empty string.

    An option that was not read back is a difference, unless the driver lists it as unverified.
    Unset options may have any value.
    """
    disk = scenario.disk
    requested = {
        key: option_text(getattr(disk, key))
        for key in disk.__dataclass_fields__
        if key not in attachment.unverified and getattr(disk, key) is not None
    }
    requested["size_bytes"] = str(scenario.volume_bytes)
    differences = [
        f"{key}: requested {value}, found {attachment.effective.get(key) or 'nothing'}"
        for key, value in requested.items()
        if attachment.effective.get(key) != value
    ]
    return "; ".join(differences)


def check_identity(
    site: Site, storage: str, records: IdentityRecords, evidence: MutableMapping[str, str]
) -> None:
    """Compare a storage's identity with the recorded one; record it at the first run.

    Raises:
        Invalid: it is another storage. DriverError: it is missing. StoreError.
    """
    now = site.storages.identify(storage)
    evidence["storage_identity"] = show(now)
    was = records.recorded(site.node, storage)
    if was is None:
        if now:
            records.record(site.node, storage, now)
    elif not is_same(was, now):
        raise Invalid(change(storage, was, now))


# --- diagnosis of a tool that does not end
#
# I/O in flight in the guest that QEMU has completed is a lost interrupt; I/O that QEMU has not
# completed hangs below QEMU; a tool that sleeps without any I/O waits for something else.

MAX_REPORT_BYTES: Final = 64 * 1024
"""Maximum length; the least interesting and longest part comes last and is truncated."""
_SECONDS: Final = 10.0
"""Time limit of the guest's report."""
_ASK: Final = """\
part() { echo; echo "== $1"; shift; "$@" 2>&1 | head -c "$most"; }
in_flight() { grep -H . /sys/block/*/inflight; }
family() {
    echo "$1"
    for child in $(cat /proc/"$1"/task/*/children); do family "$child"; done
}
tasks() {
    for pid in $(family "$1" | head -n 40); do
        for task in /proc/"$pid"/task/*; do
            echo "-- ${task#/proc/}: $(cat "$task/comm") $(cat "$task/wchan")"
            grep -E '^(State|PPid|SigPnd|ShdPnd|.*ctxt_switches)' "$task/status"
            cat "$task/stack"
        done
    done
}
kernel_log() { [ -e /lib/modules/load.list ] && dmesg | tail -n 80 | tail -c 8000; }
most=2000 part 'in flight, reads and writes (/sys/block/*/inflight)' in_flight
most=16000 part 'the tool and what it started' tasks "$0"
most=8000 part 'end of the kernel log' kernel_log
most=16000 part interrupts cat /proc/interrupts
"""
"""Script for /bin/sh; `$0` is the tool's pid.

It reads no command lines, because reading those of a hung process can block. It reads the kernel
log only in the benchmark guest: that of a host (bus `host`) must not be published.
"""

_STATE: Final = Question("state", ("/bin/sh", "-c", _ASK))
_KILL: Final = Question("kill", ("/bin/kill",))
_DROP_CACHE: Final = Question(
    "drop-cache", ("/bin/sh", "-c", "sync && echo 3 >/proc/sys/vm/drop_caches")
)


def stuck_tool_report(site: Site, guest: Guest, pid: int) -> str:
    """Return the state of guest and QEMU, at most MAX_REPORT_BYTES, with a note on missing parts.

    Raises:
        Interrupted: a stop was requested. Nothing else, because the caller raises its own error.
    """
    before = _text_of(lambda: _counters(site))
    guest_report = _text_of(lambda: _ask_guest(guest, pid))
    after = _text_of(lambda: _counters(site))
    parts = [f"== QEMU's counters before the guest's report\n{before}"]
    parts += [f"== QEMU's counters after the guest's report\n{after}", guest_report.strip()]
    if statistics := _text_of(site.hypervisor.statistics):
        parts.append(f"== QEMU's statistics\n{statistics}")
    report = "\n\n".join(parts).encode("utf-8")
    return report[:MAX_REPORT_BYTES].decode("utf-8", "ignore")


def _counters(site: Site) -> str:
    counted = site.hypervisor.counters()
    return json.dumps(asdict(counted)) if counted is not None else "no I/O counters"


def _ask_guest(guest: Guest, pid: int) -> str:
    done = guest.ask(_STATE, str(pid), timeout=_SECONDS)
    return (done.stdout or done.stderr).decode("utf-8", "replace")


def _text_of(query: Callable[[], str]) -> str:
    try:
        return query()
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 # must not hide the error of the tool
        return f"not available: {type(error).__name__}: {error}"


_START_SECONDS: Final = 60.0
"""Time limit from a tool's start to its first I/O."""
_STOP_SECONDS: Final = 30.0
"""Time limit for a tool's end after a signal: its I/O must complete first."""
_LOOKS_PER_POLL: Final = 10
"""Readings of QEMU's counters per poll of the guest agent, which needs CPU of the guest."""
_STDERR_BYTES: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Raw output and measured window of a successful job.

    Attributes:
        activity: of the tool, as seen from outside.
        notes: notes for the reader of the run.
    """

    output: str
    logs: dict[str, str]
    start: Mark
    end: Mark
    activity: Activity
    notes: tuple[str, ...] = ()


def run_job(
    site: Site,
    guest: Guest,
    job: Job,
    window: Window,
    *,
    report: Callable[[Phase, float], None],
    prepared: Callable[[], None] = lambda: None,
) -> Measured:
    """Run `job` detached, mark both ends of the measured window, read the output.

    Args:
        prepared: called after all preparations, just before the start of the tool.

    Raises:
        Invalid: `prepared` found that the run would not count.
        ToolFailed: the job ended with an error.
        ToolStuck: it did not end within its deadline.
    """
    _prepare(guest, job)
    try:
        for argv in job.prepare:
            finish_in_time(site, guest, job, guest.start(list(argv)))
        notes = _drop_guest_cache(guest) if job.drop_guest_cache else ()
        prepared()
        before = guest.cpu_counters()
        if job.timed:
            measured = _watch_window(site, guest, job, window, report)
        else:
            measured = _watch_whole(site, guest, job, report)
        if before and (after := guest.cpu_counters()):
            measured.logs[CPU_LOG] = f"{before}\n{after}\n"
    except (WorkloadError, Invalid):
        _clean_up(guest, job)
        raise
    _clean_up(guest, job)
    return replace(measured, notes=notes)


def _watch_window(
    site: Site, guest: Guest, job: Job, window: Window, report: Callable[[Phase, float], None]
) -> Measured:
    """Measure a window within the job.

    It starts after the first I/O that QEMU sees and the ramp, so that the tool's own start-up,
    which takes seconds under emulation, is not counted as load.
    """
    pid = guest.start(job.argv)
    begun = site.clock.monotonic()
    deadline = begun + job.deadline_seconds
    report(Phase.RAMP, window.ramp_seconds)
    activity = Activity(begun, begun)
    ended = wait_for_io(site, guest, pid, activity, window.depth) if job.moves_data else None
    if ended is None:
        start, ended = _end_of_ramp(site, guest, pid, window, activity, deadline)
        report(Phase.MEASURE, window.runtime_seconds)
        wait = window.wait or site.clock.sleep
        wait(activity.marked + QUIET_SHARE * window.runtime_seconds - site.clock.monotonic())
        window.disturb()
        wait(activity.marked + window.runtime_seconds - site.clock.monotonic())
        end = _mark(site)
        window.ended()
    else:
        start = end = _mark(site)  # without any I/O there is no window
    report(Phase.COLLECT, 0.0)
    ended = ended or wait_for_end(site, guest, pid, deadline=deadline)
    activity.last = site.clock.monotonic()
    with suppress(DriverError):  # the tool's result counts without it
        counted = site.hypervisor.counters() if window.uncached else None
        activity.last = site.clock.monotonic() - (counted.idle_seconds if counted else 0.0)
    output, logs = finish_job(guest, job, ended), read_logs(guest, job)
    return Measured(output=output, logs=logs, start=start, end=end, activity=activity)


def _mark(site: Site) -> Mark:
    return Mark(site.probe.snapshot(), site.hypervisor.counters())


def _end_of_ramp(
    site: Site, guest: Guest, pid: int, window: Window, activity: Activity, deadline: float
) -> tuple[Mark, Completed | None]:
    """Return the start of the window, and the tool's result if it ended without I/O after the ramp.

    A tool ends its ramp with the first I/O after the planned time: later, if the storage stalls.
    """
    clock = site.clock
    due = max(clock.monotonic(), activity.quiet + window.ramp_seconds)
    clock.sleep(due - clock.monotonic())
    planned = mark = _mark(site)
    at_planned = at = clock.monotonic()
    looks, ended = 0, None
    while window.uncached and window.ramp_seconds and mark.block and at < deadline and not ended:
        activity.marked = at
        clock.sleep(site.poll_seconds)
        after, at, looks = _mark(site), clock.monotonic(), looks + 1
        if after.block is None or after.block.operations != mark.block.operations:
            activity.lag = max(at_planned - due, at - activity.marked)
            return mark, None
        mark, ended = after, None if looks % _LOOKS_PER_POLL else guest.poll(pid)
    activity.marked, activity.lag = at_planned, at_planned - due
    return planned, ended


def _watch_whole(
    site: Site, guest: Guest, job: Job, report: Callable[[Phase, float], None]
) -> Measured:
    """Measure a job from its start to its end: its duration is part of its result."""
    start = _mark(site)
    report(Phase.MEASURE, 0.0)
    begun = site.clock.monotonic()
    deadline = begun + job.deadline_seconds
    ended = wait_for_end(site, guest, guest.start(job.argv), deadline=deadline)
    activity = Activity(begun, site.clock.monotonic())
    end = _mark(site)
    report(Phase.COLLECT, 0.0)
    output, logs = finish_job(guest, job, ended), read_logs(guest, job)
    return Measured(output=output, logs=logs, start=start, end=end, activity=activity)


def _drop_guest_cache(guest: Guest) -> tuple[str, ...]:
    """Drop the guest's page cache. Return a note if this failed."""
    done = guest.ask(_DROP_CACHE, timeout=120.0)
    return ("page cache of the tool's system not dropped: no permission",) * bool(done.exit_code)


def _clean_up(guest: Guest, job: Job) -> None:
    if job.cleanup:
        guest.run(list(job.cleanup), timeout=120.0)


def stop_job(site: Site, guest: Guest, pid: int) -> None:
    """End an endless job; its output is not used. Raises ToolStuck: it does not end."""
    guest.ask(_KILL, str(pid))
    wait_for_end(site, guest, pid, deadline=site.clock.monotonic() + _STOP_SECONDS)


def start_job(guest: Guest, job: Job) -> int:
    """Write the job's files into an empty work directory and start it; return its pid."""
    _prepare(guest, job)
    return guest.start(job.argv)


def _prepare(guest: Guest, job: Job) -> None:
    guest.prepare_job(job.work, job.files, (job.output, *job.logs))


def wait_for_io(
    site: Site, guest: Guest, pid: int, activity: Activity | None = None, depth: int = 1
) -> Completed | None:
    """Wait for the first I/O. Return the tool's result if it ends first, else None.

    Without I/O counters, do not wait. They count operations that have ended: what took longer than
    all that `depth` allows since the last look began before it.

    Raises:
        ToolStuck: no I/O within the time limit.
    """
    before = site.hypervisor.counters()
    if before is None:
        return None
    begun, looks = site.clock.monotonic(), 0
    while site.clock.monotonic() < begun + _START_SECONDS:
        site.clock.sleep(site.poll_seconds)
        at = site.clock.monotonic()
        now = site.hypervisor.counters()
        if now is None or now.operations != before.operations:
            if activity is not None and now is not None:
                lasted = now.latency_seconds - before.latency_seconds
                if lasted > depth * (at - activity.quiet):
                    activity.quiet = max(begun, at - lasted)
            return None
        if activity is not None:
            activity.quiet = at
        looks += 1
        if looks % _LOOKS_PER_POLL == 0 and (ended := guest.poll(pid)) is not None:
            return ended
    raise ToolStuck(
        f"the tool moved no data within {_START_SECONDS:.0f} s of its start",
        evidence=stuck_tool_report(site, guest, pid),
    )


def wait_for_end(site: Site, guest: Guest, pid: int, *, deadline: float) -> Completed:
    """Wait until the tool ends; `deadline` is in the clock's monotonic seconds.

    While I/O counters change, the tool measures, and polls of the guest would take CPU from it.
    They are rare then. Over an API, counters cost a request, and the guest limits its own polls.

    Raises:
        ToolStuck: it does not.
    """
    before = None
    for look in itertools.count(1):
        now = site.hypervisor.counters() if site.traffic is None else None
        late = site.clock.monotonic() > deadline
        if now in (None, before) or late or look % _LOOKS_PER_POLL == 0:
            ended = guest.poll(pid)
            if ended is not None:
                return ended
        if late:
            break
        before = now
        site.clock.sleep(site.poll_seconds)
    raise ToolStuck(
        "the tool did not end within its deadline",
        cause="the guest is blocked on I/O, or this host is overloaded",
        evidence=stuck_tool_report(site, guest, pid),
    )


def finish_in_time(site: Site, guest: Guest, job: Job, pid: int) -> str:
    """Return the raw output of a job, or of a part of it, that just began. Raises as its parts."""
    deadline = site.clock.monotonic() + job.deadline_seconds
    return finish_job(guest, job, wait_for_end(site, guest, pid, deadline=deadline))


def finish_job(guest: Guest, job: Job, ended: Completed) -> str:
    """Return the job's raw output.

    Raises:
        ToolFailed: the job ended with an error; its stderr and output are the evidence.
    """
    output = (ended.stderr or ended.stdout)[-_STDERR_BYTES:].decode("utf-8", "replace").strip()
    if ended.exit_code:
        # Some tools write errors to their result file; fio does before its JSON.
        written = b"" if output else guest.read_file(job.output)
        written = written.partition(b"{\n")[0].strip() or written
        output = output or written[-_STDERR_BYTES:].decode("utf-8", "replace")
        last = output.strip().splitlines()[-1] if output.strip() else "no output"
        raise ToolFailed(
            f"{job.argv[0]} ended with status {ended.exit_code}: {last}", evidence=output
        )
    return guest.read_file(job.output).decode("utf-8", "replace")


def read_logs(guest: Guest, job: Job) -> dict[str, str]:
    """Return the job's logs by file name; unwritten ones are absent."""
    logs = {}
    for path in job.logs:
        if guest.has_file(path):
            logs[path.rpartition("/")[2]] = guest.read_file(path).decode("utf-8", "replace")
    return logs
