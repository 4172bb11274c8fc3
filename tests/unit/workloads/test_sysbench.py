"""sysbench: real output, its caveats and its job on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pvebench.errors import ToolFailed
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Caveat
from pvebench.workloads import TOOLS
from testing.packs import tool_workload
from testing.tools import GOLDEN, file_target, golden, resolve, run_all, values


def test_sysbench_gives_rates_of_both_directions_and_the_fsyncs() -> None:
    parsed = golden(resolve("sysbench", mode="rndrw", size="256M", direct=True), "rndrw.txt")
    found = values(parsed)
    assert found["iops", "read", ""] == pytest.approx(3247.27)
    assert found["bandwidth", "write", ""] == pytest.approx(2164.90 * 16 * KIB)
    assert found["bandwidth", "write", ""] == pytest.approx(33.83 * MIB, rel=1e-3)
    assert found["sync_operations", "", ""] == pytest.approx(54.26 * 6.0074)
    assert found["clat_mean", "", ""] == pytest.approx(0.00018)
    assert len(parsed.intervals["read"]) == 6


def test_sysbench_latency_of_a_pure_read_is_that_direction() -> None:
    found = values(golden(resolve("sysbench", mode="seqrd", size="256M"), "seqrd.txt"))
    assert 0 < found["clat_mean", "read", ""] < found["clat_percentile", "read", "99"]
    assert ("iops", "write", "") not in found


def test_what_sysbench_warns_of_is_noted_once() -> None:
    parsed = golden(resolve("sysbench", mode="seqwr", size="64M"), "seqwr.txt")
    assert parsed.notes == (
        "sysbench reported: Discovered too large position difference in seq request!",
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("checksum.txt", "Checksum mismatch"),
        ("too_small.txt", "Size of file"),
        ("missing.txt", "Cannot open file"),
    ],
)
def test_a_fatal_end_of_sysbench_is_reported_in_its_words(name: str, words: str) -> None:
    with pytest.raises(ToolFailed, match=words):
        golden(resolve("sysbench", mode="rndrw", size="64M"), name)


def test_sysbench_without_validation_or_direct_says_what_it_measures() -> None:
    assert resolve("sysbench", mode="rndwr", size="1G").caveats == (Caveat.CACHE,)
    loose = resolve("sysbench", mode="rndwr", size="1G", direct=True, validate=False)
    assert loose.caveats == (Caveat.ZEROES,)


def test_the_sysbench_job_makes_files_that_are_no_zeros_and_removes_them(tmp_path: Path) -> None:
    options = {"mode": "rndrw", "size": "4M", "direct": True}
    workload = tool_workload("sysbench", options, ramp_seconds=0, runtime_seconds=3)
    target = file_target(tmp_path, 4 * MIB)
    job = TOOLS["sysbench"].job(workload, target)
    run_all(job)
    made = (tmp_path / "scratch/sysbench/test_file.0").read_bytes()
    assert made.count(0) < len(made) / 50
    found = values(TOOLS["sysbench"].parse(workload, Path(job.output).read_text("utf-8"), {}))
    assert found["iops", "read", ""] > 0
    subprocess.run(job.cleanup, check=True)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_sysbench_counts_its_percentile_in_bins_of_equal_ratio() -> None:
    # sb_logger.c: 1024 bins from 0.001 to 100,000 ms, so that it may be 1 % above the maximum.
    workload = resolve("sysbench", mode="rndrw", size="256M")
    text = (GOLDEN / "sysbench" / "rndrw.txt").read_text("utf-8")
    found = values(TOOLS["sysbench"].parse(workload, text.replace(" 3.43\n", "69.40\n"), {}))
    assert found["clat_max", "", ""] < found["clat_percentile", "", "99"]
