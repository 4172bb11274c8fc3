"""ioping, sysbench, bonnie++, dd and hdparm: real outputs in, samples out; what they are asked."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pvebench.errors import OutputUnreadable, ToolFailed, WorkloadError
from pvebench.guest.recipe import PROGRAMS
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.run import Outcome
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Caveat, Workload, WorksOn
from pvebench.workloads import TOOLS, Job, Parsed, Target
from pvebench.workloads.tool import program
from pvebench_lab.simulated import simulated_tools
from testing.packs import SMALL, tool_refusal, tool_workload, write_pack
from testing.simulations import simulate

GOLDEN = Path(__file__).parents[2] / "golden"
LEAST: dict[str, dict[str, Any]] = {
    "fio": {"rw": "read", "bs": "4k"},
    "dd": {"rw": "read"},
    "bonnie++": {"size": "16M"},
    "sysbench": {"mode": "seqrd", "size": "16M"},
}
"""Tool -> what must be said to it."""


def resolve(tool: str, **options: Any) -> Workload:
    return tool_workload(tool, options, ramp_seconds=2.0, runtime_seconds=8.0)


def golden(workload: Workload, name: str) -> Parsed:
    folder = GOLDEN / workload.tool.rstrip("+")
    return TOOLS[workload.tool].parse(workload, (folder / name).read_text("utf-8"), {})


def values(parsed: Parsed) -> Mapping[tuple[str, str, str], float]:
    return {
        (sample.metric, str(sample.direction or ""), sample.part): sample.value
        for sample in parsed.samples
    }


# --- ioping ---


def test_ioping_gives_rate_latency_and_exact_percentiles() -> None:
    found = values(golden(resolve("ioping", count=101, interval=0), "read.json"))
    assert found["operations", "read", ""] == 100
    assert found["iops", "read", ""] == pytest.approx(100 / found["runtime", "read", ""], rel=1e-3)
    low, high = found["clat_min", "read", ""], found["clat_max", "read", ""]
    assert low < found["clat_percentile", "read", "50"] < found["clat_percentile", "read", "99"]
    assert found["clat_percentile", "read", "99"] <= high < 1
    assert ("clat_percentile", "read", "99.9") not in found


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


# --- dd ---


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


# --- hdparm ---


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("buffered.txt", 236.79),
        ("buffered_de.txt", 180.36),
        ("direct.txt", 3376.42),
        ("cached.txt", 10842.93),
        ("cached_direct.txt", 4829.10),
    ],
)
def test_hdparm_megabytes_are_mebibytes(name: str, rate: float) -> None:
    found = values(golden(resolve("hdparm"), name))
    assert found["bandwidth", "read", ""] == pytest.approx(rate * MIB)
    ratio = found["bytes", "read", ""] / found["runtime", "read", ""] / (rate * MIB)
    assert ratio == pytest.approx(1, rel=0.1)


def test_hdparm_on_a_file_fails_with_its_own_words() -> None:
    with pytest.raises(ToolFailed, match="BLKFLSBUF failed"):
        golden(resolve("hdparm"), "not_a_device.txt")


def test_hdparm_needs_a_device_and_its_cache_test_says_what_it_is() -> None:
    assert resolve("hdparm").place is WorksOn.DEVICE
    assert resolve("hdparm", cached=True).caveats == (Caveat.CACHE,)


# --- bonnie++ ---


def test_bonnie_gives_speeds_seeks_and_cpu() -> None:
    found = values(golden(resolve("bonnie++", size="64M"), "guest.csv"))
    assert found["bandwidth", "write", ""] == 10347 * KIB
    assert found["rewrite_bandwidth", "", ""] == 24567 * KIB
    assert found["bandwidth", "read", ""] == 65712 * KIB
    assert found["seeks", "", ""] == 3774
    assert found["phase_cpu", "write", ""] == pytest.approx(0.87)


def test_a_phase_too_quick_for_bonnie_is_absent_and_said() -> None:
    parsed = golden(resolve("bonnie++", size="64M"), "too_quick.csv")
    assert parsed.samples == ()
    assert "write: too fast for bonnie++ to measure; use a larger size" in parsed.notes


def test_bonnie_without_a_result_line_is_unreadable() -> None:
    with pytest.raises(OutputUnreadable):
        golden(resolve("bonnie++", size="64M"), "ram.txt")


def test_bonnie_says_that_it_measures_caches_and_zeros() -> None:
    assert resolve("bonnie++", size="1G").caveats == (Caveat.CACHE, Caveat.ZEROES)
    assert resolve("bonnie++", size="1G", direct=True).caveats == (Caveat.ZEROES,)


@pytest.mark.parametrize(("user", "option"), [("0", "-u 0"), ("1000", "")])
def test_bonnie_sets_a_user_only_where_root_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, option: str
) -> None:
    """Under the unit of the package, bonnie++ with `-u` ends: "Can't set gid to 999"."""
    for name, line in {"id": f"echo {user}", "bonnie++": 'echo "$*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job = TOOLS["bonnie++"].job(resolve("bonnie++", size="16M"), _target(tmp_path, 16 * MIB))
    Path(job.output).parent.mkdir(exist_ok=True)
    subprocess.run(job.argv, check=True)
    assert Path(job.output).read_text("utf-8").partition("pvebench")[2].strip() == option


def test_the_bonnie_job_runs_here_and_leaves_no_file(tmp_path: Path) -> None:
    workload = resolve("bonnie++", size="16M")
    ran(workload, tmp_path, size=16 * MIB)
    assert list((tmp_path / "scratch").iterdir()) == []


# --- sysbench ---


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
    target = _target(tmp_path, 4 * MIB)
    job = TOOLS["sysbench"].job(workload, target)
    _run_all(job)
    made = (tmp_path / "scratch/sysbench/test_file.0").read_bytes()
    assert made.count(0) < len(made) / 50
    found = values(TOOLS["sysbench"].parse(workload, Path(job.output).read_text("utf-8"), {}))
    assert found["iops", "read", ""] > 0
    subprocess.run(job.cleanup, check=True)
    assert list((tmp_path / "scratch").iterdir()) == []


# --- all ---


def test_a_tool_with_files_of_its_own_gets_their_size_unchanged() -> None:
    workload = resolve("bonnie++", size="32M")
    target = Target(device="/mnt/test/fio.dat", size_bytes=64 * MIB, file=True, scratch="/mnt/test")
    command = TOOLS["bonnie++"].job(workload, target).argv[-1]
    assert " -s 32 " in command


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        ("ioping", {"cuont": 3}, "unknown key 'cuont'; did you mean 'count'?"),
        ("ioping", {"count": 2}, ".ioping.count: expected 3 or more, found 2"),
        (
            "ioping",
            {"interval": "5"},
            ".ioping.interval: invalid duration '5': write a number with",
        ),
        ("ioping", {"size": 512}, ".ioping.size: 512 bytes is less than one block of 4096"),
        ("dd", {}, "missing key 'rw'"),
        ("dd", {"rw": "write", "input": "one"}, ".dd.input: 'one' is not one of 'random' or"),
        ("hdparm", {"direct": 1}, ".hdparm.direct: expected true or false, found 1"),
        ("bonnie++", {}, "missing key 'size'"),
        ("bonnie++", {"size": "17000000"}, ".size: 17000000 bytes is not a whole number of MiB"),
        ("sysbench", {"mode": "rndrw", "size": "1M", "files": 3}, ".size: 1048576 bytes is not"),
        ("sysbench", {"mode": "random", "size": "1M"}, ".mode: 'random' is not one of"),
        (
            "sysbench",
            {"mode": "rndrw", "size": "1M", "valdate": True},
            "unknown key 'valdate'; did you mean 'validate'?",
        ),
    ],
)
def test_a_wrong_option_is_named(
    tmp_path: Path, tool: str, options: dict[str, Any], message: str
) -> None:
    assert message in tool_refusal(tmp_path, tool, options)


def test_slugs_name_what_differs_from_the_default() -> None:
    assert resolve("ioping").slug == "ioping-4k-n10"
    assert resolve("dd", rw="write", bs=512, count=1000, direct=True).slug == (
        "dd-write-512-n1000-direct"
    )
    assert resolve("sysbench", mode="rndwr", size="2G", version=2).slug == (
        "sysbench-rndwr-16k-size2G@2"
    )
    assert resolve("hdparm", cached=True, direct=True).slug == "hdparm-cached-direct"


def ran(workload: Workload, folder: Path, *, size: int = MIB) -> Parsed:
    """Run the tool's job for real on a file in `folder`; return what its output says."""
    job = TOOLS[workload.tool].job(workload, _target(folder, size))
    _run_all(job)
    if job.cleanup:
        subprocess.run(job.cleanup, check=True)
    return TOOLS[workload.tool].parse(workload, Path(job.output).read_text("utf-8"), {})


