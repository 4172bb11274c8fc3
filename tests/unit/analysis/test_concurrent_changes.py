"""What else changed with a level is said beside the software, and only then."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pvebench.analysis.concurrent_changes import ConcurrentChange, RunValues, concurrent_changes
from pvebench.model.environment import Environment
from pvebench.model.run import Run, Sample, Unit
from pvebench.model.units import GIB
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import verdicts_data
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench_lab.cli.past_metrics import past_verdicts
from testing.changes import CASES, FINDING, NEW, OLD, START, measured
from testing.stores import TemporaryStore

DAYS, AFTER = 30, 8
UsedOn = Callable[[int], float]


def history(
    used_on: UsedOn, *, upgraded: bool, metric: str = "storage_used", new: Environment = NEW
) -> list[Run]:
    """All cases get a quarter slower on day 30; `used_on`: day -> `metric`, a share."""
    runs = []
    for day in range(DAYS + AFTER):
        for case in CASES:
            later = day >= DAYS
            run = measured(case, day, slower=1.25 if later else 1.0, upgraded=later and upgraded)
            used = Sample(metric, None, used_on(day), Unit.RATIO)
            environment = new if later and upgraded else run.environment
            runs.append(replace(run, environment=environment, samples=(*run.samples, used)))
    return runs


def stored(
    path: Path,
    used_on: UsedOn,
    *,
    upgraded: bool = True,
    metric: str = "storage_used",
    new: Environment = NEW,
) -> Store:
    store = TemporaryStore(path / "pvebench.db", simulated=False)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    store.add_history(history(used_on, upgraded=upgraded, metric=metric, new=new))
    return store


def judged(path: Path, used_on: UsedOn, **given: Any) -> Verdicts:
    return VerdictService(LiveResults(stored(path, used_on, **given)), ()).judge()


def filling(day: int) -> float:
    return 0.91 if day >= DAYS else 0.78


def test_a_full_storage_is_named_beside_the_upgrade_of_the_same_day(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, filling, upgraded=True)
    (finding,) = verdicts.regressions
    assert sentence(finding).startswith(
        "Everything is 20% slower since pve-qemu-kvm 9.2.0-2; "
        "other possible cause: storage more than 90% full ("
    )
    assert "91% used, before 78%" in sentence(finding)
    (told,) = verdicts_data(verdicts)["changes"]
    assert told["meanwhile"][0]["text"] == "storage more than 90% full"


def test_without_an_upgrade_the_full_storage_is_the_cause_that_is_reported(tmp_path: Path) -> None:
    (finding,) = judged(tmp_path, filling, upgraded=False).regressions
    day = START + timedelta(days=DAYS)
    assert re.match(
        f"Everything is 20% slower since {day:%Y-%m-%d} [0-9:]+ UTC; "
        r"possible cause: storage more than 90% full \(",
        sentence(finding),
    )
    assert "no known event nearby" not in sentence(finding)


@pytest.mark.parametrize(
    ("metric", "used_on", "text", "numbers"),
    [
        (
            "zfs_fragmentation",
            lambda day: 0.8 if day >= DAYS else 0.6,
            "fragmented free space of the ZFS pool",
            "fragmentation 80%, before 60%",
        ),
        (
            "disk_wear",
            lambda day: 1.01 if day >= DAYS else 0.98,
            "drive of the node at its rated wear",
            "highest wear 101%, before 98%",
        ),
        (
            "md_sync",  # a check in the month before, too
            lambda day: float(day >= DAYS or day == DAYS - 5),
            "check or rebuild of a software RAID of the node",
            "in 100% of runs, before 5%",
        ),
        (
            "zfs_scan",
            lambda day: float(day >= DAYS and day % 4 != 0),
            "scrub or resilver of the ZFS pool",
            "in 75% of runs, before 0%",
        ),
        (
            "disturbed",
            lambda day: float(day >= DAYS),
            "backups, replication or similar tasks starting during most runs",
            "in 100% of runs, before 0%",
        ),
    ],
)
def test_what_else_happened_to_the_storage_is_named_beside_the_upgrade_of_the_same_day(
    tmp_path: Path, metric: str, used_on: UsedOn, text: str, numbers: str
) -> None:
    (finding,) = judged(tmp_path, used_on, upgraded=True, metric=metric).regressions
    said = sentence(finding)
    assert said.startswith(
        f"Everything is 20% slower since pve-qemu-kvm 9.2.0-2; other possible cause: {text} ("
    )
    assert numbers in said


@pytest.mark.parametrize(
    ("metric", "used_on"),
    [
        ("zfs_fragmentation", lambda day: 0.76 if day >= DAYS else 0.1),
        ("zfs_fragmentation", lambda day: 0.9 if day >= DAYS else 0.78),
        ("disk_wear", lambda day: 0.99 if day >= DAYS else 0.2),
        ("disk_wear", lambda _: 1.2),
        ("md_sync", lambda _: 1.0),  # it was before
        ("md_sync", lambda day: float(day == DAYS)),  # in few of the runs after
        ("zfs_scan", lambda day: float(day >= DAYS or day % 4 == 0)),  # nor in few before
        ("disturbed", lambda day: float(day < DAYS)),
    ],
)
def test_what_was_so_before_or_crossed_no_border_is_not_blamed(
    tmp_path: Path, metric: str, used_on: UsedOn
) -> None:
    (finding,) = judged(tmp_path, used_on, upgraded=True, metric=metric).regressions
    assert "is 20% slower since pve-qemu-kvm 9.2.0-2 (" in sentence(finding)


@pytest.mark.parametrize(
    ("fact", "compares"), [("zfs", False), ("kernel", False), ("qemu_server", True)]
)
def test_fragmentation_is_not_compared_across_versions_that_may_count_it_otherwise(
    tmp_path: Path, fact: str, compares: bool
) -> None:
    """OpenZFS 2.3.1: what was 70 % is 77 % since (`zfs_frag_table` in module/zfs/metaslab.c)."""
    new = replace(OLD, facts={**OLD.facts, fact: "another"})
    (finding,) = judged(
        tmp_path,
        lambda day: 0.8 if day >= DAYS else 0.72,
        upgraded=True,
        metric="zfs_fragmentation",
        new=new,
    ).regressions
    assert ("fragmented free space" in sentence(finding)) is compares


@pytest.mark.parametrize("used_on", [lambda _: 0.93, lambda day: 0.5 + 0.005 * day])
def test_a_storage_that_crossed_no_border_is_not_blamed(tmp_path: Path, used_on: UsedOn) -> None:
    (finding,) = judged(tmp_path, used_on, upgraded=True).regressions
    assert "is 20% slower since pve-qemu-kvm 9.2.0-2 (" in sentence(finding)


def test_the_short_sentence_stays_the_same_while_the_storage_fills_further() -> None:
    told = [
        sentence(
            replace(FINDING, meanwhile=concurrent_changes(full(0.7), full(used))), evidence=False
        )
        for used in (0.91, 0.96)
    ]
    assert told[0] == told[1]
    assert "more than 90% full" in told[0]


def test_a_slow_change_reports_what_came_with_it() -> None:
    what = (ConcurrentChange("storage more than 80% full", "85% used, before 60%"),)
    text = sentence(replace(FINDING, kind="drift", meanwhile=what))
    assert "; possible cause: storage more than 80% full (" in text


def full(share: float) -> list[RunValues]:
    return [{("storage_used", ""): share}] * 6


def load(total: float, own: float = 1.0) -> list[RunValues]:
    return [{("host_cpu", "total"): total, ("host_cpu", "qemu"): own}] * 6


def waiting(share: float, part: str = "cpu_some") -> list[RunValues]:
    return [{("host_pressure", part): share}] * 6


def hot(margin: float) -> list[RunValues]:
    return [{("disk_margin", ""): margin}] * 6


def cache(gib: float) -> list[RunValues]:
    return [{("zfs_cache", ""): gib * GIB}] * 6


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            hot(24.0),
            hot(1.5),
            "drive of the node near its temperature limit: highest temperature "
            "2 °C below its limit, before 24 °C below its limit",
        ),
        (
            hot(24.0),
            hot(-1.0),
            "drive of the node near its temperature limit: highest temperature "
            "1 °C above its limit, before 24 °C below its limit",
        ),
        (hot(24.0), hot(9.0), ""),  # hotter, and far from what slows it
        (hot(2.0), hot(1.0), ""),  # it was before
        (cache(8.0), cache(1.5), "smaller ZFS cache: 1.5 GiB, before 8.0 GiB"),
        (cache(8.0), cache(5.0), ""),  # less, and not half of it
        (cache(2.0), cache(8.0), ""),  # more
        (
            load(1.3),
            load(5.2),
            "more other load on the node: other processes use 4.2 cores, before 0.3",
        ),
        (load(4.0), load(5.5), ""),  # more, and not twice as much
        (load(1.3), load(5.2, own=4.9), ""),  # the run itself takes it
        (
            waiting(0.01),
            waiting(0.3),
            "tasks of the node waiting for CPUs: waiting for CPUs 30% of the time, before 1%",
        ),
        (
            waiting(0.0, "memory_some"),
            waiting(0.2, "memory_some"),
            "tasks of the node waiting for memory: waiting for memory 20% of the time, before 0%",
        ),
        (waiting(0.01, "io_some"), waiting(0.9, "io_some"), ""),  # a slower disk does that
        (full(0.7), full(0.95)[:4], ""),  # too few runs
        (full(0.95), full(0.7), ""),  # it has become emptier
        ([], [], ""),
    ],
)
def test_what_the_node_does_is_reported_where_it_is_much_more_than_before(
    before: list[RunValues], after: list[RunValues], told: str
) -> None:
    assert (
        "".join(f"{one.text}: {one.numbers}" for one in concurrent_changes(before, after)) == told
    )


def test_what_came_later_has_no_part_in_what_was_said_then(tmp_path: Path) -> None:
    later = DAYS + 4
    store = stored(tmp_path, lambda day: 0.91 if day >= later else 0.78)
    moments = [(START + timedelta(days=day)).timestamp() for day in (later - 0.1, later + 4)]
    then, now = (said.regressions[0] for _, said in past_verdicts(LiveResults(store), (), moments))
    assert not then.meanwhile
    assert now.meanwhile == VerdictService(LiveResults(store), ()).judge().regressions[0].meanwhile
