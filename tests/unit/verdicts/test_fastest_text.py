"""Which setting is the fastest, what the usual disk loses, and when more will be known."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pvebench.drivers.clocks import START
from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.disk import Cache
from pvebench.model.ports import Hold, HoldKind
from pvebench.model.status import State
from pvebench.model.units import count_text
from pvebench.model.workload import Direction
from pvebench.store.live_results import Trend, View
from pvebench.store.records import Point
from pvebench.verdicts.fastest_text import (
    LEAST_JUDGED,
    after_cycles,
    compared_text,
    cycle_end_lines,
    milestone_text,
    milestones,
    ranking_text,
    ranking_title,
    schedule_of,
    signed_percent,
)
from pvebench.verdicts.ranking import (
    LEAST_RUNS,
    Exclusion,
    Gap,
    Rank,
    RankedCase,
    Ranking,
    answers,
    rankings,
)
from pvebench.web.views.tables import _gap, numbers_of
from testing.faulty_node import Fault
from testing.packs import SMALL, quick, tool_workload, write_pack
from testing.simulated_results import view_of
from testing.simulated_site import results_of
from testing.simulations import simulate

NOISE = 0.02
ATTEMPTS = 10


def disks(*slugs: str) -> dict[str, Definition]:
    """Return slug -> a case's definition with that scenario, `scsi.raw.none`."""
    plain = Definition.of(quick()[1].cases[0])
    found = {}
    for slug in slugs:
        bus, form, cache, *_ = slug.split(".")
        changes = {"bus": bus, "format": form, "cache": cache, "scenario": f"local.{slug}"}
        found[slug] = replace(plain, **changes)
    return found


def trend(level: float, *, runs: int, seed: int = 1, environment: str = "e") -> Trend:
    """Return as many runs at a level, with noise of two per cent."""
    noise = random.Random(seed)
    direction = quick()[1].cases[0].workload.directions[0]
    points = tuple(
        Point(
            seed * 1000 + place,
            START + timedelta(minutes=5 * place),
            environment,
            direction,
            level * math.exp(noise.gauss(0, NOISE)),
        )
        for place in range(runs)
    )
    return Trend("iops", points)


def ranking_of(levels: dict[str, float], *, runs: int) -> Ranking:
    trends = {
        slug: trend(level, runs=runs, seed=seed)
        for seed, (slug, level) in enumerate(levels.items(), start=1)
    }
    (found,) = rankings(View(trends=trends), disks(*levels))
    return found


def order(places: Sequence[RankedCase]) -> list[str]:
    return [one.key for one in places]


def test_the_fastest_setting_and_the_loss_of_the_usual_disk_are_named_with_an_interval() -> None:
    ranking = ranking_of({"scsi.raw.none": 8000, "virtio.raw.none": 10000}, runs=8)
    assert order(ranking.places) == ["virtio.raw.none", "scsi.raw.none"]
    usual = ranking.usual
    assert usual is not None
    assert usual.rank is Rank.SLOWER
    assert usual.gap.low < -0.2 < usual.gap.high < -0.1
    text = ranking_text(ranking, after_cycles)
    assert text.startswith("virtio, raw, cache none is the fastest durable configuration: 9,9")
    assert "The default (scsi, raw, cache none) is 2" in text
    assert "% slower (95% CI " in text


def test_a_gap_with_a_ci_of_half_its_value_is_not_yet_known() -> None:
    ranking = ranking_of({"scsi.raw.none": 8000, "virtio.raw.none": 10000}, runs=8)
    wide = replace(ranking.places[1], rank=Rank.UNKNOWN, gap=Gap(-0.2, -0.83, 0.5))
    text = compared_text("The default", wide, after_cycles)
    assert text == "8 runs can't show whether the default is slower."


def test_what_is_within_noise_is_not_called_slower() -> None:
    ranking = ranking_of({"scsi.raw.none": 10000, "virtio.raw.none": 10010}, runs=8)
    assert ranking.places[1].rank is Rank.EQUAL
    text = ranking_text(ranking, after_cycles)
    assert "is among the fastest durable configurations (1 other within noise)" in text
    assert " is within noise, at most " in text
    assert "% slower (95% CI" not in text


