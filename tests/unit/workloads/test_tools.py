"""ioping, sysbench, bonnie++, dd and hdparm: real outputs in, samples out; what they are asked."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pvebench.errors import OutputUnreadable
from pvebench.guest.recipe import PROGRAMS
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.run import Outcome
from pvebench.model.units import MIB
from pvebench.model.workload import Workload
from pvebench.workloads import TOOLS, Target
from pvebench.workloads.tool import program
from pvebench_lab.simulated import simulated_tools
from testing.packs import SMALL, tool_refusal, write_pack
from testing.simulations import simulate
from testing.tools import GOLDEN, file_target, golden, resolve

LEAST: dict[str, dict[str, Any]] = {
    "fio": {"rw": "read", "bs": "4k"},
    "dd": {"rw": "read"},
    "bonnie++": {"size": "16M"},
    "sysbench": {"mode": "seqrd", "size": "16M"},
}
"""Tool -> what must be said to it."""


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
    rateless = [run for run in runs if not any(s.metric == "bandwidth" for s in run.samples)]
    assert {run.case.workload.slug for run in rateless} == {"ioping-write-4k-n10"}


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_is_simulated_with_the_output_of_its_job(tool: str, tmp_path: Path) -> None:
    disk = simulated_tools.SimulatedDisk(
        name="d", disk=Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE), rng=random.Random(1)
    )
    job = TOOLS[tool].job(resolve(tool, **LEAST.get(tool, {})), file_target(tmp_path, 16 * MIB))
    played = simulated_tools.simulate(job.argv, job.files, disk)
    assert played is not None
    assert played.output == (job.output if played.moves_data else "")


@pytest.mark.parametrize("tool", TOOLS)
def test_the_guest_has_the_program_of_every_tool(tool: str, tmp_path: Path) -> None:
    job = TOOLS[tool].job(resolve(tool, **LEAST.get(tool, {})), file_target(tmp_path, 16 * MIB))
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
