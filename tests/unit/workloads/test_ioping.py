"""ioping: real output, and its job on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pvebench.errors import OutputUnreadable, ToolFailed, WorkloadError
from pvebench.model.workload import Caveat
from pvebench.workloads import TOOLS
from testing.tools import GOLDEN, golden, ran, resolve, values


def test_ioping_gives_rate_latency_and_exact_percentiles() -> None:
    found = values(golden(resolve("ioping", count=101, interval=0), "read.json"))
    assert found["operations", "read", ""] == 100
    assert found["iops", "read", ""] == pytest.approx(100 / found["runtime", "read", ""], rel=1e-3)
    low, high = found["clat_min", "read", ""], found["clat_max", "read", ""]
    assert low < found["clat_percentile", "read", "50"] < found["clat_percentile", "read", "99"]
    assert found["clat_percentile", "read", "99"] <= high < 1
    assert ("clat_percentile", "read", "99.9") not in found


def test_pings_with_pauses_have_latencies_but_no_rate() -> None:
    """ioping's rates are requests per time of requests: 427 IOPS here, although 59 per second."""
    found = values(golden(resolve("ioping", cached=True, count=5, interval="20ms"), "cached.json"))
    assert found["clat_mean", "read", ""] == pytest.approx(0.002341693)
    assert not {metric for metric, *_ in found} & {"iops", "bandwidth", "runtime"}


def test_few_pings_have_no_high_percentile() -> None:
    found = values(golden(resolve("ioping", rw="write", count=10, interval=0), "write.json"))
    assert ("clat_percentile", "write", "50") in found
    assert ("clat_percentile", "write", "90") not in found


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("interrupted.json", ToolFailed),
        ("truncated.json", OutputUnreadable),
        ("missing.txt", OutputUnreadable),
    ],
)
def test_an_ioping_that_did_not_go_through_is_no_result(
    name: str, error: type[WorkloadError]
) -> None:
    with pytest.raises(error):
        golden(resolve("ioping", count=10), name)


def test_cached_ioping_carries_its_caveat() -> None:
    assert resolve("ioping", cached=True).caveats == (Caveat.CACHE,)
    assert resolve("ioping").caveats == ()


def test_the_ioping_job_runs_here_and_its_output_is_read(tmp_path: Path) -> None:
    workload = resolve("ioping", rw="write", count=12, interval=0)
    assert values(ran(workload, tmp_path))["operations", "write", ""] == 11


@pytest.mark.parametrize("name", ["count", "size", "time", "iops", "bps"])
def test_an_ioping_summary_without_a_number_is_unreadable(name: str) -> None:
    text = (GOLDEN / "ioping" / "read.json").read_text("utf-8")
    entries = json.loads(text)
    del entries[-1]["stat"][name]
    with pytest.raises(OutputUnreadable, match=f"no usable number {name}"):
        TOOLS["ioping"].parse(resolve("ioping", count=101, interval=0), json.dumps(entries), {})