@pytest.mark.parametrize("runs", range(1, LEAST_RUNS))
def test_with_too_few_runs_it_says_that_it_cannot_be_known_and_when_it_will(runs: int) -> None:
    ranking = ranking_of({"scsi.raw.none": 5000, "virtio.raw.none": 10000}, runs=runs)
    text = ranking_text(ranking, after_cycles)
    assert ranking.places[1].rank is Rank.UNKNOWN
    assert "has the highest result of the durable configurations so far" in text
    assert "fastest" not in text
    needed = f"each can't exclude noise; {count_text(LEAST_RUNS - runs, 'more cycle')} needed."
    assert needed in text


def test_of_twenty_equal_settings_hardly_ever_one_is_called_slower() -> None:
    slugs = [f"scsi.raw.none.queues-{count}" for count in range(2, 22)]
    wrong = 0
    for attempt in range(ATTEMPTS):
        trends = {
            slug: trend(10000, runs=6, seed=100 * attempt + place)
            for place, slug in enumerate(slugs)
        }
        (found,) = rankings(View(trends=trends), disks(*slugs))
        wrong += any(one.rank is Rank.SLOWER for one in found.places)
    # The fastest of twenty is the luckiest: the share that is asked of each pair pays for that.
    assert wrong <= 2


def test_what_loses_data_is_never_the_fastest_and_the_text_says_why() -> None:
    ranking = ranking_of({"scsi.raw.none": 8000, "scsi.raw.unsafe": 30000}, runs=4)
    assert order(ranking.places) == ["scsi.raw.none"]
    assert [one.exclusion for one in ranking.excluded] == [Exclusion.NOT_DURABLE]
    text = ranking_text(ranking, after_cycles)
    assert text.startswith("scsi, raw, cache none is the only ranked configuration so far")
    assert "scsi, raw, cache unsafe reaches 3" in text
    assert "excluded: ignores flushes, a host crash loses data" in text


def test_warm_caches_and_the_host_itself_stand_apart() -> None:
    cases = disks("scsi.raw.none", "scsi.raw.writeback", "host.raw.none")
    warm = cases["scsi.raw.writeback"]
    cases["scsi.raw.writeback"] = replace(warm, options={**warm.options, "host_cache": "warm"})
    trends = {slug: trend(9000 + 9 * place, runs=3) for place, slug in enumerate(cases)}
    (ranking,) = rankings(View(trends=trends), cases)
    assert order(ranking.places) == ["scsi.raw.none"]
    assert {one.exclusion for one in ranking.excluded} == {Exclusion.WARM, Exclusion.HOST}
    assert "excluded: may read from host memory" in ranking_text(ranking, after_cycles)


def test_a_table_without_a_ranked_configuration_says_why() -> None:
    zfs = {
        slug: replace(one, options={**one.options, "host_cache": "arc"})
        for slug, one in disks("scsi.raw.none", "virtio.raw.none").items()
    }
    (ranking,) = rankings(View(trends={slug: trend(9000, runs=3) for slug in zfs}), zfs)
    assert not ranking.places
    text = ranking_text(ranking, after_cycles)
    assert text == "No configuration is ranked: may read from host memory."


def test_only_runs_in_the_present_environment_are_compared() -> None:
    old, new = trend(20000, runs=8, environment="old"), trend(5000, runs=2, seed=2)
    cases = disks("scsi.raw.none", "virtio.raw.none")
    both = Trend("iops", (*old.points, *new.points))
    (ranking,) = rankings(View(trends={"scsi.raw.none": both, "virtio.raw.none": old}), cases)
    assert order(ranking.places) == ["scsi.raw.none"]
    assert (ranking.places[0].runs, round(ranking.places[0].level, -3)) == (2, 5000)


def test_writes_that_the_hosts_memory_takes_are_called_so_unless_each_is_synced() -> None:
    (workload,) = [tool_workload("fio", {"rw": "randwrite", "bs": "4k", "fsync": 1})]
    writes = next(c for c in quick()[1].cases if c.workload.slug.startswith("randwrite"))
    cached = replace(
        writes,
        scenario=replace(
            writes.scenario, disk=replace(writes.scenario.disk, cache=Cache.WRITEBACK)
        ),
    )
    for case, said in ((cached, True), (replace(cached, workload=workload), False)):
        (ranking,) = rankings(View(trends={"k": trend(100, runs=1)}), {"k": Definition.of(case)})
        assert bool(ranking.excluded) is said
        text = ranking_text(ranking, after_cycles)
        assert ("its writes stay in host memory until the guest flushes" in text) is said