def _target(folder: Path, size: int) -> Target:
    (folder / "target").write_bytes(b"\0" * size)
    (folder / "scratch").mkdir(exist_ok=True)
    return Target(
        device=str(folder / "target"),
        size_bytes=size,
        file=True,
        scratch=str(folder / "scratch"),
        work=str(folder),
    )


def _run_all(job: Job) -> None:
    for argv in job.prepare:
        subprocess.run(argv, check=True)
    subprocess.run(job.argv, check=True, capture_output=True)


def test_every_tool_runs_in_the_simulation_too(tmp_path: Path) -> None:
    pack = SMALL.replace("volume:\n  size: 64M", "volume:\n  size: 128M\n  file: 32M")
    pack = pack.replace(
        "cache: [none]", "cache: [none]\nhost: true\nvariants: [{filesystem: ext4}]"
    )
    pack += """\
  - ioping: {count: 20, interval: 0}
  - ioping: {rw: write}
  - dd: {rw: read}
  - dd: {rw: write, bs: 4k, count: 100, sync: true}
  - hdparm: {}
  - bonnie++: {size: 32M}
  - sysbench: {mode: rndrw, size: 16M}
  - sysbench: {mode: seqrd, size: 16M, direct: true}
"""
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, pack))
    simulation.worker.run()
    runs = simulation.recorder.runs
    assert {(run.outcome, run.reason) for run in runs} == {(Outcome.OK, "")}
    assert {run.case.workload.tool for run in runs} == {
        "fio",
        "ioping",
        "dd",
        "hdparm",
        "bonnie++",
        "sysbench",
    }
    assert all(any(s.metric == "bandwidth" for s in run.samples) for run in runs)


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_is_simulated_with_the_output_of_its_job(tool: str, tmp_path: Path) -> None:
    disk = simulated_tools.SimulatedDisk(
        name="d", disk=Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE), rng=random.Random(1)
    )
    job = TOOLS[tool].job(resolve(tool, **LEAST.get(tool, {})), _target(tmp_path, 16 * MIB))
    played = simulated_tools.simulate(job.argv, job.files, disk)
    assert played is not None
    assert played.output == (job.output if played.moves_data else "")


