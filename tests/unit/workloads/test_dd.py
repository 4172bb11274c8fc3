"""dd: real output, and what its job writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pvebench.errors import ToolFailed
from pvebench.model.units import MIB
from pvebench.model.workload import Caveat
from pvebench.workloads import TOOLS, Target
from testing.packs import tool_refusal
from testing.tools import golden, ran, resolve, values


@pytest.mark.parametrize("name", ["read.txt", "read_de.txt"])
def test_dd_speed_is_counted_from_bytes_and_seconds_in_any_language(name: str) -> None:
    found = values(golden(resolve("dd", rw="read", direct=True), name))
    assert found["bytes", "read", ""] == 64 * MIB
    seconds = {"read.txt": 0.0597794, "read_de.txt": 0.0610514}[name]
    assert found["bandwidth", "read", ""] == pytest.approx(64 * MIB / seconds)
    assert found["iops", "read", ""] == pytest.approx(64 / seconds)


def test_dd_of_tiny_blocks_reports_the_mean_latency() -> None:
    workload = resolve("dd", rw="write", bs=512, count=1000, direct=True)
    assert values(golden(workload, "small_de.txt"))["clat_mean", "write", ""] == pytest.approx(
        0.081321 / 1000
    )


@pytest.mark.parametrize("name", ["full.txt", "nothing.txt"])
def test_dd_that_copied_nothing_is_no_result(name: str) -> None:
    with pytest.raises(ToolFailed, match="copied nothing"):
        golden(resolve("dd", rw="write", bs=512), name)


def test_a_buffered_dd_and_one_of_zeros_say_so() -> None:
    assert resolve("dd", rw="write").caveats == (Caveat.CACHE,)
    assert resolve("dd", rw="write", flush="fdatasync").caveats == ()
    assert resolve("dd", rw="write", direct=True, input="zero").caveats == (Caveat.ZEROES,)
    assert resolve("dd", rw="read").caveats == ()


def test_the_dd_job_writes_random_data_and_nothing_but_the_target(tmp_path: Path) -> None:
    workload = resolve("dd", rw="write", bs=4096, flush="fdatasync")
    found = values(ran(workload, tmp_path, size=2 * MIB))
    assert found["bytes", "write", ""] == 2 * MIB
    written = (tmp_path / "target").read_bytes()
    assert len(written) == 2 * MIB
    assert len(set(written[:4096])) > 200


def test_a_dd_without_its_target_makes_no_file(tmp_path: Path) -> None:
    workload = resolve("dd", rw="write", bs=4096, input="zero")
    target = Target(device=str(tmp_path / "absent"), size_bytes=MIB, work=str(tmp_path))
    assert subprocess.run(TOOLS["dd"].job(workload, target).argv, check=False).returncode
    assert not (tmp_path / "absent").exists()


def test_dd_refuses_what_a_read_cannot_do(tmp_path: Path) -> None:
    said = tool_refusal(tmp_path, "dd", {"rw": "read", "flush": "fsync"})
    assert said == "workloads.0.dd.rw: read does not write; remove sync, flush and input"