def test_workloads_and_settings_have_plain_words() -> None:
    options = {"rw": "randwrite", "bs": "4k", "iodepth": 32, "numjobs": 16, "fsync": 1}
    plain = Definition.of(replace(quick()[1].cases[0], workload=tool_workload("fio", options)))
    assert workload_text(plain) == ("4k random write, depth 32, 16 jobs, fsync after each write")
    titled = tool_workload("fio", {"rw": "read", "bs": "1M", "title": "SEQ1M Q8T1"})
    one = Definition.of(replace(quick()[1].cases[0], workload=titled))
    assert workload_text(one) == "SEQ1M Q8T1: 1M sequential read, depth 1"
    slug = "scsi.raw.none.aio-native.scsihw-virtio-scsi-pci"
    assert configuration_text(disks(slug)[slug]) == (
        "scsi, raw, cache none, aio native, scsihw virtio-scsi-pci"
    )


def test_after_the_first_cycle_it_says_what_was_found_and_what_comes_when(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None)
    for _ in range(13):
        simulation.world.clock.sleep(simulation.worker.step())
    view, now = results_of(simulation).now, simulation.world.clock.now()
    lines = list(cycle_end_lines(view, "lab", [simulation.worker.status], now))
    assert lines[0] == "Results on lab:"
    assert lines[1].startswith("  4k random read, depth 32 on local: ")
    assert lines[2].startswith("  4k random write, depth 32 on local: ")
    assert "One run each can't exclude noise; expected about " in lines[1]
    # The pack runs every five minutes.
    assert [line.partition(" (")[0] for line in lines[3:]] == [
        "Next:",
        "  About 00:12 UTC",
        "  About 00:32 UTC",
    ]
    assert list(cycle_end_lines(view, "elsewhere", [simulation.worker.status], now)) == []


def test_the_milestones_are_reached_when_it_said(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None)
    for _ in range(13):
        simulation.world.clock.sleep(simulation.worker.step())
    status = simulation.worker.status
    promised = milestones(results_of(simulation).now, [status], simulation.world.clock.now())
    assert [one.reached for one in promised] == [True, False, False]
    last = promised[-1].at
    assert last is not None
    while simulation.world.clock.now() < last + timedelta(minutes=5):
        simulation.world.clock.sleep(min(simulation.worker.step(), 60.0))
    runs = [sum(record.outcomes.values()) for record in simulation.store.cases().values()]
    assert min(runs) >= LEAST_JUDGED
    later = results_of(simulation).now
    assert milestones(later, [], simulation.world.clock.now()) == ()


def test_before_the_first_run_the_running_cycle_reports_when(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None)
    view, now = results_of(simulation).now, simulation.world.clock.now()
    unknown = [milestone_text(one, now) for one in milestones(view, [], now)]
    assert unknown[0] == "With 1 run per case: first results per workload"
    simulation.worker.step()
    status = simulation.worker.status
    end = status.cycle_end(now)
    assert end is not None
    soon = [one.at for one in milestones(view, [status], now)]
    # The pack runs every five minutes.
    assert soon == [end + timedelta(minutes=more) for more in (0, 10, 30)]


def test_the_estimate_is_that_of_the_agenda_and_never_in_the_past(tmp_path: Path) -> None:
    """Also for a daily pack, whose cases the scheduler moves through the hours of the day."""
    daily = write_pack(tmp_path, SMALL.replace("every: 10m", "every: 1d"))
    simulation = simulate(tmp_path, cycles=None, pack=daily)
    for _ in range(60):
        wait = simulation.worker.step()
        now, status = simulation.world.clock.now(), simulation.worker.status
        view = results_of(simulation).now
        times = {runs: one.at for one in milestones(view, [status], now) for runs in [one.runs]}
        assert all(at is None or at >= now for at in times.values())
        missing = LEAST_JUDGED - min((len(t.points) for t in view.trends.values()), default=0)
        if status.next_due is not None and missing == 1:
            assert times[LEAST_JUDGED] == max(status.due.values())
            assert status.next_due == min(status.due.values())
        late = now + timedelta(days=30)
        assert all(one.at is None or one.at >= late for one in milestones(view, [status], late))
        simulation.world.clock.sleep(wait)