@pytest.mark.parametrize("tool", TOOLS)
def test_the_guest_has_the_program_of_every_tool(tool: str, tmp_path: Path) -> None:
    job = TOOLS[tool].job(resolve(tool, **LEAST.get(tool, {})), _target(tmp_path, 16 * MIB))
    needed = TOOLS[tool].program
    assert needed in PROGRAMS if needed else job.argv[0] == "/bin/sleep"
    assert any(needed in word for word in job.argv)


@pytest.mark.parametrize("tool", [name for name, room in TOOLS.items() if room.program])
def test_every_tool_has_real_outputs_and_says_where_they_come_from(tool: str) -> None:
    folder = GOLDEN / tool.rstrip("+")
    assert (folder / "README.md").is_file()
    assert len(list(folder.iterdir())) > 1


def test_a_program_that_is_not_there_is_named() -> None:
    command = ["/bin/sh", "-c", f"{program('no-such-tool')} -x"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 127
    assert "/bin/no-such-tool" in said.stderr


@pytest.mark.parametrize("name", ["count", "size", "time", "iops", "bps"])
def test_an_ioping_summary_without_a_number_is_unreadable(name: str) -> None:
    text = (GOLDEN / "ioping" / "read.json").read_text("utf-8")
    entries = json.loads(text)
    del entries[-1]["stat"][name]
    with pytest.raises(OutputUnreadable, match=f"no usable number {name}"):
        TOOLS["ioping"].parse(resolve("ioping", count=101, interval=0), json.dumps(entries), {})


# --- numbers that cannot be true ---


@pytest.mark.parametrize(
    ("tool", "options", "file", "old", "new", "what"),
    [
        ("ioping", {"count": 101}, "read.json", '"avg": 336036', '"avg": 9336036', "above max"),
        ("ioping", {"count": 101}, "read.json", '"min": 40570', '"min": -1', "min is -1"),
        ("ioping", {"count": 101}, "read.json", '"max": 6188110', '"max": 6188109', "not between"),
        ("ioping", {"count": 101}, "read.json", '"count": 100,', '"count": 110,', "listed"),
        ("ioping", {"count": 101}, "read.json", '"time": 33603594', '"time": 0', "not above 0"),
        ("ioping", {"count": 101}, "read.json", '"iops": 2975', '"iops": 9975', "IOPS for"),
        ("ioping", {"count": 101}, "read.json", '"bps": 12189172', '"bps": 22189172', "bytes/s"),
        ("ioping", {"count": 101}, "read.json", '"mdev": 1012912', '"mdev": 9e9', "stddev"),
        (
            "ioping",
            {"count": 101},
            "read.json",
            '"bps": 12189172',
            '"bps": 1' + "0" * 400,
            "usable",
        ),
        (
            "ioping",
            {"count": 101},
            "read.json",
            '"iops": 2975',
            '"iops": 5, "iops": 2975',
            "duplicate key iops",
        ),
        (
            "ioping",
            {"count": 101},
            "read.json",
            '"avg": 336036',
            '"avg": 50000',
            "avg 50000 is not",
        ),
        (
            "ioping",
            {"count": 101},
            "read.json",
            '"time": 6188110',
            '"time": 41000',
            "listed requests",
        ),
        ("sysbench", {"mode": "rndrw"}, "rndrw.txt", "6.0074s", "60.074s", "are not 32842 events"),
        ("sysbench", {"mode": "rndrw"}, "rndrw.txt", "54.26", "9954.26", "are not 32842 events"),
        (
            "bonnie++",
            {},
            "guest.csv",
            "65712",
            "1e300",
            "bandwidth of 1.02e[+]303 exceeds the limit of any",
        ),
        ("bonnie++", {}, "guest.csv", "3774", "1e13", "seeks of 1e[+]13 exceeds the limit of any"),
        ("bonnie++", {}, "guest.csv", "1.98,", "x" * 200_000 + "\n1.98,", "no result line"),
        (
            "dd",
            {"rw": "read"},
            "read.txt",
            "0.0597794",
            "1e-300",
            "exceeds the limit of any machine",
        ),
        ("sysbench", {"mode": "rndrw"}, "rndrw.txt", " 0.18\n", "90.18\n", "above max"),
        ("sysbench", {"mode": "rndrw"}, "rndrw.txt", " 0.05\n", "60.05\n", "above mean"),
        ("sysbench", {"mode": "rndrw"}, "rndrw.txt", " 3.43\n", "93.43\n", "99 of"),
        ("sysbench", {"mode": "rndrw"}, "rndrw.txt", "50.74", "90.74", "IOPS x 16384"),
        ("sysbench", {"mode": "rndrw"}, "rndrw.txt", "6.0074s", "0.0000s", "total time is 0"),
        ("sysbench", {"mode": "rndrw"}, "rndrw.txt", "3247.27", "3247.2.7", "is not a number"),
        ("bonnie++", {}, "guest.csv", "65712", "-65712", "read is -65712"),
        ("bonnie++", {}, "guest.csv", "65712", "0", "read is 0"),
        ("bonnie++", {}, "guest.csv", "65712", "nan", "is not a number"),
        ("bonnie++", {}, "guest.csv", "65712,91", "65712,-91", "read_cpu is -91"),
        ("hdparm", {}, "buffered.txt", "0.27 seconds", "0.00 seconds", "time is 0"),
        ("hdparm", {}, "buffered.txt", "236.79", "0.00", "rate is 0"),
        ("hdparm", {}, "buffered.txt", "236.79", "2.3.6", "is not a number"),
        ("dd", {"rw": "read"}, "read.txt", "0.0597794", "1e999", "is not a number"),
        ("dd", {"rw": "read"}, "read.txt", "0.0597794", "1e", "is not a number"),
        ("dd", {"rw": "read"}, "read.txt", "64+0 records", "65+0 records", r"65\+0 records out"),
        ("dd", {"rw": "read"}, "read.txt", "67108864", "9" * 5000, "is not a number"),
    ],
)
def test_numbers_that_cannot_be_true_are_unreadable(
    tool: str, options: dict[str, Any], file: str, old: str, new: str, what: str
) -> None:
    given = {"sysbench": {"size": "256M"}, "bonnie++": {"size": "64M"}}.get(tool, {})
    workload = resolve(tool, **given, **options)
    text = (GOLDEN / tool.rstrip("+") / file).read_text("utf-8")
    TOOLS[tool].parse(workload, text, {})
    assert old in text
    with pytest.raises(OutputUnreadable, match=what):
        TOOLS[tool].parse(workload, text.replace(old, new), {})


@pytest.mark.parametrize(
    ("workload", "file"),
    [
        (resolve("ioping", count=101), "read.json"),
        (resolve("dd", rw="read"), "read.txt"),
        (resolve("hdparm"), "buffered.txt"),
        (resolve("bonnie++", size="64M"), "guest.csv"),
        (resolve("sysbench", mode="rndrw", size="256M"), "rndrw.txt"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.tool,
)
def test_of_two_results_in_one_output_none_is_taken(workload: Workload, file: str) -> None:
    golden(workload, file)
    text = (GOLDEN / workload.tool.rstrip("+") / file).read_text("utf-8")
    with pytest.raises(OutputUnreadable, match=r"2 results|duplicate key|invalid ioping JSON"):
        TOOLS[workload.tool].parse(workload, text + text, {})


def test_sysbench_counts_its_percentile_in_bins_of_equal_ratio() -> None:
    # sb_logger.c: 1024 bins from 0.001 to 100,000 ms, so that it may be 1 % above the maximum.
    workload = resolve("sysbench", mode="rndrw", size="256M")
    text = (GOLDEN / "sysbench" / "rndrw.txt").read_text("utf-8")
    found = values(TOOLS["sysbench"].parse(workload, text.replace(" 3.43\n", "69.40\n"), {}))
    assert found["clat_max", "", ""] < found["clat_percentile", "", "99"]
