"""Numbers that cannot be true make a run implausible, each with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pvebench.model.consistency import Figures, PlausibilityCheck, contradictions, cpu_out_of_range
from pvebench.model.disk import Bus, Cache
from pvebench.model.run import Sample, Unit
from pvebench.model.workload import Case, Caveat, Conduct, Direction
from pvebench.runner.plausibility import PlausibilityResult, check_run, noise_reason
from pvebench.workloads.tool import Parsed
from testing.packs import a_case

READ, WRITE = Direction.READ, Direction.WRITE
DEEP = {"iodepth": 32, "fsync": 1}


def figures(**changes: Any) -> Figures:
    """A row of a table published in 2017: randwrite, scsi, raw, none."""
    known = {
        "direction": "write",
        "iops": 15539,
        "bandwidth": 63649792,
        "block_bytes": 4096,
        "size": 4 << 30,
        "seconds": 67.478,
        "iops_step": 1,
        "bandwidth_step": 1024,
    }
    return Figures(**(known | changes))


@pytest.mark.parametrize("changes", [{}, {"iops": 15390}, {"size": 1.019 * (4 << 30)}])
def test_a_row_whose_columns_agree_is_not_doubted(changes: dict[str, float]) -> None:
    assert contradictions(figures(**changes)) == []


def test_iops_more_than_one_percent_off_contradict_the_bandwidth() -> None:
    (found,) = contradictions(figures(iops=15375))
    assert found.check is PlausibilityCheck.RATE
    assert "15375 IOPS x 4096 bytes = 62976000 bytes/s, not 63649792" in found.text


def test_a_bandwidth_more_than_two_percent_off_contradicts_iops_and_size() -> None:
    found = contradictions(figures(bandwidth=0.979 * 63649792))
    assert [one.check for one in found] == [PlausibilityCheck.RATE, PlausibilityCheck.SIZE]


def test_a_short_time_printed_with_two_digits_is_no_contradiction() -> None:
    # hdparm: 64 MB in 0.07 seconds = 948.57 MB/sec, as it printed it once.
    printed = Figures(
        direction="read",
        bandwidth=994_647_736.3,
        size=67_108_864.0,
        seconds=0.07,
        seconds_step=0.01,
    )
    assert contradictions(printed) == []
    assert contradictions(replace(printed, seconds_step=0.0)) != []


def test_rounding_of_small_numbers_is_no_contradiction() -> None:
    # 11 IOPS printed for 11.9, 0.046 MiB/s for 0.0465.
    slow = figures(iops=11, bandwidth=48234, iops_step=1, bandwidth_step=1049, size=None)
    assert contradictions(slow) == []
    assert contradictions(replace(slow, iops_step=0)) != []


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({"user": 0.0269, "system": 17.98}, "CPU system is 1798% of 1 CPU"),
        ({"user": -0.5}, "CPU user is -50% of 1 CPU"),
        ({"user": 0.7, "system": 0.6}, "CPU user and system together are 130%"),
    ],
)
def test_cpu_beyond_what_there_is_is_doubted(shares: dict[str, float], text: str) -> None:
    assert [one.text for one in cpu_out_of_range(shares)] == [text]


def test_cpu_within_what_there_is_is_not_doubted() -> None:
    assert cpu_out_of_range({"user": 0.6, "system": 0.41}) == []


def with_disk(case: Case, **changes: Any) -> Case:
    disk = replace(case.scenario.disk, **changes)
    return replace(case, scenario=replace(case.scenario, disk=disk))


def moved(
    direction: Direction, *, host: float, counter: str = "process", iops: float = 1000
) -> list[Sample]:
    """Ten seconds of 4k operations, of which `host` bytes a second were seen outside."""
    return [
        Sample("iops", direction, iops, Unit.IOPS),
        Sample("bandwidth", direction, iops * 4096, Unit.BYTES_PER_SECOND),
        Sample("bytes", direction, iops * 4096 * 10, Unit.BYTES),
        Sample("runtime", direction, 10.0, Unit.SECONDS),
        Sample("window", None, 10.5, Unit.SECONDS),
        Sample("host_bytes", None, host * 10.5, Unit.BYTES, f"{counter}_{direction}"),
    ]


def failed_checks(judgement: PlausibilityResult) -> list[PlausibilityCheck]:
    return [one.check for one in judgement.implausibilities]


def value(judgement: PlausibilityResult, metric: str) -> float | None:
    return next((one.value for one in judgement.samples if one.metric == metric), None)


@pytest.mark.parametrize(
    ("check", "window", "name", "number"),
    [
        (None, 3.0, "guest_cpu_wait", 0.79),
        (PlausibilityCheck.STARVED, 3.0, "guest_cpu_wait", 0.81),
        (None, 2.9, "guest_cpu_wait", 0.9),  # a moment without a CPU matters more there
        (None, 3.0, "host_cpu", 2.07),
        (PlausibilityCheck.CPU, 3.0, "host_cpu", 2.08),
        (None, 3.0, "network_limit", 4.02e6),
        (PlausibilityCheck.BEATS_NETWORK, 3.0, "network_limit", 4.01e6),
    ],
)
def test_what_the_host_counts_is_implausible_beyond_the_documented_limit(
    check: PlausibilityCheck | None, window: float, name: str, number: float
) -> None:
    read = [s for s in moved(READ, host=15e6) if s.metric != "window"]
    counted = Sample(name, None, number, Unit.CORES, "total" * (name == "host_cpu"))
    run = [*read, Sample("window", None, window, Unit.SECONDS), counted]
    assert failed_checks(check_run(a_case(), run, host_cpus=2)) == ([check] if check else [])


def test_reads_from_the_device_have_a_share_of_one() -> None:
    found = check_run(a_case(), moved(READ, host=4096e3))
    assert value(found, "device_share") == pytest.approx(1.0)
    assert failed_checks(found) == []


def test_direct_reads_of_which_half_never_reach_the_device_are_implausible() -> None:
    # The window is 5% longer than the run, and all I/O may have been in the run.
    assert failed_checks(check_run(a_case(), moved(READ, host=0.48 * 4096e3))) == []
    found = check_run(a_case(), moved(READ, host=0.47 * 4096e3))
    assert value(found, "device_share") == pytest.approx(0.47)
    assert failed_checks(found) == [PlausibilityCheck.DEVICE_SHARE]
    assert "only 47% of the bytes reached the device" in found.reason
    assert Sample("implausibility", None, 1.0, Unit.RATIO, "device_share") in found.samples


def test_a_cache_may_answer_where_a_cache_mode_asks_for_one() -> None:
    case = with_disk(a_case(), cache=Cache.WRITEBACK)
    assert failed_checks(check_run(case, moved(READ, host=4096e2))) == []


def test_a_workload_that_measures_the_cache_is_not_blamed_for_it() -> None:
    case = a_case()
    case = replace(case, workload=replace(case.workload, caveats=(Caveat.CACHE,)))
    assert failed_checks(check_run(case, moved(READ, host=0))) == []


def test_cached_writes_are_counted_at_the_device() -> None:
    case = with_disk(a_case("randwrite"), cache=Cache.WRITEBACK)
    *_, into_the_cache = moved(WRITE, host=4096e3)
    at_device = [into_the_cache, *moved(WRITE, host=2048e3, counter="device")]
    assert value(check_run(case, at_device), "device_share") == pytest.approx(0.5)


def test_a_tool_without_a_runtime_is_judged_by_its_bytes_whatever_its_seconds() -> None:
    # Its window is longer than what it prints: starting and syncing are in it.
    case = a_case("randwrite")
    untimed = replace(case, workload=replace(case.workload, runtime_seconds=0.0))
    samples = [s for s in moved(WRITE, host=0) if s.metric not in ("window", "host_bytes")]
    samples.append(Sample("window", None, 2.5, Unit.SECONDS))
    samples.append(Sample("host_bytes", None, 1000 * 4096 * 10.0, Unit.BYTES, "process_write"))
    found = check_run(untimed, samples)
    assert value(found, "device_share") == pytest.approx(1.0)
    assert failed_checks(found) == []


def test_a_window_much_longer_than_the_run_is_no_ground_for_a_doubt() -> None:
    # As seen by ssh on a slow machine (make e2e-host): a second of fio, all of it at the device.
    measured = {"runtime": 1.0, "window": 3.1, "bytes": 4096e3, "host_bytes": 4096e3}
    samples = [
        replace(one, value=measured.get(one.metric, one.value)) for one in moved(READ, host=0)
    ]
    assert failed_checks(check_run(a_case(), samples)) == []


@pytest.mark.parametrize(
    ("at_device", "doubted"), [(1.0, []), (0.1, [PlausibilityCheck.DEVICE_SHARE])]
)
def test_what_was_counted_in_a_longer_window_may_all_be_of_the_tools_own_time(
    at_device: float, doubted: list[PlausibilityCheck]
) -> None:
    """As `make e2e-host` showed xfs by ssh on a slow machine: 4 s of fio in 8.5 s, "only 47 %"."""
    size = 100e6
    measured = {"runtime": 4.0, "window": 8.5, "bytes": size, "host_bytes": size * at_device}
    measured |= {"iops": size / 4096 / 4, "bandwidth": size / 4}
    samples = [
        replace(one, value=measured.get(one.metric, one.value)) for one in moved(READ, host=0)
    ]
    found = check_run(a_case(), samples)
    assert value(found, "device_share") == pytest.approx(at_device * 4.0 / 8.5)
    assert failed_checks(found) == doubted


def test_a_vm_on_a_mounted_share_is_judged_by_what_came_from_the_server() -> None:
    # Nothing is counted for QEMU itself there (drivers.host.shares).
    found = check_run(a_case(), moved(READ, host=2048e3, counter="device"))
    assert value(found, "device_share") == pytest.approx(0.5)


def test_nothing_is_said_of_the_device_behind_a_server() -> None:
    found = check_run(a_case(), moved(READ, host=0), local=False)
    assert value(found, "device_share") is None
    assert failed_checks(found) == []


def synced(**flushes: float) -> list[Sample]:
    return [
        *moved(WRITE, host=4096e3),
        Sample("sync_operations", None, flushes["issued"], Unit.OPERATIONS),
        Sample("qemu_operations", None, flushes["seen"], Unit.OPERATIONS, "flush"),
    ]


def test_flushes_that_qemu_never_saw_are_implausible() -> None:
    case = a_case("randwrite", fsync=1)
    found = check_run(case, synced(issued=10_000, seen=4990))
    assert value(found, "flush_share") == pytest.approx(0.475, abs=0.001)
    assert failed_checks(found) == [PlausibilityCheck.FLUSH_SHARE]


@pytest.mark.parametrize(("seen", "doubted"), [(2_690, False), (630, False), (620, True)])
def test_a_guest_joins_flushes_of_jobs_that_wait_together(seen: int, doubted: bool) -> None:
    """As Linux does: 8 jobs on a disk whose flush takes 10 ms caused 26% of their syncs."""
    case = a_case("randwrite", fsync=1, numjobs=8)
    found = check_run(case, synced(issued=10_000, seen=seen))
    assert failed_checks(found) == [PlausibilityCheck.FLUSH_SHARE] * doubted


def test_flushes_of_a_longer_window_may_all_be_of_the_tools_own_time() -> None:
    case = a_case("randwrite", fsync=1)
    longer = {"window": 25.0, "host_bytes": 4096e4}
    samples = [
        replace(one, value=longer.get(one.metric, one.value))
        for one in synced(issued=10_000, seen=10_000)
    ]
    found = check_run(case, samples)
    assert value(found, "flush_share") == pytest.approx(0.4)
    assert failed_checks(found) == []


def test_a_guest_that_sees_no_write_cache_has_nothing_to_flush() -> None:
    case = with_disk(a_case("randwrite", fsync=1), cache=Cache.DIRECTSYNC)
    found = check_run(case, synced(issued=10_000, seen=0))
    assert (value(found, "flush_share"), failed_checks(found)) == (None, [])


@pytest.mark.parametrize("rate", [905.0, 910.0])
@pytest.mark.parametrize(
    ("options", "waits"),
    [({"fsync": 1}, True), ({"sync": True}, True), ({"fdatasync": 1}, True)]
    + [(options, False) for options in ({}, {"fsync": 8}, {"numjobs": 4, "fsync": 1}, DEEP)],
)
def test_a_write_that_waits_for_the_device_is_at_most_a_tenth_faster_than_the_hosts_own(
    options: dict[str, Any], waits: bool, rate: float
) -> None:
    case = a_case("randwrite", **options)
    found = check_run(case, moved(WRITE, host=4096e3), host={WRITE: rate})
    assert value(found, "guest_to_host") == pytest.approx(1000 / rate)
    doubted = waits and rate < 1000 / 1.1
    assert failed_checks(found) == [PlausibilityCheck.BEATS_HOST] * doubted


def test_the_hosts_own_row_is_not_compared_with_itself() -> None:
    case = with_disk(a_case(), bus=Bus.HOST)
    host = {READ: 500.0}
    found = check_run(case, moved(READ, host=4096e3, counter="device"), host=host)
    assert value(found, "guest_to_host") is None
    assert value(found, "device_share") == pytest.approx(1.0)


def test_reads_of_what_was_never_written_are_implausible() -> None:
    assert failed_checks(check_run(a_case(), moved(READ, host=4096e3), filled=False)) == [
        PlausibilityCheck.NOT_FILLED
    ]
    assert (
        failed_checks(check_run(a_case("randwrite"), moved(WRITE, host=4096e3), filled=False)) == []
    )


def test_what_a_deep_queue_holds_at_the_ends_of_the_window_is_no_contradiction() -> None:
    # Real: 4M at depth 256 for 1.5 s.
    deep = figures(
        iops=184.055118,
        bandwidth=796752629,
        block_bytes=4 << 20,
        size=None,
        seconds=1.5,
        iops_step=0,
        bandwidth_step=0,
    )
    assert [one.check for one in contradictions(deep)] == [PlausibilityCheck.RATE]
    assert contradictions(replace(deep, in_flight=256)) == []


def test_a_share_that_the_queue_may_explain_is_not_doubted() -> None:
    mebibyte = moved(READ, host=0, iops=25.6)
    assert failed_checks(check_run(a_case(iodepth=1), mebibyte)) == [PlausibilityCheck.DEVICE_SHARE]
    assert failed_checks(check_run(a_case(iodepth=256), mebibyte)) == []
    less = moved(READ, host=0, iops=25.5)
    assert failed_checks(check_run(a_case(iodepth=1), less)) == []


@pytest.mark.parametrize(
    ("variation", "intervals", "reason"),
    [
        (0.5, 5, ""),
        (0.504, 5, "interval variation 50.4% exceeds 50.0%; raise `runtime`, or reduce other load"),
        (0.52, 5, "interval variation 52% exceeds 50%; raise `runtime`, or reduce other load"),
        (0.52, 4, ""),  # too few to tell
    ],
)
def test_a_variation_just_above_the_limit_reads_as_more(
    variation: float, intervals: int, reason: str
) -> None:
    parsed = Parsed(
        samples=(Sample("iops_variation", READ, variation, Unit.RATIO),),
        intervals={"read": (1.0,) * intervals},
    )
    assert noise_reason(parsed.samples, Conduct(noisy_ratio=0.5), parsed) == reason
