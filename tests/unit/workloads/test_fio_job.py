"""fio's job files: plain integers, and none of fio's traps."""

from __future__ import annotations

import configparser
import json
from dataclasses import replace
from typing import Any

import pytest

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.units import MIB
from pvebench.workloads import TOOLS
from pvebench.workloads.fio import Fio, check_fill, fill_job
from pvebench.workloads.tool import Job, Target
from testing.packs import tool_workload

TARGET = Target(device="/dev/disk/by-id/test", size_bytes=256 * MIB)


def make_job(
    *, ramp: float = 2, runtime: float = 8, target: Target = TARGET, **options: Any
) -> Job:
    fio = Fio()
    options = {"rw": "randwrite", "bs": "4k", **options}
    return fio.job(
        tool_workload("fio", options, ramp_seconds=ramp, runtime_seconds=runtime), target
    )


def test_trims_that_qemu_does_not_count_are_not_waited_for() -> None:
    hidden = replace(TARGET, trims_counted=False)
    jobs = [make_job(rw="trim", target=each) for each in (TARGET, hidden)]
    assert [job.moves_data for job in [*jobs, make_job(target=hidden)]] == [True, False, True]


def lines_of(job: Job) -> dict[str, str]:
    (lines,) = sections_of(job)
    return lines


def sections_of(job: Job) -> list[dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, delimiters="=")
    parser.read_string(job.files[job.argv[-1]].decode())
    return [dict(parser[name]) for name in parser.sections()]


def test_job_file_holds_the_whole_definition_in_plain_integers() -> None:
    assert make_job(iodepth=32).files["/run/pvebench/job.fio"].decode() == (
        "[randwrite-4k-qd32]\n"
        "filename=/dev/disk/by-id/test\n"
        "allow_file_create=0\n"
        "direct=1\n"
        "thread=1\n"
        "group_reporting=1\n"
        "exitall_on_error=1\n"
        "time_based=1\n"
        "runtime=8\n"
        "ramp_time=2\n"
        "percentile_list=50:90:95:99:99.9:99.99\n"
        "slat_percentiles=1\n"
        "clat_percentiles=1\n"
        "lat_percentiles=1\n"
        "log_avg_msec=500\n"
        "per_job_logs=0\n"
        "write_iops_log=/run/pvebench/fio\n"
        "ioengine=libaio\n"
        "rw=randwrite\n"
        "bs=4096\n"
        "iodepth=32\n"
        "numjobs=1\n"
        "size=268435456\n"
        "norandommap=1\n"
        "randrepeat=0\n"
        "random_distribution=random\n"
        "refill_buffers=1\n"
    )


def test_first_writes_never_repeat_a_block_and_end_with_the_device() -> None:
    job = make_job(touch="first")
    known = lines_of(job)
    assert not {"time_based", "norandommap", "ramp_time"} & set(known)
    assert (known["runtime"], known["size"]) == ("8", "268435456")
    assert not job.timed
    reads = make_job(touch="first", rw="randread")
    assert (lines_of(reads)["time_based"], reads.timed) == ("1", True)


def test_command_and_deadline() -> None:
    job = make_job()
    assert job.argv == [
        "fio",
        "--output-format=json",
        "--output=/run/pvebench/result.json",
        "/run/pvebench/job.fio",
    ]
    assert job.output == "/run/pvebench/result.json"
    assert job.deadline_seconds == 80


def test_results_of_an_earlier_run_are_emptied_because_fio_appends_to_logs() -> None:
    job = make_job()
    assert job.logs == ("/run/pvebench/fio_iops.log",)
    assert all(job.files[path] == b"" for path in (job.output, *job.logs))


@pytest.mark.parametrize(
    ("ramp", "runtime", "ramp_line", "runtime_line", "log_line"),
    [
        (2, 60, "2", "60", "1000"),
        (0.5, 1.25, "500ms", "1250ms", "500"),
        (2.0, 10.0, "2", "10", "1000"),
        (0, 2.0004, None, "2", "500"),
    ],
)
def test_times_are_whole_seconds_or_milliseconds(
    ramp: float, runtime: float, ramp_line: str | None, runtime_line: str, log_line: str
) -> None:
    lines = lines_of(make_job(ramp=ramp, runtime=runtime))
    assert lines.get("ramp_time") == ramp_line
    assert (lines["runtime"], lines["log_avg_msec"]) == (runtime_line, log_line)


def test_sequential_jobs_get_a_slice_each_and_random_ones_the_whole_device() -> None:
    slices = lines_of(make_job(rw="read", bs="1M", numjobs=3))
    assert slices["size"] == slices["offset_increment"] == str(85 * MIB)
    everywhere = lines_of(make_job(rw="randread", numjobs=3))
    assert everywhere["size"] == str(256 * MIB)
    assert "offset_increment" not in everywhere


def test_fio_gets_the_size_of_the_pack_unchanged() -> None:
    assert lines_of(make_job(size="64M"))["size"] == str(64 * MIB)
    assert lines_of(make_job(size="1G"))["size"] == str(1024 * MIB)


def test_device_that_is_no_whole_number_of_blocks_is_used_up_to_the_last_whole_one() -> None:
    odd = Target(device="/dev/x", size_bytes=10 * MIB + 512)
    assert lines_of(make_job(target=odd, bs="1M"))["size"] == str(10 * MIB)


