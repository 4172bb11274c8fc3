"""Whatever comes out of the guest, the parser is right or says that it cannot be."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvebench.errors import OutputUnreadable, WorkloadError
from pvebench.model.units import MIB
from pvebench.model.workload import Workload
from pvebench.workloads.fio import Fio, fill_job
from pvebench.workloads.tool import Target
from testing.packs import tool_workload

GOLDEN = Path(__file__).parents[1] / "golden" / "fio"
FIO = Fio()


def workload_of(**options: Any) -> Workload:
    return tool_workload("fio", {"bs": "4k", **options}, ramp_seconds=0.5, runtime_seconds=2)


MIXED = workload_of(rw="randrw", iodepth=4, rwmixread=75)
SYNCED = workload_of(rw="randwrite", fsync=1)
OUTPUT = (GOLDEN / "mixed.json").read_text()
DOCUMENT = json.loads(OUTPUT)
JOB = DOCUMENT["jobs"][0]
LOGS = {"fio_iops.log": (GOLDEN / "mixed_iops.log").read_text()}
SAMPLES = FIO.parse(MIXED, OUTPUT, LOGS).samples

numbers = (
    st.integers(-(10**20), 10**20) | st.floats() | st.sampled_from([0, -1, 10**400, 1e308, True])
)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


def paths(node: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(node, dict):
        items = list(node.items())
    elif isinstance(node, list):
        items = list(enumerate(node))
    return [prefix, *(path for key, inner in items for path in paths(inner, (*prefix, key)))]


PATHS = [path for path in paths(DOCUMENT) if path]


def replaced(path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(DOCUMENT)
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return document


def check(workload: Workload, output: str, logs: dict[str, str]) -> None:
    """Parse; only our own errors may come out, and only believable samples."""
    try:
        parsed = FIO.parse(workload, output, logs)
    except WorkloadError:
        return
    assert all(math.isfinite(sample.value) and sample.value >= 0 for sample in parsed.samples)
    steps = [step for series in parsed.intervals.values() for step in series]
    assert all(math.isfinite(step) and step >= 0 for step in steps)


@given(before=st.text(max_size=60), after=st.text(max_size=60))
def test_text_around_the_output_changes_no_sample(before: str, after: str) -> None:
    assert FIO.parse(MIXED, f"{before}\n{OUTPUT}\n{after}", LOGS).samples == SAMPLES


@given(
    before=st.text('{}[]":, \n\\jobs1', max_size=40),
    after=st.text('{}[]":, \n\\jobs1', max_size=40),
)
def test_brackets_around_the_output_change_no_sample(before: str, after: str) -> None:
    assert FIO.parse(MIXED, before + " " + OUTPUT + after, LOGS).samples == SAMPLES


@given(st.integers(0, len(OUTPUT)))
def test_truncated_output_is_unreadable_unless_only_blanks_are_lost(length: int) -> None:
    if OUTPUT[length:].strip():
        with pytest.raises(OutputUnreadable):
            FIO.parse(MIXED, OUTPUT[:length], LOGS)
    else:
        assert FIO.parse(MIXED, OUTPUT[:length], LOGS).samples == SAMPLES


@given(path=st.sampled_from(PATHS), value=values)
def test_one_strange_value_anywhere_gives_believable_samples_or_our_error(
    path: tuple[Any, ...], value: Any
) -> None:
    output = json.dumps(replaced(path, value))
    check(MIXED, output, LOGS)
    check(SYNCED, output, {})


@given(st.lists(values, max_size=3) | values)
def test_arbitrary_json_gives_nothing_but_our_error(jobs: Any) -> None:
    check(MIXED, json.dumps({"jobs": jobs}), LOGS)
    check(MIXED, json.dumps(jobs), LOGS)


@given(st.text())
def test_arbitrary_text_gives_nothing_but_our_error(output: str) -> None:
    check(MIXED, output, LOGS)


line = st.tuples(st.integers(0, 3000), st.integers(0, 10**12), st.integers(0, 3)).map(
    lambda entry: f"{entry[0]}, {entry[1]}, {entry[2]}, 0, 0"
)


@given(st.lists(line | st.text(max_size=20), max_size=30))
def test_arbitrary_log_never_spoils_the_samples(lines: list[str]) -> None:
    check(MIXED, OUTPUT, {"fio_iops.log": "\n".join(lines)})


@given(st.permutations(range(8)))
def test_order_of_the_lines_in_a_log_does_not_matter(order: list[int]) -> None:
    lines = LOGS["fio_iops.log"].splitlines()
    shuffled = {"fio_iops.log": "\n".join(lines[index] for index in order)}
    assert FIO.parse(MIXED, OUTPUT, shuffled) == FIO.parse(MIXED, OUTPUT, LOGS)


@given(
    st.lists(
        st.tuples(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 10**9)),
        min_size=1,
        max_size=6,
    )
)
def test_several_jobs_add_up(figures: list[tuple[int, int, int]]) -> None:
    jobs = []
    for operations, count, mean in figures:
        job = copy.deepcopy(JOB)
        clat = {"N": count, "mean": mean, "min": mean, "max": mean, "stddev": 0.0}
        job["read"] |= {
            "total_ios": operations,
            "iops": operations / 2,
            "io_bytes": operations * 4096,
            "bw_bytes": operations * 2048,
            "clat_ns": clat,
        }
        jobs.append(job)
    parsed = FIO.parse(MIXED, json.dumps({"jobs": jobs}), {})
    found = {(sample.metric, sample.direction): sample.value for sample in parsed.samples}
    read = MIXED.directions[0]
    total = sum(operations for operations, _, _ in figures)
    means = [mean for _, _, mean in figures]
    weighted = sum(n * mean for _, n, mean in figures) / sum(n for _, n, _ in figures)
    assert found["operations", read] == total
    assert found["iops", read] == pytest.approx(total / 2)
    assert found["bandwidth", read] == pytest.approx(total * 2048)
    assert found["clat_mean", read] == pytest.approx(weighted / 1e9)
    assert found["clat_max", read] == pytest.approx(max(means) / 1e9)
    assert found["clat_min", read] == pytest.approx(min(means) / 1e9)


@given(
    rw=st.sampled_from(["read", "write", "randread", "randwrite", "rw", "randrw", "trim"]),
    power=st.integers(9, 26),
    numjobs=st.integers(1, 64),
    blocks=st.integers(64, 10_000),
    odd=st.integers(0, 511),
    rate=st.integers(2, 1000),
)
def test_jobs_stay_within_the_device_and_the_rate(
    rw: str, power: int, numjobs: int, blocks: int, odd: int, rate: int
) -> None:
    size = blocks * 2**power + odd
    options = {"rw": rw, "bs": 2**power, "numjobs": numjobs, "rate_iops": 2 * rate * numjobs}
    job = FIO.job(
        tool_workload("fio", options, ramp_seconds=1, runtime_seconds=1),
        Target(device="/dev/x", size_bytes=size),
    )
    text = job.files[job.argv[-1]].decode()
    lines = dict(line.split("=") for line in text.splitlines()[1:])
    area = int(lines["size"])
    end = int(lines.get("offset_increment", 0)) * (numjobs - 1) + area
    assert area % 2**power == 0
    assert 0 < end <= size
    assert sum(map(int, lines["rate_iops"].split(","))) * numjobs == 2 * rate * numjobs


@given(st.integers(1, 64 * MIB // 512).map(lambda sectors: sectors * 512), st.integers())
def test_fill_block_divides_every_size_of_whole_sectors(size: int, seed: int) -> None:
    job = fill_job(Target(device="/dev/x", size_bytes=size), seed)
    fill, proof = job.files[job.argv[-1]].decode().split("[proof]\n")
    lines = dict(line.split("=") for line in fill.splitlines()[1:])
    assert int(lines["size"]) == size
    assert size % int(lines["bs"]) == 0
    assert int(lines["randseed"]) >= 0
    spread = dict(line.split("=") for line in proof.splitlines())
    block, skipped = int(spread["bs"]), int(spread["rw"].partition(":")[2] or 0)
    blocks = int(spread["io_size"]) // block
    assert 1 <= blocks <= 16
    assert skipped % block == 0
    assert (blocks - 1) * (skipped + block) + block <= size
