"""The real fio accepts and runs what we write; it must be installed (make setup does that)."""

from __future__ import annotations

import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pvebench.errors import ToolFailed
from pvebench.model.guest import Completed, Guest
from pvebench.model.units import MIB
from pvebench.model.workload import Direction, Workload
from pvebench.runner.measure import finish_job
from pvebench.workloads.fio import Fio, check_fill, fill_error, fill_job
from pvebench.workloads.tool import WORK_DIR, Job, Parsed, Target
from testing.packs import tool_workload

ROOT = Path(__file__).parents[3]
VARIETY: list[dict[str, Any]] = [
    {"rw": "read", "bs": "1M"},
    {"rw": "write", "bs": 512, "numjobs": 4},
    {"rw": "randread", "bs": "4k", "iodepth": 4096},
    {"rw": "randwrite", "bs": "64M", "iodepth": 2},
    {"rw": "readwrite", "bs": "64k", "rwmixread": 1},
    {"rw": "randrw", "bs": "4k", "rwmixread": 99, "rate_iops": 200, "numjobs": 2},
    {"rw": "trim", "bs": "1M"},
    {"rw": "randtrim", "bs": "4k", "numjobs": 64},
    {"rw": "randwrite", "bs": "4k", "fsync": 1},
    {"rw": "randwrite", "bs": "4k", "fdatasync": 32, "ioengine": "io_uring"},
    {"rw": "write", "bs": "4k", "sync": True, "ioengine": "psync", "size": "64M"},
    {"rw": "randread", "bs": "4k", "random_distribution": "zipf:1.2", "version": 2},
    {"rw": "randread", "bs": "4k", "random_distribution": "pareto:0.9"},
    {"rw": "randread", "bs": "4k", "random_distribution": "normal:20"},
    {"rw": "randread", "bs": "4k", "random_distribution": "zoned:60/10:40/90"},
    {"rw": "randwrite", "bs": "4k", "rate_iops": 500, "title": "A title"},
    {"rw": "randwrite", "bs": "4k", "touch": "first"},
    {"rw": "randread", "bs": "4k", "iodepth": 8, "latency_target": "500us"},
]


def on_disk(job: Job, folder: Path) -> list[str]:
    """Write the job's files below `folder` instead of the guest's directory."""
    for path, content in job.files.items():
        local = folder / Path(path).name
        local.write_bytes(content.replace(WORK_DIR.encode(), str(folder).encode()))
    return [argument.replace(WORK_DIR, str(folder)) for argument in job.argv]


def run(job: Job, folder: Path) -> tuple[str, dict[str, str]]:
    subprocess.run(on_disk(job, folder), check=True, capture_output=True, timeout=60)
    logs = {path: (folder / Path(path).name).read_text() for path in job.logs}
    return (folder / Path(job.output).name).read_text(), logs


def measure(
    folder: Path, target: Target, ramp: float = 0, seconds: float = 1, **options: Any
) -> tuple[Workload, Parsed]:
    fio = Fio()
    given = {"bs": "4k", **options}
    workload = tool_workload("fio", given, ramp_seconds=ramp, runtime_seconds=seconds)
    return workload, fio.parse(workload, *run(fio.job(workload, target), folder))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """Return a file that stands for the device; the name needs escaping, as by-path names do."""
    device = tmp_path / "pci-0:1.0"
    device.write_bytes(bytes(8 * MIB))
    return Target(device=str(device), size_bytes=8 * MIB)


