"""A tool's numbers are compared with what QEMU, the host and its own queue depth allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pvebench.model.consistency import PlausibilityCheck
from pvebench.model.disk import Cache
from pvebench.model.run import Sample, Unit
from pvebench.model.run_metrics import UNKNOWN, WARM
from pvebench.model.scenario import Filesystem
from pvebench.model.workload import Caveat, Direction
from pvebench.runner.plausibility import PlausibilityResult, check_run
from testing.packs import a_case

READ, WRITE, TRIM = Direction.READ, Direction.WRITE, Direction.TRIM
RATE = 4096e3


def run(
    *,
    tool: float = 1.0,
    device: float | None = 1.0,
    latency: float = 0.0009,
    io_time: float = 11.66,
    lag: float = 0.1,
    way: Direction = READ,
) -> list[Sample]:
    """Return 10 s of 1,000 operations per second of which QEMU counted all.

    `tool`: factor of the tool's numbers; `device`: share of QEMU's bytes at the device.
    """
    own = {"iops": 1000.0, "bandwidth": RATE, "bytes": 10 * RATE}
    units = {"iops": Unit.IOPS, "bandwidth": Unit.BYTES_PER_SECOND, "bytes": Unit.BYTES}
    samples = [Sample(name, way, value * tool, units[name]) for name, value in own.items()]
    samples += [
        Sample("runtime", way, 10.0, Unit.SECONDS),
        Sample("lat_mean", way, latency, Unit.SECONDS),
        Sample("lat_max", way, 0.02, Unit.SECONDS),
        Sample("window", None, 10.05, Unit.SECONDS),
        Sample("io_time", None, io_time, Unit.SECONDS),
        Sample("window_lag", None, lag, Unit.SECONDS),
        Sample("qemu_bytes", None, 10.05 * RATE, Unit.BYTES, str(way)),
    ]
    moved = 10.05 * RATE * (device or 0.0)
    at_device = Sample("host_bytes", None, moved, Unit.BYTES, f"process_{way}")
    return [*samples, *([] if device is None else [at_device])]


def failed_checks(found: PlausibilityResult) -> list[PlausibilityCheck]:
    return [one.check for one in found.implausibilities]


def warm(found: PlausibilityResult) -> list[tuple[float, str]]:
    return [(one.value, one.part) for one in found.samples if one.metric == WARM.name]


@pytest.mark.parametrize("factor", [0.2, 0.5, 0.92, 1.08, 1.5, 1.9])
@pytest.mark.parametrize(("rw", "way"), [("read", READ), ("randwrite", WRITE), ("trim", TRIM)])
def test_bytes_that_differ_from_those_of_qemu_are_implausible(
    factor: float, rw: str, way: Direction
) -> None:
    # Latencies as of fewer operations, so that the queue contradicts nothing.
    found = check_run(a_case(rw), run(tool=factor, latency=0.0005, way=way))
    assert PlausibilityCheck.QEMU_BYTES in failed_checks(found)
    assert f"the tool reports {factor:.0%} of the bytes that QEMU counted" in found.reason


def test_bytes_that_agree_with_those_of_qemu_are_plausible() -> None:
    for factor in (0.935, 1.0, 1.07):
        assert failed_checks(check_run(a_case(), run(tool=factor, latency=0.0005))) == []


def test_late_looks_matter_more_in_a_short_window() -> None:
    """Seen with real QEMU on a busy machine: 108% of the bytes in a window of three seconds."""
    kept = ("iops", "bandwidth", "lat_mean", "lat_max", "io_time")
    whole = run(tool=1.08, latency=0.0005)
    short = [one if one.metric in kept else replace(one, value=0.31 * one.value) for one in whole]
    assert failed_checks(check_run(a_case(), whole)) == [PlausibilityCheck.QEMU_BYTES]
    assert failed_checks(check_run(a_case(), short)) == []


def test_an_uneven_rate_at_a_late_window_is_no_contradiction() -> None:
    uneven = [*run(tool=1.1, lag=0.5), Sample("iops_variation", READ, 0.4, Unit.RATIO)]
    assert failed_checks(check_run(a_case(), uneven)) == []


def test_more_bytes_than_the_tool_reports_may_be_metadata_of_a_filesystem() -> None:
    case = a_case()
    layout = replace(case.scenario.layout, filesystem=Filesystem.EXT4)
    case = replace(case, scenario=replace(case.scenario, layout=layout))
    assert failed_checks(check_run(case, run(tool=0.8))) == []
    assert failed_checks(check_run(case, run(tool=1.2, latency=0.0005))) == [
        PlausibilityCheck.QEMU_BYTES
    ]


def test_a_latency_that_the_queue_cannot_hold_is_implausible() -> None:
    found = check_run(a_case(), run(latency=0.00103))
    assert failed_checks(found) == [PlausibilityCheck.LATENCY]
    assert "IOPS x mean latency = 1.03 operations in flight, more than 1" in found.reason
    assert failed_checks(check_run(a_case(), run(latency=0.00102))) == []
    assert failed_checks(check_run(a_case(iodepth=8, numjobs=2), run(latency=0.0163))) == []


@pytest.mark.parametrize("fast", [1.05, 1.5, 1.9])
def test_a_tool_that_ran_longer_than_the_host_saw_is_implausible(fast: float) -> None:
    found = check_run(a_case(), run(io_time=12 / fast + 0.2))
    assert failed_checks(found) == [PlausibilityCheck.CLOCK]
    assert "the tool reports 12 s of I/O, the host saw" in found.reason


@pytest.mark.parametrize("cache", [Cache.WRITEBACK, Cache.WRITETHROUGH, Cache.NONE])
def test_reads_that_did_not_come_from_the_device_make_a_run_warm(cache: Cache) -> None:
    found = check_run(a_case(cache=cache), run(device=0.89))
    assert failed_checks(found) == []
    assert warm(found) == [(pytest.approx(0.11, abs=0.01), "")]
    assert warm(check_run(a_case(cache=cache), run(device=0.91))) == []


def test_read_ahead_does_not_hide_repeated_reads() -> None:
    """As many bytes as were read came from the device, though 40 MB of 40 MiB were not all new."""
    cases = [a_case(cache=Cache.WRITEBACK, size=size) for size in ("40M", "800M")]
    found = [warm(check_run(case, run())) for case in cases]
    assert found == [[(pytest.approx(0.475, abs=0.01), "")], []]


def test_without_counters_of_the_device_the_warmth_of_a_cached_mode_is_unknown() -> None:
    cached = check_run(a_case(cache=Cache.WRITEBACK), run(device=None))
    assert warm(cached) == [(1.0, UNKNOWN)]
    assert warm(check_run(a_case(), run(device=None))) == []
    written = a_case("randwrite", cache=Cache.WRITEBACK)
    assert warm(check_run(written, run(device=None, way=WRITE))) == []


def test_other_programs_at_the_device_hide_the_warmth_of_a_cached_mode() -> None:
    cached = a_case(cache=Cache.WRITEBACK)
    found = [warm(check_run(cached, run(device=share))) for share in (63.5, 64.5)]
    assert found == [[], [(1.0, UNKNOWN)]]


def test_a_workload_that_measures_a_cache_is_not_called_warm() -> None:
    case = a_case(cache=Cache.WRITEBACK)
    case = replace(case, workload=replace(case.workload, caveats=(Caveat.CACHE,)))
    assert warm(check_run(case, run(device=0.1))) == []


def test_the_pauses_of_a_slow_rate_are_no_contradiction_of_the_clock() -> None:
    slow = [
        replace(one, value=1.0 if one.metric == "iops" else one.value)
        for one in run(io_time=10.9)
        if one.metric != "bandwidth"
    ]
    assert PlausibilityCheck.CLOCK not in failed_checks(check_run(a_case(), slow))
    assert failed_checks(check_run(a_case(), run(io_time=10.9))) == [PlausibilityCheck.CLOCK]


def test_jobs_with_a_rate_pause_together() -> None:
    slow = [replace(one, value=16.0) if one.metric == "iops" else one for one in run(io_time=11.1)]
    case = a_case(numjobs=16, rate_iops=16)
    assert PlausibilityCheck.CLOCK not in failed_checks(check_run(case, slow))


def test_a_job_that_writes_each_block_once_is_compared_by_its_bytes() -> None:
    own = {"iops": 2500.0, "bandwidth": 2.5 * RATE, "lat_mean": 0.0003, "runtime": 4.0}
    changes = own | {"window": 6.5, "qemu_bytes": 10 * RATE, "host_bytes": 10 * RATE}
    samples = [replace(one, value=changes.get(one.metric, one.value)) for one in run(way=WRITE)]
    assert failed_checks(check_run(a_case("randwrite", touch="first"), samples)) == []


def test_failed_operations_of_a_fault_are_no_contradiction() -> None:
    found = check_run(a_case(fault="outage"), run(latency=0.009, io_time=9.0))
    assert failed_checks(found) == []
