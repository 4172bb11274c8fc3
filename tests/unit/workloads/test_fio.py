"""fio's options: what they resolve to, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvebench.model.workload import Direction, Workload
from pvebench.workloads.fio import Fio
from pvebench.workloads.tool import Target
from testing.packs import tool_refusal, tool_workload


def resolve(**options: Any) -> Workload:
    return tool_workload(
        "fio", {"rw": "randwrite", "bs": "4k", **options}, ramp_seconds=2, runtime_seconds=8
    )


@pytest.mark.parametrize(
    ("options", "slug"),
    [
        ({}, "randwrite-4k-qd1"),
        ({"iodepth": 32}, "randwrite-4k-qd32"),
        ({"bs": 4096, "iodepth": 32, "numjobs": 1, "sync": False}, "randwrite-4k-qd32"),
        ({"rw": "read", "bs": "1M", "numjobs": 4}, "read-1M-qd1-j4"),
        ({"rw": "randrw", "rwmixread": 75}, "randrw-4k-qd1-mix75"),
        ({"rw": "readwrite"}, "rw-4k-qd1"),
        ({"rw": "randrw", "rwmixread": 50}, "randrw-4k-qd1"),
        ({"fsync": 1}, "randwrite-4k-qd1-fsync1"),
        ({"fdatasync": 8}, "randwrite-4k-qd1-fdatasync8"),
        ({"sync": True, "ioengine": "psync"}, "randwrite-4k-qd1-sync-psync"),
        ({"ioengine": "io_uring", "size": "64M"}, "randwrite-4k-qd1-io_uring-size64M"),
        ({"random_distribution": "zipf:1.2"}, "randwrite-4k-qd1-distzipf_1_2"),
        ({"random_distribution": "zoned:60/10:40/90"}, "randwrite-4k-qd1-distzoned_60_10_40_90"),
        ({"rate_iops": 500, "version": 2}, "randwrite-4k-qd1-rate500@2"),
        ({"touch": "first"}, "randwrite-4k-qd1-touch-first"),
        ({"touch": "rewrite"}, "randwrite-4k-qd1"),
        ({"during": "backup", "target_rate": "256k"}, "randwrite-4k-qd1-during-backup-target256k"),
        ({"during": "neighbor", "neighbor_iops": 500}, "randwrite-4k-qd1-during-neighbor-iops500"),
        ({"iodepth": 64, "latency_target": "2ms"}, "randwrite-4k-qd64-lat2ms-p99"),
        (
            {
                "iodepth": 64,
                "latency_target": "1500us",
                "latency_percentile": 99.9,
                "latency_window": "2s",
                "version": 2,
            },
            "randwrite-4k-qd64-lat1500us-p99_9-win2s@2",
        ),
        (
            {
                "rw": "randrw",
                "iodepth": 2,
                "numjobs": 2,
                "rwmixread": 70,
                "fsync": 4,
                "sync": True,
                "ioengine": "io_uring",
                "size": "1G",
                "rate_iops": 100,
                "random_distribution": "normal:20",
                "version": 3,
            },
            "randrw-4k-qd2-j2-mix70-fsync4-sync-io_uring-size1G-rate100-distnormal_20@3",
        ),
    ],
)
def test_slug_names_what_differs_from_the_defaults_in_a_fixed_order(
    options: dict[str, Any], slug: str
) -> None:
    assert resolve(**options).slug == slug


def test_parameters_are_plain_and_hold_every_default() -> None:
    assert dict(resolve().parameters) == {
        "rw": "randwrite",
        "bs": 4096,
        "iodepth": 1,
        "numjobs": 1,
        "fsync": 0,
        "fdatasync": 0,
        "sync": False,
        "ioengine": "libaio",
        "size": 0,
        "rate_iops": 0,
        "random_distribution": "random",
        "version": 1,
    }


def test_mixed_pattern_has_its_share_of_reads_among_the_parameters() -> None:
    assert resolve(rw="randrw").parameters["rwmixread"] == 50
    assert "rwmixread" not in resolve().parameters


@pytest.mark.parametrize(
    ("rw", "directions"),
    [
        ("read", {Direction.READ}),
        ("randwrite", {Direction.WRITE}),
        ("randrw", {Direction.READ, Direction.WRITE}),
        ("readwrite", {Direction.READ, Direction.WRITE}),
        ("randtrim", {Direction.TRIM}),
    ],
)
def test_directions_follow_from_the_pattern(rw: str, directions: set[Direction]) -> None:
    assert set(resolve(rw=rw).directions) == directions


def test_title_is_the_packs_or_made_from_the_slug_and_changes_no_history() -> None:
    assert resolve().title == "randwrite 4k qd1"
    assert resolve(title="Mail server").title == "Mail server"
    assert resolve(title="Mail server").fingerprint == resolve().fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rw": "write-random"}, "rw: 'write-random' is not one of 'read', 'write'"),
        ({"rw": True}, "rw: True is not one of 'read'"),
        ({"bs": "4kB"}, "bs: invalid size '4kB'"),
        ({"bs": "3k"}, "bs: 3072 bytes is not a power of two from 512 to 64M"),
        ({"bs": 256}, "bs: 256 bytes is not a power of two"),
        ({"bs": "128M"}, "bs: 134217728 bytes is not a power of two"),
        ({"bs": 0}, "bs: 0 bytes is not a power of two"),
        ({"bs": -4096}, "bs: invalid size -4096: write 0 or more"),
        ({"iodepth": 0}, "iodepth: expected 1 or more, found 0"),
        ({"iodepth": 4097}, "iodepth: expected 4096 or less, found 4097"),
        ({"iodepth": "32"}, "iodepth: expected a whole number, found '32'"),
        ({"iodepth": True}, "iodepth: expected a whole number, found true"),
        ({"numjobs": 65}, "numjobs: expected 64 or less, found 65"),
        ({"rwmixread": 75}, "rwmixread: only rw and randrw mix reads and writes, randwrite does"),
        ({"rw": "rw", "rwmixread": 100}, "rwmixread: expected 99 or less, found 100"),
        ({"rw": "randread", "fsync": 1}, "fsync: randread writes no data that could be flushed"),
        ({"rw": "trim", "fsync": 1}, "fsync: trim writes no data that could be flushed"),
        ({"rw": "read", "sync": True}, "sync: read writes no data that could be flushed"),
        ({"fsync": 1, "fdatasync": 1}, "fdatasync: cannot be combined with fsync"),
        (
            {"sync": 1},
            "sync: expected true (O_SYNC) or false, found 1; to flush after writes, use fsync",
        ),
        ({"ioengine": "mmap"}, "ioengine: 'mmap' is not one of 'libaio', 'io_uring'"),
        ({"ioengine": "psync", "iodepth": 4}, "iodepth: psync does one operation at a time"),
        ({"size": "1M", "bs": "2M"}, "size: 1048576 bytes is not a whole number of blocks"),
        ({"size": 4097}, "size: 4097 bytes is not a whole number of blocks of 4096 bytes"),
        ({"size": 0}, "size: 0 bytes is not a whole number of blocks of 4096 bytes"),
        ({"latency_target": "2ms", "iodepth": 1}, "iodepth: must be above 1 with latency_target"),
        (
            {"latency_target": "2", "iodepth": 4},
            "latency_target: invalid duration '2': write a number with its unit, ms, s, m, h or d",
        ),
        ({"latency_target": "0us", "iodepth": 4}, "latency_target: '0us' is not a latency"),
        ({"latency_target": "2h", "iodepth": 4}, "latency_target: '2h' is not a latency"),
        (
            {"latency_target": "2ms", "iodepth": 4, "latency_percentile": 97},
            "latency_percentile: 97 is not one of the recorded percentiles: "
            "50, 90, 95, 99, 99.9, 99.99",
        ),
        (
            {"latency_target": "2ms", "iodepth": 4, "latency_window": "1ms"},
            "latency_window: expected 0.5 or more",
        ),
        (
            {"latency_target": "2ms", "iodepth": 4, "numjobs": 2},
            "numjobs: must be 1 with latency_target",
        ),
        (
            {"latency_target": "2ms", "iodepth": 4, "rate_iops": 9},
            "rate_iops: cannot be combined with latency_target",
        ),
        ({"latency_window": "2s"}, "latency_window: requires latency_target"),
        ({"rate_iops": 0}, "rate_iops: expected 1 or more, found 0"),
        (
            {"rate_iops": 10, "numjobs": 4},
            "rate_iops: 10 is the total and cannot be divided evenly",
        ),
        ({"rw": "rw", "rate_iops": 1}, "rate_iops: 1 is the total and cannot be divided evenly"),
        *(
            ({"random_distribution": text}, f"random_distribution: {text!r} is not one of")
            for text in ("zipf:1.0", "zipf:100", "pareto:1", "normal:100")
        ),
        ({"random_distribution": "zoned:60/10"}, "random_distribution: 'zoned:60/10' is not one"),
        ({"random_distribution": "zipf:1.2\nexec=x"}, "random_distribution: 'zipf:1.2\\nexec"),
        ({"rw": "write", "random_distribution": "zipf:1.2"}, "random_distribution: write is seq"),
        ({"version": 0}, "version: expected 1 or more, found 0"),
        ({"title": ""}, "title: '' is not a single line of printable text"),
        ({"title": "two\nlines"}, "title: 'two\\nlines' is not a single line of printable text"),
    ],
)
def test_option_that_makes_no_sense_is_refused_by_name(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    said = tool_refusal(tmp_path, "fio", {"rw": "randwrite", "bs": "4k", **options})
    assert said.startswith(f"workloads.0.fio.{message}")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("iodept", "unknown key 'iodept'; did you mean 'iodepth'?"),
        ("wibble", "unknown key 'wibble'; known keys: bs, compress, during, fault, fdatasync"),
    ],
)
def test_unknown_option_is_met_with_the_nearest_one_or_all(
    tmp_path: Path, option: str, message: str
) -> None:
    said = tool_refusal(tmp_path, "fio", {"rw": "randwrite", "bs": "4k", option: 4})
    assert said.startswith(message)


@pytest.mark.parametrize("missing", ["rw", "bs"])
def test_pattern_and_block_size_are_required(tmp_path: Path, missing: str) -> None:
    options = {"rw": "read", "bs": "4k"}
    del options[missing]
    assert tool_refusal(tmp_path, "fio", options) == f"missing key '{missing}'"


def test_estimate_counts_ramp_and_only_what_is_written() -> None:
    fio = Fio()
    assert fio.estimate(resolve(rw="randread"), 1 << 30).bytes_written == 0
    assert fio.estimate(resolve(), 1 << 30).seconds == 10
    assert fio.estimate(resolve(), 1 << 30).bytes_written == 10 * 100_000 * 4096
    assert fio.estimate(resolve(rate_iops=500), 1 << 30).bytes_written == 10 * 500 * 4096
    mixed = resolve(rw="randrw", rwmixread=75, rate_iops=500)
    assert fio.estimate(mixed, 1 << 30).bytes_written == 10 * 500 * 4096 / 4


def test_a_search_has_no_window_of_its_own_and_is_bounded() -> None:
    fio, search = Fio(), resolve(iodepth=64, latency_target="2ms")
    assert (search.ramp_seconds, search.runtime_seconds) == (0, 0)
    assert 60 < fio.estimate(search, 1 << 30).seconds < 150
    loading = replace(search, runtime_seconds=30.0)  # while it waits for a steady state
    text = next(iter(fio.job(loading, Target(device="/dev/x", size_bytes=1 << 30)).files.values()))
    assert b"latency_target" not in text
