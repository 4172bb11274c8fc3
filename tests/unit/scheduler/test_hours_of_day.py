"""Like with like: a case comes to all hours of the day, and to them again after an upgrade."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from prometheus_client.samples import Sample

from pvebench.analysis.noise_patterns import hours_of_week, like_hours
from pvebench.cli.main import run_cli
from pvebench.metrics.exposition import Families
from pvebench.metrics.state_metrics import NEXT_RUN
from pvebench.model.definition import Definition, workload_text
from pvebench.model.ports import Guard
from pvebench.model.run import Run
from pvebench.model.week import QuietHours, parse_window
from pvebench.scheduler.due_cases import jitter_seconds
from pvebench.scheduler.guards import QuietGuard
from pvebench.service.publisher import collect_scheduler
from testing.families import families_of
from testing.faulty_node import Fault
from testing.packs import SMALL, write_pack
from testing.simulations import Simulation, simulate

START = datetime(2026, 3, 2, 14, 30, tzinfo=UTC)
HOUR, DAY = 3600.0, 86400.0


def node(
    directory: Path, every: str, *windows: str, tier: str = "core", faults: float = 0.0
) -> Simulation:
    """Return an endless worker of one pack; `windows` are quiet hours, UTC."""
    text = SMALL.replace("every: 10m", f"every: {every}\ntier: {tier}")
    hours = QuietHours(tuple(parse_window(one) for one in windows), ZoneInfo("UTC"))

    def guards(clock: object, _: object) -> Sequence[Guard]:
        return [QuietGuard(hours, clock)] if windows else []  # type: ignore[arg-type] # the one of the tests

    pack = write_pack(directory, text)
    return simulate(
        directory,
        cycles=None,
        pack=pack,
        start=START,
        guards=guards,
        faults={Fault.TOOL_FAILS: faults},
    )


def days(simulation: Simulation, count: float) -> list[Run]:
    """Let so many days go by; return the runs that were made in them."""
    clock, done = simulation.world.clock, len(simulation.recorder.runs)
    end = clock.now() + timedelta(days=count)
    while clock.now() < end:
        wait = simulation.worker.step()
        clock.sleep(min(wait, (end - clock.now()).total_seconds()) if wait else 0.0)
    return simulation.recorder.runs[done:]


def next_runs(simulation: Simulation) -> list[Sample]:
    """Return the samples of the next run and its case."""
    families = Families()
    collect_scheduler([simulation.worker.status], families)
    samples = (sample for family in families_of(families) for sample in family.samples)
    return [one for one in samples if one.name == NEXT_RUN.exposed]


def by_case(runs: Sequence[Run], part: Callable[[datetime], int]) -> list[set[int]]:
    """Return for each case the parts of the day that it was measured in."""
    found: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        found[run.case.key].add(part(run.finished))
    return list(found.values())


def quarter(moment: datetime) -> int:
    return moment.hour // 6


@pytest.mark.parametrize("every", ["1h", "5h", "8h", "12h", "1d", "2d"])
def test_within_eight_intervals_each_case_was_measured_in_all_quarters_of_the_day(
    tmp_path: Path, every: str
) -> None:
    interval = int(every[:-1]) * (1 if every.endswith("h") else 24)
    runs = days(node(tmp_path, every), max(1, 8 * interval / 24))
    assert by_case(runs, quarter) == [{0, 1, 2, 3}] * 2


def test_within_five_weeks_a_daily_case_was_measured_near_every_hour(tmp_path: Path) -> None:
    (one, *_) = by_case(days(node(tmp_path, "1d"), 35), lambda at: at.hour)
    near = {(hour + by) % 24 for hour in one for by in (-1, 0, 1)}
    assert near == set(range(24))


@pytest.mark.parametrize("every", ["8h", "1d", "7d"])
def test_a_case_is_measured_as_often_as_its_interval_says(tmp_path: Path, every: str) -> None:
    interval = int(every[:-1]) * (1 if every.endswith("h") else 24)
    runs = days(node(tmp_path, every), 40 * interval / 24)
    assert len(runs) / 2 == pytest.approx(40, abs=1.5)


def test_failures_do_not_keep_a_case_at_its_hour(tmp_path: Path) -> None:
    runs = days(node(tmp_path, "1d", faults=0.3), 16)
    good = [run for run in runs if run.outcome.good]
    assert len(good) < len(runs)
    assert by_case(good, quarter) == [{0, 1, 2, 3}] * 2


@pytest.mark.parametrize(
    ("window", "allowed", "least"),
    [("06:00-22:00", {22, 23, 0, 1, 2, 3, 4, 5}, 3), ("04:00-02:00", {2, 3}, 1)],
)
def test_quiet_hours_are_kept_and_cost_no_day(
    tmp_path: Path, window: str, allowed: set[int], least: int
) -> None:
    runs = days(node(tmp_path, "1d", window), 24)
    for hours in by_case(runs, lambda at: at.hour):
        assert hours <= allowed
        assert len(hours) >= least
    assert len(runs) / 2 >= 21


def test_what_is_due_next_is_reported_as_it_will_be(tmp_path: Path) -> None:
    simulation = node(tmp_path, "1d", "06:00-22:00")
    for _ in range(6):
        days(simulation, 0.9)
        while simulation.worker.status.next_due is None:
            simulation.world.clock.sleep(simulation.worker.step())
        told = simulation.worker.status.next_due
        (case,) = simulation.worker.status.upcoming
        (shown,) = next_runs(simulation)
        named = {"node": "lab", "storage": "local", "title": workload_text(Definition.of(case))}
        assert (shown.labels, shown.value) == (named, told.timestamp())
        done = len(simulation.recorder.runs)
        while len(simulation.recorder.runs) == done:
            simulation.world.clock.sleep(simulation.worker.step())
        begun = simulation.recorder.runs[done].started
        assert abs((begun - told).total_seconds()) < 120
        days(simulation, 0.1)
        assert case in [run.case for run in simulation.recorder.runs[done:]]


def test_after_an_upgrade_the_hours_of_the_day_come_back_within_one(tmp_path: Path) -> None:
    simulation = node(tmp_path, "1d")
    before = days(simulation, 21.3)
    simulation.world.facts["kernel"] = "simulated-2"
    days(simulation, 1.3)
    after = [run for run in simulation.recorder.runs if run.environment.facts["kernel"][-1] == "2"]
    first = after[0].finished
    burst = [run for run in after if run.finished < first + timedelta(hours=24)]
    assert by_case(burst, quarter) == [{0, 1, 2, 3}] * 2
    assert len(burst) == 2 * 7
    # Three rounds come at once: a case alone can be judged by them.
    at_once = [run for run in after if run.finished < first + timedelta(minutes=10)]
    assert len(at_once) == 2 * 3
    (case, *_) = {run.case.key for run in after}
    known, new = (
        [run.finished.timestamp() for run in runs if run.case.key == case]
        for runs in (before, burst)
    )
    weekend = [int(hour) // 24 for hour in hours_of_week([*known, new[0]])]
    alike = [time for time, one in zip(known, weekend, strict=False) if one == weekend[-1]]
    assert len(like_hours(alike, new)) >= 5


def test_a_burst_is_not_spread_into_quiet_hours(tmp_path: Path) -> None:
    simulation = node(tmp_path, "1d", "06:00-22:00")
    days(simulation, 10)
    simulation.world.facts["kernel"] = "simulated-2"
    runs = days(simulation, 4)
    assert {run.finished.hour for run in runs} <= {22, 23, 0, 1, 2, 3, 4, 5}
    assert len({run.finished.hour for run in runs}) >= 3


def test_other_tiers_know_no_burst(tmp_path: Path) -> None:
    simulation = node(tmp_path, "1d", tier="full")
    days(simulation, 10)
    simulation.world.facts["kernel"] = "simulated-2"
    assert len(days(simulation, 2)) <= 6


@pytest.mark.parametrize("hours", [0.1, 5])
def test_what_comes_to_all_hours_by_itself_does_not_wander(hours: float) -> None:
    assert jitter_seconds(hours * HOUR) == (0.0, 0.0)
    later, earlier = jitter_seconds(DAY)
    assert (later, earlier) == (5 * HOUR, 4.5 * HOUR)


def test_the_plan_says_that_cases_wander(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for every, expected in (("1d", "each case every 24 h ± 5 h,"), ("30m", "30")):
        path = write_pack(tmp_path, SMALL.replace("every: 10m", f"every: {every}"))
        assert run_cli(["plan", "--pack", str(path)]) == 0
        (line,) = [one for one in capsys.readouterr().out.splitlines() if "each case every" in one]
        assert expected in line
        assert ("all hours of the day" in line) is (every == "1d")
