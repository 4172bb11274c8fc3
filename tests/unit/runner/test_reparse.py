"""`pvebench reparse`: the numbers of stored runs, read again from their raw output.

What a mended database is compared with is one that was measured with the right parser from the
start: the simulation gives the same outputs for the same seed.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvebench.cli.main import run_cli
from pvebench.errors import OutputUnreadable
from pvebench.model.definition import Definition
from pvebench.model.disk import ChainKind, Compression, HostCache, PrimaryCache, Sync
from pvebench.model.figure import Source
from pvebench.model.ports import HostSnapshot
from pvebench.model.run import Sample
from pvebench.model.run_metrics import of_source
from pvebench.model.scenario import Filesystem, Layout
from pvebench.model.volume import BlockCounters
from pvebench.model.workload import Direction, Workload
from pvebench.runner.reparse import restored_case
from pvebench.runner.steady import Settled, Steadiness
from pvebench.runner.window import (
    Activity,
    Mark,
    condition_samples,
    network_samples,
    window_samples,
)
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store
from pvebench.workloads import TOOLS, Parsed, Target
from pvebench.workloads.fio import Fio
from testing.changes import CASES
from testing.packs import SMALL, tool_workload, write_pack
from testing.simulations import simulate

HOST_TOO = SMALL.replace("cache: [none]", "cache: [none]\nhost: true")
EVERY_TOOL = (
    HOST_TOO.replace("host: true", "host: true\nvariants: [{filesystem: ext4}]")
    .replace("size: 64M", "size: 128M\n  file: 32M")
    .replace("runtime: 2s", "runtime: 2s\n  steady: {interval: 1s, window: 3, limit: 10s}")
    + """\
  - fio: {rw: randwrite, bs: 4k, iodepth: 1, fsync: 1}
  - ioping: {count: 20, interval: 0}
  - sysbench: {mode: rndrw, size: 16M}
  - bonnie++: {size: 32M}
  - dd: {rw: write, bs: 4k, count: 100, sync: true}
  - hdparm: {}
  - idle: {}
  - boot: {}
"""
)


def measured(directory: Path, text: str = HOST_TOO) -> Path:
    """A database of one simulated cycle."""
    directory.mkdir()
    simulation = simulate(directory, pack=write_pack(directory, text))
    simulation.worker.run()
    simulation.store.close()
    return directory


def everything(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a database but the uids of its runs and cycles, which are random."""
    with closing(sqlite3.connect(directory / "pvebench.db")) as connection:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for (name,) in tables.fetchall()
        }


def corrected(
    rows: Mapping[str, list[tuple[Any, ...]]], *changed: int
) -> dict[str, list[tuple[Any, ...]]]:
    """The same rows, after these runs were corrected once: the hub of a fleet reads their number.

    Args:
        changed: IDs of the runs.
    """
    runs = [(*run[:-1], run[-1] + (run[0] in changed)) for run in rows["runs"]]
    return {**rows, "runs": runs}


def numbers(directory: Path) -> dict[tuple[Any, ...], float]:
    rows = everything(directory)["samples"]
    return {(run, metric, way, part): value for run, metric, way, part, value, _ in rows}