def test_no_time_is_promised_beyond_the_end_of_a_limited_run(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=3, pack=write_pack(tmp_path, SMALL))
    simulation.worker.step()
    now, view = simulation.world.clock.now(), results_of(simulation).now
    end = simulation.worker.status.cycle_end(now)
    first, second, third = milestones(view, [simulation.worker.status], now)
    assert end is not None
    # Its cycles follow each other: the interval of the pack does not matter.
    assert (first.at, second.at, third.at) == (end, end + 2 * (end - now), None)
    assert milestone_text(third, now).startswith("With 7 runs per case: ")
    simulation.worker.run()
    later = simulation.world.clock.now()
    ahead = milestones(results_of(simulation).now, [simulation.worker.status], later)
    assert [one.at for one in ahead if not one.reached] == [None]


def test_a_paused_or_failing_worker_promises_no_time(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None, pack=write_pack(tmp_path, SMALL))
    for _ in range(4):
        simulation.world.clock.sleep(simulation.worker.step())
    now, status = simulation.world.clock.now(), simulation.worker.status
    view = results_of(simulation).now
    held = replace(status, hold=Hold(kind=HoldKind.PAUSED, reason="new disk"))
    failing = replace(status, state=State.ERROR, fault="disk full")
    assert milestones(view, [status], now)[-1].at is not None
    assert milestones(view, [held], now)[-1].at is None
    assert milestones(view, [failing], now)[-1].at is None


def test_a_case_that_always_fails_keeps_no_milestone_back(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=3, pack=write_pack(tmp_path, SMALL))
    simulation.worker.step()
    simulation.worker.step()
    simulation.world.faults._rates[Fault.TOOL_FAILS] = 1.0
    simulation.worker.step()
    simulation.world.faults._rates[Fault.TOOL_FAILS] = 0.0
    view = results_of(simulation).now
    assert len(view.cases) == 2
    assert milestones(view, [], simulation.world.clock.now())[0].reached