def test_block_bigger_than_the_device_is_an_error_before_anything_runs() -> None:
    with pytest.raises(ToolFailed, match="less than one block of 67108864 bytes"):
        make_job(target=Target(device="/dev/x", size_bytes=MIB), bs="64M")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rate_iops": 500}, "500"),
        ({"rate_iops": 500, "numjobs": 4}, "125"),
        ({"rate_iops": 500, "rw": "randrw", "rwmixread": 75}, "375,125"),
        ({"rate_iops": 200, "rw": "randrw", "rwmixread": 99, "numjobs": 2}, "99,1"),
    ],
)
def test_rate_is_shared_among_jobs_and_directions(options: dict[str, Any], line: str) -> None:
    assert lines_of(make_job(**options))["rate_iops"] == line


def test_flush_options_appear_only_when_asked_for() -> None:
    assert not {"fsync", "fdatasync", "sync"} & set(lines_of(make_job()))
    assert lines_of(make_job(fsync=8))["fsync"] == "8"
    assert lines_of(make_job(sync=True))["sync"] == "1"


def test_small_writes_get_fresh_data_and_big_blocks_and_reads_need_none() -> None:
    assert lines_of(make_job(bs="64k"))["refill_buffers"] == "1"
    assert "refill_buffers" not in lines_of(make_job(bs="128k"))
    assert "refill_buffers" not in lines_of(make_job(rw="randread"))


def test_colon_in_the_devices_name_is_escaped_because_fio_splits_there() -> None:
    job = make_job(target=Target(device="/dev/disk/by-path/pci-0000:00:05.0", size_bytes=MIB))
    assert lines_of(job)["filename"] == r"/dev/disk/by-path/pci-0000\:00\:05.0"


@pytest.mark.parametrize(
    ("size", "block"), [(256 * MIB, MIB), (10 * MIB + 65536, 65536), (1537 * 512, 512)]
)
def test_fill_uses_the_largest_block_that_leaves_no_odd_end(size: int, block: int) -> None:
    lines, proof = sections_of(fill_job(Target(device="/dev/x", size_bytes=size), seed=7))
    assert (lines["size"], lines["bs"]) == (str(size), str(block))
    assert (lines["iodepth"], lines["randseed"]) == ("4", "7")
    assert lines["refill_buffers"] == lines["end_fsync"] == "1"
    assert "time_based" not in lines
    assert "verify" not in lines  # its checksums would slow down the fill
    start, _, skipped = proof["rw"].partition(":")
    step, written = int(skipped) + int(proof["bs"]), int(proof["io_size"])
    last = (written // int(proof["bs"]) - 1) * step + int(proof["bs"])
    assert (start, proof["size"], written) == ("write", str(size), 16 * int(proof["bs"]))
    assert 0.9 * size < last <= size


def test_fill_has_a_deadline_that_grows_with_the_device() -> None:
    assert fill_job(TARGET, seed=1).deadline_seconds == pytest.approx(256 * MIB / 2e6 + 60)


def test_fill_of_half_a_sector_is_refused() -> None:
    with pytest.raises(ToolFailed, match="not a whole number of sectors"):
        fill_job(Target(device="/dev/x", size_bytes=MIB + 100), seed=1)


def test_fill_that_wrote_less_than_the_device_is_a_failure() -> None:
    fill = {"error": 0, "write": {"io_bytes": 1048576}}
    proof = {"error": 0, "read": {"io_bytes": 65536}, "write": {"io_bytes": 65536}}
    output = json.dumps({"jobs": [fill, proof]})
    check_fill(output, Target(device="/dev/x", size_bytes=MIB))
    with pytest.raises(ToolFailed, match="the fill read no block back"):
        check_fill(json.dumps({"jobs": [fill]}), Target(device="/dev/x", size_bytes=MIB))
    with pytest.raises(ToolFailed, match="the fill wrote 1048576 of 2097152 bytes"):
        check_fill(output, Target(device="/dev/x", size_bytes=2 * MIB))


def test_fill_without_a_report_is_unreadable() -> None:
    with pytest.raises(OutputUnreadable, match="fio wrote no output"):
        check_fill("", TARGET)


def test_compressible_data_is_asked_for_in_the_job_the_slug_and_the_fill() -> None:
    workload = tool_workload(
        "fio", {"rw": "randwrite", "bs": "1M", "compress": 60}, ramp_seconds=1, runtime_seconds=5
    )
    assert workload.slug == "randwrite-1M-qd1-compress60"
    target = Target(device="/dev/vdb", size_bytes=64 << 20)
    text = TOOLS["fio"].job(workload, target).files["/run/pvebench/job.fio"].decode()
    assert "buffer_compress_percentage=60\n" in text
    assert "refill_buffers=1\n" in text
    fill = fill_job(target, 1, compress=60).files["/run/pvebench/fill.fio"].decode()
    assert "buffer_compress_percentage=60\n" in fill
    assert "compress" not in fill_job(target, 1).files["/run/pvebench/fill.fio"].decode()


def test_nothing_else_means_something_new_because_there_are_more_options() -> None:
    plain = tool_workload("fio", {"rw": "read", "bs": "4k"}, ramp_seconds=1, runtime_seconds=5)
    assert "compress" not in plain.parameters