def mistaken(monkeypatch: pytest.MonkeyPatch, factors: Mapping[str, float]) -> pytest.MonkeyPatch:
    """Let fio's parser multiply some of its numbers, each run's once more than the last one's."""
    right, runs = Fio.parse, itertools.count(1)

    def wrong(room: Fio, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        parsed = right(room, workload, output, logs)
        number = next(runs)
        return replace(
            parsed, samples=tuple(_times(one, factors, number) for one in parsed.samples)
        )

    monkeypatch.setattr(Fio, "parse", wrong)
    return monkeypatch


def _times(sample: Sample, factors: Mapping[str, float], number: int) -> Sample:
    return replace(sample, value=sample.value * factors.get(sample.metric, 1.0) ** number)


def reparse(directory: Path, *options: str) -> int:
    return run_cli(["reparse", "--state", str(directory), *options])


def test_what_todays_parsers_have_read_stays_as_it_is_with_every_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = measured(tmp_path / "state", EVERY_TOOL)
    before = everything(state)
    assert reparse(state, "--apply") == 0
    told = capsys.readouterr().out
    assert f"0 of {len(before['runs'])} runs changed" in told
    assert everything(state) == before
    tools = {json.loads(case[5])["workload"]["tool"] for case in before["cases"]}
    assert tools == TOOLS.keys()
    metrics = {metric for _, metric, *_ in before["samples"]}
    assert {"boot_time", "steady_time", "iops_slope", "flush_share", "guest_to_host"} <= metrics


def test_a_parsers_mistake_is_repaired_to_what_the_right_parser_would_have_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = measured(tmp_path / "right")
    with monkeypatch.context() as patch:
        mistaken(patch, {"clat_mean": 1000.0, "iops": 1.002, "bytes": 1.002})
        wrong = measured(tmp_path / "wrong")
    before = everything(wrong)
    assert numbers(wrong) != pytest.approx(numbers(right), rel=1e-9)

    assert reparse(wrong) == 0
    said = capsys.readouterr().out
    assert "clat_mean read: 1 of 1 runs, to 0.001 times the old value (0.001 to 0.001)" in said
    assert "3 of 3 runs would change" in said
    assert "nothing saved; add --apply" in said
    assert everything(wrong) == before  # byte for byte, as far as SQL can see

    assert reparse(wrong, "--apply") == 0
    assert "3 of 3 runs changed" in capsys.readouterr().out
    assert numbers(wrong) == pytest.approx(numbers(right), rel=1e-9)
    after = everything(wrong)
    expected = corrected(before, 1, 2, 3)
    for table in before.keys() - {"samples", "run_numbers"}:
        assert after[table] == expected[table], table
    judged, of_right = (
        [value for row in of["run_numbers"] for value in row if isinstance(value, float)]
        for of in (after, everything(right))
    )
    assert judged == pytest.approx(of_right, rel=1e-9)

    assert reparse(wrong, "--apply") == 0
    assert "0 of 3 runs changed" in capsys.readouterr().out
    assert everything(wrong) == after


def test_a_number_that_only_the_mistaken_parser_gave_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = measured(tmp_path / "state")
    before = everything(state)
    with closing(sqlite3.connect(state / "pvebench.db")) as connection, connection:
        connection.execute("INSERT INTO samples VALUES (1, 'jitter', 'read', '', 1.0, 'seconds')")
        connection.execute(
            "INSERT INTO samples VALUES (1, 'clat_percentile', 'read', '42', 1.0, 'seconds')"
        )
        connection.execute("DELETE FROM samples WHERE run = 2 AND metric = 'slat_mean'")
        connection.execute("DELETE FROM samples WHERE run = 3 AND metric = 'clat_max'")
    assert reparse(state, "--apply") == 0
    said = capsys.readouterr().out
    assert "jitter read: 1 of 1 runs, removed in 1" in said
    assert "clat_percentile read 42: 1 of 1 runs, removed in 1" in said
    assert "clat_max read: 1 of 1 runs, added in 1" in said
    assert everything(state) == corrected(before, 1, 2, 3)


def test_a_run_whose_doubts_are_gone_stays_implausible_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = measured(tmp_path / "right")
    with monkeypatch.context() as patch:
        mistaken(patch, {"iops": 2.0})
        wrong = measured(tmp_path / "wrong")
    before = everything(wrong)
    assert {run[10] for run in before["runs"]} == {"implausible"}
    assert reparse(wrong, "--apply") == 0
    assert "3 runs still implausible without a failed check" in capsys.readouterr().out
    # A implausible run of the host is compared with nothing.
    expected = {key: v for key, v in numbers(right).items() if key[1] != "guest_to_host"}
    assert numbers(wrong) == pytest.approx(expected, rel=1e-9)
    assert everything(wrong)["runs"] == corrected(before, 1, 2, 3)["runs"]


def test_a_guest_compared_with_a_repaired_host_is_compared_again(tmp_path: Path) -> None:
    state = measured(tmp_path / "state")
    right = everything(state)
    with closing(sqlite3.connect(state / "pvebench.db")) as connection, connection:
        host = "(SELECT id FROM runs WHERE scenario = 'local.host.raw.none')"
        connection.execute(
            f"UPDATE samples SET value = value * 2 WHERE metric = 'iops' AND run = {host}"
        )
        connection.execute("UPDATE samples SET value = value / 2 WHERE metric = 'guest_to_host'")
    wrong = numbers(state)
    assert reparse(state, "--apply") == 0
    assert sum(key[1] == "guest_to_host" for key in wrong) == 2
    assert everything(state) == corrected(right, 1, 2, 3)


def test_what_no_output_has_stays_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = measured(tmp_path / "state")
    rows = [("pass_to_first", "read", "", 1.5, "ratio"), ("fault_time", "", "", 3.0, "seconds")]
    with closing(sqlite3.connect(state / "pvebench.db")) as connection, connection:
        statement = "INSERT INTO samples VALUES (1, ?, ?, ?, ?, ?)"
        connection.executemany(statement, rows)
    mistaken(monkeypatch, {"clat_max": 2.0})
    assert reparse(state, "--apply") == 0
    after = numbers(state)
    assert after[1, "pass_to_first", "read", ""] == 1.5
    assert after[1, "fault_time", "", ""] == 3.0


def test_the_case_of_a_run_is_restored_with_every_option() -> None:
    options = {
        "thin_chunk": 65536,
        "volblocksize": 4096,
        "primarycache": PrimaryCache.ALL,
        "sync": Sync.ALWAYS,
        "compression": Compression.ZSTD,
        "drive_cache": False,
        "read_ahead": 131072,
        "iothread": True,
        "queues": 4,
        "chain": 2,
        "chain_kind": ChainKind.STORAGE,
    }
    plain = CASES[0].scenario
    scenario = replace(
        plain,
        disk=replace(plain.disk, **options),
        layout=Layout(filesystem=Filesystem.XFS, mount_options="noatime", file_bytes=1 << 25),
        host_cache=HostCache.ARC,
        identity="other",
    )
    case = replace(CASES[0], scenario=scenario)
    assert restored_case(Definition.of(case)).scenario == scenario


def test_a_definition_that_todays_parser_does_not_know_costs_its_own_run_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = measured(tmp_path / "state")
    with closing(sqlite3.connect(state / "pvebench.db")) as connection, connection:
        connection.execute(
            "UPDATE cases SET definition = json_set(definition, '$.workload.tool', 'old') "
            "WHERE last_run = 1"
        )
    assert reparse(state, "--apply") == 0
    said = capsys.readouterr().out
    assert "0 of 2 runs changed" in said
    assert "1 run unchanged: unreadable output: KeyError: 'old'" in said


def test_doubts_that_do_not_come_from_the_parser_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = measured(tmp_path / "state")
    with closing(Store(state / "pvebench.db")) as store:
        (number,) = (run.number for run in store.runs() if ".virtio." in run.scenario)
    rows = [
        ("host_bytes", "", "process_read", 1e6, "bytes"),
        ("device_share", "read", "", 0.9, "ratio"),
        ("host_cpu", "", "total", 1e6, "cores"),
        ("implausibility", "", "cpu", 1.0, "ratio"),
        ("implausibility", "", "not_filled", 1.0, "ratio"),
    ]
    with closing(sqlite3.connect(state / "pvebench.db")) as connection, connection:
        statement = "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?)"
        connection.executemany(statement, [(number, *row) for row in rows])
        connection.execute("UPDATE runs SET outcome = 'implausible' WHERE id = ?", [number])
    mistaken(monkeypatch, {"bytes": 2.0})
    assert reparse(state, "--apply") == 0
    after = {key[1:]: value for key, value in numbers(state).items() if key[0] == number}
    assert {part for metric, _, part in after if metric == "implausibility"} == {
        "cpu",
        "not_filled",
        "size",
    }
    rate = after["bytes", "read", ""] / after["runtime", "read", ""]
    share = 1e6 / after["window", "", ""] / rate  # docs/measurement.md
    assert after["device_share", "read", ""] == pytest.approx(share)


def test_a_run_whose_right_numbers_do_not_hold_together_becomes_implausible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = measured(tmp_path / "state")
    mistaken(monkeypatch, {"iops": 2.0})
    assert reparse(state, "--apply") == 0
    assert "3 of them from ok to implausible" in capsys.readouterr().out
    with closing(Store(state / "pvebench.db")) as store:
        for run in store.runs():
            assert str(run.outcome) == "implausible"
            assert "IOPS x 4096 bytes = " in run.reason
            assert ("implausibility", "rate") in {(one.metric, one.part) for one in run.samples}
        for case in store.cases().values():
            assert (case.good, case.failures_in_row) == (None, 1)


def test_what_cannot_be_read_again_is_counted_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = measured(tmp_path / "state")
    with closing(sqlite3.connect(state / "pvebench.db")) as connection, connection:
        connection.execute("DELETE FROM evidence WHERE run = 1")
        empty = zlib.compress(b"")
        connection.execute(
            "UPDATE evidence SET content = ? WHERE run = 2 AND name = 'output'", [empty]
        )
    before = everything(state)
    mistaken(monkeypatch, {"clat_mean": 2.0})
    assert reparse(state, "--apply") == 0
    said = capsys.readouterr().out
    assert "1 of 1 runs changed" in said
    assert "1 run unchanged: no raw output (keep_evidence)" in said
    assert "1 run unchanged: unreadable output: " in said
    after = everything(state)
    assert {one[0] for one in set(after["samples"]) ^ set(before["samples"])} == {3}


def test_failed_runs_that_could_be_read_now_are_counted_and_stay_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> Parsed:
        raise OutputUnreadable("no")

    with monkeypatch.context() as patch:
        patch.setattr(Fio, "parse", refuse)
        state = measured(tmp_path / "state")
    before = everything(state)
    assert reparse(state, "--apply") == 0
    said = capsys.readouterr().out
    assert f"{len(before['runs'])} failed runs unchanged, but readable now" in said
    assert everything(state) == before


def test_only_runs_of_the_tool_and_the_pack_that_are_named_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = measured(tmp_path / "state")
    before = everything(state)
    mistaken(monkeypatch, {"clat_mean": 2.0})
    for options in (
        ("--tool", "ioping"),
        ("--pack", "another"),
        ("--pack", "small", "--tool", "dd"),
    ):
        assert reparse(state, "--apply", *options) == 0
        assert "0 of 0 runs changed" in capsys.readouterr().out
        assert everything(state) == before
    assert reparse(state, "--pack", "small", "--tool", "fio") == 0
    assert "3 of 3 runs would change" in capsys.readouterr().out


def test_beside_a_running_instance_one_may_look_and_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = measured(tmp_path / "state")
    with StateDirectory(state, exclusive=True):
        assert reparse(state) == 0
        assert reparse(state, "--apply") == 4
    assert "is in use by process" in capsys.readouterr().err


def test_without_results_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert reparse(tmp_path, "--apply") == 5


class Link:
    link_bits_per_second = 10**9

    def round_trip(self) -> float:
        return 0.001


def test_what_is_measured_beside_a_tool_is_known_as_such() -> None:
    host = HostSnapshot(
        monotonic=0.0,
        cpus=1,
        cpu_seconds={"total": 0.0, "vcpu_wait": 0.0},
        bytes={"device_read": 0},
        context_switches=1,
        vm_exits=1,
        pressure_seconds={"io": 0.0},
        averages={"vm_io": 0.1},
        conditions={"disk_margin": 20.0, "zfs_cache": 1e9, "md_sync": 0.0},
    )
    block = BlockCounters(
        read_operations=0, write_operations=0, flush_operations=0, read_bytes=0, write_bytes=0
    )
    found = window_samples(Mark(host, block), Mark(replace(host, monotonic=1.0), block))
    settled = Settled(steady=True, seconds=1.0, rates=(), found=Steadiness(0.1, 0.1))
    found += [*network_samples(Link()), *settled.samples(), *Activity(0.0, 1.0).samples()]
    warm = replace(CASES[0], scenario=replace(CASES[0].scenario, host_cache=HostCache.WARM))
    seen = dict.fromkeys(("storage_used", "disk_wear", "zfs_fragmentation", "zfs_scan"), 0.5)
    writes = replace(warm, workload=replace(warm.workload, directions=(Direction.WRITE,)))
    found += condition_samples(writes, {**seen, **host.conditions}, local=True)
    # Those of operations and of several VMs: see test_operation.py and test_companions.py.
    others = {name for name in of_source(Source.HOST) if name.startswith(("operation_", "vms_"))}
    others |= {"boot_time", "disturbed", "fault_time", "pass_to_first"}
    assert {one.metric for one in found} == of_source(Source.HOST) - others


@pytest.mark.parametrize("tool", TOOLS)
def test_a_log_is_known_by_its_name(tool: str) -> None:
    options = {
        "fio": {"rw": "read", "bs": "4k"},
        "dd": {"rw": "read"},
        "bonnie++": {"size": "16M"},
        "sysbench": {"mode": "seqrd", "size": "16M"},
    }
    workload = tool_workload(tool, options.get(tool, {}))
    target = Target(device="/dev/vdb", size_bytes=1 << 30, scratch="/mnt")
    assert all(name.endswith(".log") for name in TOOLS[tool].job(workload, target).logs)