def test_a_time_that_has_passed_is_not_promised(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    simulation.worker.run()
    view = results_of(simulation).now
    late = simulation.world.clock.now() + timedelta(days=3)
    (first, *_) = answers(view)
    when = schedule_of(view, [simulation.worker.status], late)
    assert "2 more runs needed" in ranking_text(first, when)
    assert ranking_title(first, name_node=True).endswith("on lab, local")


def test_what_was_worked_out_of_a_run_goes_with_it() -> None:
    cases = disks("scsi.raw.none", "virtio.raw.none")
    alive: WeakSet[Trend] = WeakSet()
    trends: dict[str, Trend] = {}
    for seed in range(1, 40):
        trends = {key: trend(100.0, runs=5, seed=seed) for key in cases}
        alive.update(trends.values())
        assert rankings(View(trends=trends), cases)
        assert all(numbers_of(one) for one in trends.values())
    gc.collect()
    assert set(alive) == set(trends.values())


def test_a_noisy_default_is_not_replaced_by_another_format() -> None:
    levels = {"scsi.qcow2.none": 6000, "virtio.raw.none": 8000}
    quiet = {slug: trend(level, runs=4) for slug, level in levels.items()}
    noisy = tuple(replace(point, ok=False) for point in trend(9000, runs=4).points)
    trends = {**quiet, "scsi.raw.none": Trend("iops", noisy)}
    (ranking,) = rankings(View(trends=trends), disks(*trends))
    assert "The default" not in ranking_text(ranking, after_cycles)
    # Where only qcow2 is measured, it is the default.
    (ranking,) = rankings(View(trends=quiet), disks(*quiet))
    assert "The default (scsi, qcow2, cache none) is" in ranking_text(ranking, after_cycles)


def test_noisy_runs_never_win_and_do_not_count() -> None:
    """A higher number that rests on noisy runs only is shown, with the reason, and not ranked."""
    cases = disks("scsi.raw.none", "virtio.raw.none", "scsi.raw.writeback")
    loud = trend(90000, runs=8, seed=3)
    noisy = Trend("iops", tuple(replace(point, ok=False) for point in loud.points))
    mixed = Trend("iops", (*trend(8000, runs=4, seed=2).points, *noisy.points))
    trends = {
        "scsi.raw.none": trend(10000, runs=4),
        "virtio.raw.none": mixed,
        "scsi.raw.writeback": noisy,
    }
    (ranking,) = rankings(View(trends=trends), cases)
    assert order(ranking.places) == ["scsi.raw.none", "virtio.raw.none"]
    assert [(one.exclusion, one.runs) for one in ranking.excluded] == [(Exclusion.NOISY, 0)]
    assert [one.runs for one in ranking.places] == [4, 4]
    assert "; excluded: noisy runs only; raise `runtime`." in ranking_text(ranking, after_cycles)


def test_an_emulated_cpu_has_no_fastest_configuration() -> None:
    cases = disks("scsi.raw.none", "virtio.raw.none")
    trends = {key: trend(level, runs=8) for key, level in zip(cases, (8000, 10000), strict=True)}
    (period,) = view_of([], {"accel": "tcg"}).periods
    view = View(trends=trends, periods=[replace(period, environment="e")])
    (real,), (emulated,) = rankings(View(trends=trends), cases), rankings(view, cases)
    assert real.decided
    assert not emulated.decided
    assert "is the fastest" in ranking_text(real, after_cycles)
    text = ranking_text(emulated, after_cycles)
    assert text.startswith("Emulated CPU (TCG): the values say little about a VM with KVM. ")
    assert "fastest" not in text


def test_noise_that_hides_much_is_not_called_equality() -> None:
    cases = disks("scsi.raw.none", "virtio.raw.none")
    wild = [5000.0, 9000.0, 14000.0]
    plain = trend(1, runs=3)
    points = [replace(p, value=v) for p, v in zip(plain.points, wild, strict=True)]
    trends = {"scsi.raw.none": trend(9500, runs=3), "virtio.raw.none": Trend("iops", (*points,))}
    (ranking,) = rankings(View(trends=trends), cases)
    assert ranking.places[1].rank is Rank.UNKNOWN
    text = ranking_text(ranking, after_cycles)
    assert "within noise" not in text
    assert "fastest" not in text


@given(
    st.lists(
        st.lists(
            st.tuples(st.floats(100, 1e6), st.sampled_from("ef"), st.booleans()),
            min_size=1,
            max_size=12,
        ),
        min_size=2,
        max_size=4,
    ),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_no_cell_contradicts_its_table(
    histories: list[list[tuple[float, str, bool]]], mixed: bool
) -> None:
    """Order, percentages, intervals and words follow from the numbers that the cells show."""
    slugs = ("scsi.raw.none", "virtio.raw.none", "scsi.qcow2.none", "virtio.qcow2.none")
    cases = disks(*slugs[: len(histories)])
    trends = {
        key: Trend(
            "iops",
            tuple(
                Point(100 * run + place, START + timedelta(minutes=run), where, way, value, ok)
                for run, (value, where, ok) in enumerate(history)
                for way in (Direction.READ, Direction.WRITE)[: 1 + mixed]
            ),
        )
        for place, (key, history) in enumerate(zip(cases, histories, strict=True))
    }
    (ranking,) = rankings(View(trends=trends), cases)
    shown = {key: sum(one.value for one in numbers_of(trends[key])) for key in cases}
    levels = [shown[place.key] for place in ranking.places]
    assert levels == sorted(levels, reverse=True)
    for place in (*ranking.places, *ranking.excluded):
        assert place.level == shown[place.key]
        assert max(one.runs for one in numbers_of(trends[place.key])) == place.runs or (
            place.exclusion is Exclusion.NOISY and place.runs == 0
        )
    for place in ranking.places[1:]:
        assert place.gap.ratio == pytest.approx(shown[place.key] / levels[0] - 1)
        assert place.gap.ratio <= 0
        assert not place.gap.known or place.gap.low <= place.gap.ratio <= place.gap.high
        assert place.rank is not Rank.SLOWER or place.gap.ratio < 0
        assert place.rank is not Rank.EQUAL or place.gap.low >= -0.1
        assert place.rank is not Rank.FASTEST
        gap, best = _gap(place, ranking)
        assert gap.startswith(signed_percent(place.gap.ratio))
        assert not (best and place.rank is not Rank.EQUAL)
        assert not (best and ranking.emulated)
    text = ranking_text(ranking, after_cycles)
    known = bool(ranking.places) and min(place.runs for place in ranking.places) >= LEAST_RUNS
    assert known or "fastest" not in text