@pytest.mark.parametrize("options", VARIETY, ids=str)
@pytest.mark.parametrize(("ramp", "runtime"), [(0, 60), (0.25, 1.5)])
def test_fio_accepts_every_job_file(
    options: dict[str, Any], ramp: float, runtime: float, tmp_path: Path
) -> None:
    fio = Fio()
    workload = tool_workload("fio", options, ramp_seconds=ramp, runtime_seconds=runtime)
    job = fio.job(workload, Target(device="/dev/pvebench:none", size_bytes=4096 * MIB))
    argv = on_disk(job, tmp_path)
    checked = subprocess.run(
        [argv[0], "--parse-only", argv[-1]], capture_output=True, text=True, check=False, timeout=30
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_fio_refuses_a_bad_job_file_so_the_check_above_means_something(tmp_path: Path) -> None:
    path = tmp_path / "job.fio"
    path.write_text("[a]\nrw=sideways\n")
    checked = subprocess.run(["fio", "--parse-only", path], capture_output=True, check=False)
    assert checked.returncode == 1


@pytest.mark.parametrize("engine", ["libaio", "io_uring", "psync"])
def test_fio_runs_a_mixed_job_and_its_output_is_read(
    engine: str, target: Target, tmp_path: Path
) -> None:
    workload, parsed = measure(
        tmp_path, target, ramp=0.25, rw="randrw", rwmixread=75, fsync=4, ioengine=engine
    )
    found = {(s.metric, s.direction): s.value for s in parsed.samples}
    assert set(workload.directions) == {Direction.READ, Direction.WRITE}
    assert found["runtime", Direction.READ] == pytest.approx(1, rel=0.3)
    assert found["operations", Direction.READ] > found["operations", Direction.WRITE] > 0
    assert found["sync_operations", None] > 0
    assert found["sync_mean", None] > 0
    assert 1 <= len(parsed.intervals["read"]) <= 2


def test_first_writes_end_when_each_block_was_written_once(target: Target, tmp_path: Path) -> None:
    # It ends after the last block, on a busy machine within these seconds too.
    _, parsed = measure(tmp_path, target, seconds=60, rw="randwrite", touch="first", iodepth=8)
    found = {(s.metric, s.direction): s.value for s in parsed.samples}
    assert found["bytes", Direction.WRITE] == target.size_bytes
    assert bytes(4096) not in {
        Path(target.device).read_bytes()[at : at + 4096] for at in range(0, 8 * MIB, 4096)
    }


def test_first_writes_that_end_early_without_all_blocks_are_a_failure(
    target: Target, tmp_path: Path
) -> None:
    options = {"rw": "randwrite", "bs": "4k", "touch": "first"}
    workload = tool_workload("fio", options, runtime_seconds=60)
    output, logs = run(Fio().job(workload, target), tmp_path)
    fewer = output.replace('"size" : "8388608"', '"size" : "9437184"')
    assert fewer != output
    with pytest.raises(ToolFailed, match="instead of"):
        Fio().parse(workload, fewer, logs)


def test_rate_is_the_total_of_all_jobs_and_both_directions(target: Target, tmp_path: Path) -> None:
    _, parsed = measure(tmp_path, target, rw="randrw", rwmixread=75, rate_iops=400, numjobs=2)
    total = sum(sample.value for sample in parsed.samples if sample.metric == "iops")
    assert total == pytest.approx(400, rel=0.25)


def test_logs_of_an_earlier_run_do_not_leak_into_the_next(target: Target, tmp_path: Path) -> None:
    first = measure(tmp_path, target, rw="randread")[1]
    second = measure(tmp_path, target, rw="randread")[1]
    assert len((tmp_path / "fio_iops.log").read_text().splitlines()) <= 2
    assert first.intervals.keys() == second.intervals.keys()


def test_missing_device_is_not_created_as_a_file(tmp_path: Path) -> None:
    fio = Fio()
    absent = tmp_path / "absent"
    workload = tool_workload("fio", {"rw": "read", "bs": "4k"}, ramp_seconds=0, runtime_seconds=1)
    job = fio.job(workload, Target(device=str(absent), size_bytes=MIB))
    with pytest.raises(subprocess.CalledProcessError):
        run(job, tmp_path)
    assert not absent.exists()


def test_fill_writes_every_byte_with_data_that_does_not_compress(tmp_path: Path) -> None:
    size = 8 * MIB + 3 * 4096
    device = tmp_path / "device"
    device.write_bytes(bytes(size))
    target = Target(device=str(device), size_bytes=size)
    before = {*Path.cwd().iterdir()}
    output, _ = run(fill_job(target, seed=1), tmp_path)
    check_fill(output, target)
    assert {*Path.cwd().iterdir()} == before  # fio can save a state there
    content = device.read_bytes()
    assert len(content) == size
    assert all(any(content[start : start + 512]) for start in range(0, size, 512))
    assert len(zlib.compress(content, 1)) > 0.98 * size


def test_a_fill_of_a_device_that_drops_writes_names_that(tmp_path: Path) -> None:
    """zero(4): a write succeeds and changes nothing. It knows no direct I/O and no fsync."""
    target = Target(device="/dev/zero", size_bytes=MIB)
    plain = fill_job(target, seed=1)
    files = {
        path: text.replace(b"direct=1", b"direct=0").replace(b"end_fsync=1\n", b"")
        for path, text in plain.files.items()
    }
    job = replace(plain, files=files)
    done = subprocess.run(on_disk(job, tmp_path), check=False, capture_output=True, timeout=60)
    guest = SimpleNamespace(read_file=lambda path: (tmp_path / Path(path).name).read_bytes())
    ended = Completed(done.returncode, done.stdout, done.stderr)
    with pytest.raises(ToolFailed) as failed:
        finish_job(cast("Guest", guest), job, ended)
    error = fill_error(failed.value, target)
    assert error.happened == "/dev/zero does not return the data that the fill wrote"
    other = ToolFailed("fio ended with status 1: Input/output error", evidence="io_u error")
    assert fill_error(other, target) is other


def test_blocks_that_an_earlier_fill_left_prove_nothing(target: Target, tmp_path: Path) -> None:
    """A disk that begins to drop writes returns them."""
    first, second = (fill_job(target, seed=1) for _ in range(2))
    run(first, tmp_path)
    assert verifies(first, tmp_path)
    assert not verifies(second, tmp_path)


def verifies(job: Job, tmp_path: Path) -> bool:
    """Return whether the device has the blocks that prove a fill, without writing them."""
    argv = on_disk(job, tmp_path)
    lines = (tmp_path / "fill.fio").read_text().partition("[proof]\n")[2]
    (tmp_path / "fill.fio").write_text(f"[proof]\nverify_only=1\n{lines}")
    return subprocess.run(argv, check=False, capture_output=True, timeout=60).returncode == 0


def test_small_sequential_writes_do_not_compress_either(target: Target, tmp_path: Path) -> None:
    measure(tmp_path, target, rw="write", ioengine="psync")
    content = Path(target.device).read_bytes()[:MIB]
    assert len(zlib.compress(content, 1)) > 0.95 * MIB


def test_fio_looks_for_the_depth_that_keeps_a_latency(target: Target, tmp_path: Path) -> None:
    _, parsed = measure(
        tmp_path,
        target,
        rw="randread",
        iodepth=2,
        latency_target="10s",
        latency_window="500ms",
        latency_percentile=50,
    )
    found = {s.metric: s.value for s in parsed.samples}
    assert found["latency_depth"] == 2
    assert found["runtime"] == pytest.approx(0.5, abs=0.4)
