"""Effects of operations on a guest as sentences, and as judged metrics."""

from __future__ import annotations

import itertools
import re
from array import array
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from pvebench.model.definition import workload_text
from pvebench.model.figures import JUDGED
from pvebench.model.ports import Progress
from pvebench.model.run import Sample, Unit
from pvebench.model.units import MIB
from pvebench.model.workload import DISK_OPERATIONS, NEIGHBOR
from pvebench.runner.operation_watch import Look, longest_gap
from pvebench.verdicts.fastest_text import operation_lines
from pvebench.verdicts.judge_input import figures_of
from testing.simulated_results import case


def run(during: str, gap: float, resolution: float = 0.01, day: int = 2, **parameters: Any) -> Any:
    samples = (
        Sample("operation_gap", None, gap, Unit.SECONDS),
        Sample("operation_resolution", None, resolution, Unit.SECONDS),
    )
    plain = case("scsi.raw.none", sync=True, **parameters)
    own = replace(plain, parameters={**plain.parameters, "during": during}, title="")
    own = replace(own, workload="w", title="w")
    started = datetime(2026, 1, day, tzinfo=UTC)
    return SimpleNamespace(definition=own, samples=samples, started=started, environment="e")


def test_a_backup_is_compared_with_one_with_fleecing() -> None:
    (line,) = operation_lines([run("backup", 3.4), run("backup-fleecing", 0.05)])
    assert line == (
        "A backup on node lab, storage local stalls 4k random write, depth 1, each write synced "
        "(scsi, raw, cache none) for 3.4 s (at most 3.5 s); with fleecing 0.05 s (at most 0.06 s)"
    )


@pytest.mark.parametrize(
    ("during", "word"),
    [
        ("backup-fleecing", "A backup with fleecing"),
        ("move", "A move of the disk"),
        ("neighbor", "Another VM"),
        ("restore", "The restore of a backup"),
        ("snapshot", "A snapshot"),
        ("snapshot-ram", "A snapshot with the memory of the VM"),
        ("delete-snapshot", "The removal of a snapshot"),
    ],
)
def test_each_operation_has_a_sentence(during: str, word: str) -> None:
    (line,) = operation_lines([run(during, 1.25)])
    assert line.startswith(f"{word} on node lab, storage local stalls ")
    assert line.endswith("for 1.2 s (at most 1.3 s)")


def test_workloads_that_differ_in_their_operation_have_different_descriptions() -> None:
    """Terminal, page, card and metrics show this description."""
    loads = [{}, {"touch": "first"}, {"vms": 4}, *({"during": name} for name in DISK_OPERATIONS)]
    loads += [
        {"during": NEIGHBOR, "neighbor_iops": 100},
        {"during": "move", "target_rate": 8 * MIB},
    ]
    plain = case("scsi.raw.none")
    texts = [
        workload_text(replace(plain, parameters={**plain.parameters, **load})) for load in loads
    ]
    assert len(set(texts)) == len(texts)
    assert texts[-2].endswith(", beside another VM at 100 IOPS")
    assert texts[-1].endswith(", during a move of the disk, target limited to 8M/s")


def test_a_gap_below_the_resolution_is_no_number() -> None:
    (line,) = operation_lines([run("snapshot", 1.12, resolution=1.1)])
    assert line.endswith("for less than 2.3 s")


@pytest.mark.parametrize("spacing", [0.1, 1.0, 1.12])
def test_no_stall_is_longer_than_its_sentence_says(spacing: float) -> None:
    """500 I/O per second, and a stall of any length that begins at any time between two looks."""
    for length, phase in itertools.product(range(10, 40, 3), range(0, 10, 2)):
        stall, begin = length / 10 * spacing, (25.03 + phase / 10) * spacing
        times = [number * spacing for number in range(60)]
        done = [int(500 * (min(at, begin) + max(0.0, at - begin - stall))) for at in times]
        looks = [
            Look(at, Progress(operations=one, latencies=()))
            for at, one in zip(times, done, strict=True)
        ]
        (line,) = operation_lines([run("move", *longest_gap(looks, 20 * spacing))])
        most = float(re.findall(r"(?:at most|less than|for) ([0-9.]+) s", line)[-1])
        assert stall <= most


def test_the_newest_run_counts_in_any_order() -> None:
    newest, oldest = run("backup", 9.0), run("backup", 3.4, day=1)
    lines = {operation_lines(runs) for runs in ([newest, oldest], [oldest, newest])}
    assert len(lines) == 1
    assert "for 9 s (" in next(iter(lines))[0]


def test_other_loads_and_other_runs_are_not_mixed_with_it() -> None:
    plain = replace(case("scsi.raw.none"), parameters={"rw": "read"})
    lines = operation_lines(
        [
            run("backup", 3.4),
            run("backup-fleecing", 0.05, iodepth=8),
            SimpleNamespace(definition=plain, samples=(), started=datetime(2026, 1, 1, tzinfo=UTC)),  # type: ignore[list-item] # a run
        ]
    )
    assert len(lines) == 2
    assert "; with fleecing" not in lines[0]


def test_two_configurations_have_different_sentences() -> None:
    plain = run("backup", 3.4)
    chained = SimpleNamespace(**vars(plain))
    chained.definition = replace(plain.definition, scenario=f"{plain.definition.scenario}.chain-3")
    lines = operation_lines([plain, chained])
    assert ["chain 3" in line for line in lines] == [False, True]


def test_the_gap_is_judged_like_a_stall() -> None:
    number = ("operation_gap", "", "")
    columns = figures_of({number: array("d", [0.5, 1.0])}, "fio")
    assert list(columns["operation_gap", ""]) == [0.5, 1.0]
    assert JUDGED["operation_gap"].kind == JUDGED["longest_stall"].kind
    assert not JUDGED["operation_gap"].more_is_better
