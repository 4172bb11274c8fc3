"""From the store to verdicts: what is read, what decisions do, how little a new run costs."""

from __future__ import annotations

import math
import re
import threading
from array import array
from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pvebench.analysis.events import environment_changes
from pvebench.analysis.verdict import VerdictState
from pvebench.config import Settings
from pvebench.config.known_issues import load_known_issues
from pvebench.metrics.exposition import Page
from pvebench.metrics.result_collectors import Snapshot
from pvebench.metrics.state_metrics import CATALOG
from pvebench.model.definition import Definition
from pvebench.model.durability import NOTHING_KNOWN, KnownDurability, durability_key
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.run_metrics import Number
from pvebench.model.workload import Direction
from pvebench.service.housekeeping import DatabaseMaintenance
from pvebench.store.changes import Decision
from pvebench.store.live_results import LiveResults
from pvebench.store.records import numbers_of
from pvebench.store.store import Store
from pvebench.verdicts.judge_input import JudgedCase, JudgeInput, figures_of, shared_labels
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import count_line, headline, verdicts_data
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.endpoints import Pages
from pvebench.web.server import make_app
from pvebench_lab.cli.past_metrics import past_verdicts
from testing import http_client
from testing.changes import CASES, NEW, OLD, START, measured, upgrade
from testing.durabilities import DURABLE
from testing.simulated_site import served


def test_a_stored_upgrade_that_made_virtio_slower_is_reported(store: Store) -> None:
    upgrade(store, slower=1.25)
    verdicts = VerdictService(LiveResults(store), load_known_issues()).judge()
    assert headline(verdicts).startswith(
        "2026-05-31: Everything on virtio is 20% slower since pve-qemu-kvm 9.2.0-2 (95% CI"
    )
    slower = {
        verdicts.labels[one.history.of]["bus"]
        for one in verdicts.verdicts
        if one.state is VerdictState.SLOWER and one.history.figure.name == "throughput"
    }
    assert slower == {"virtio"}


def test_without_the_changes_before_a_day_what_is_slower_is_not_denied(store: Store) -> None:
    upgrade(store, slower=1.25)
    verdicts = VerdictService(LiveResults(store), ()).judge().since(4e9)
    assert verdicts.regressions == ()
    said = r"No open regressions\D*: \d+ slower"
    assert re.match(said, count_line(verdicts))
    assert "ruled out" not in count_line(verdicts)


def test_nothing_new_is_not_judged_again_and_one_more_run_is(store: Store) -> None:
    upgrade(store, slower=1.0, after=0, days=22)
    told: list[Verdicts] = []
    results = LiveResults(store)
    keeper = VerdictService(results, (), on_update=told.append)
    keeper.judge()
    keeper.judge()
    assert len(told) == 1
    results.keep(measured(CASES[0], 40))
    assert keeper.judge().version == results.now.version
    assert len(told) == 2


def test_a_thread_judges_after_a_nudge_and_ends(store: Store) -> None:
    upgrade(store, slower=1.0, after=0, days=3)
    done = threading.Event()
    keeper = VerdictService(LiveResults(store), (), on_update=lambda _: done.set())
    with keeper:
        assert done.wait(20)
    assert keeper.current.counts().keys() == {VerdictState.INCONCLUSIVE}
    assert headline(keeper.current).startswith("Inconclusive: ")


def test_an_accepted_change_is_the_new_level(store: Store) -> None:
    upgrade(store, slower=1.25)
    keeper = VerdictService(LiveResults(store), ())
    assert keeper.judge().regressions
    decision = Decision(
        made=START, kind="accept", cases="*", until=START + timedelta(days=60), reason="known"
    )
    store.decisions.add(decision)
    verdicts = keeper.judge()
    assert not verdicts.regressions
    assert [change.state for change in verdicts.changes] == ["accepted"]
    assert verdicts.decisions == (decision,)


def test_a_reset_forgets_only_the_cases_that_it_names(store: Store) -> None:
    upgrade(store, slower=1.0, after=0)
    until = START + timedelta(days=60)
    store.decisions.add(
        Decision(made=START, kind="reset", cases="*.virtio.*", until=until, reason="new disk")
    )
    verdicts = VerdictService(LiveResults(store), ()).judge()
    judged = {
        verdicts.labels[one.history.of]["bus"] for one in verdicts.verdicts if one.history.points
    }
    assert judged == {"scsi"}


def test_runs_that_come_late_are_put_where_they_belong(store: Store) -> None:
    days = [*range(10, 30), 5, 40]
    store.add_history(measured(CASES[0], day, upgraded=day >= 30) for day in days)
    feed = JudgeInput(LiveResults(store))
    feed.read()
    histories = feed.material("lab").histories
    (points, *_) = [one.points for one in histories if one.figure.name == "throughput"]
    assert [*points.times] == sorted(points.times)
    assert [one.value for one in points[:2]] == [
        measured(CASES[0], day).samples[0].value for day in (5, 10)
    ]


def test_of_the_percentiles_only_those_that_are_judged_are_read(store: Store) -> None:
    tail = [Sample("clat_percentile", Direction.READ, 1e-3, Unit.SECONDS, p) for p in ("50", "99")]
    run = measured(CASES[0], 1)
    store.add_run(replace(run, samples=(*run.samples, *tail)))
    (read,) = store.numbers_by_case(until=1)
    assert ("clat_percentile", "read", "99") in read.values
    assert {part for metric, _, part in read.values if metric == "clat_percentile"} == {"99"}


def test_a_run_without_any_of_the_numbers_is_not_read(store: Store) -> None:
    other = (Sample("bytes", Direction.READ, 4096.0, Unit.BYTES),)
    store.add_run(replace(measured(CASES[0], 1), samples=other))
    assert [*store.numbers_by_case(until=1)] == []
    assert numbers_of(store.runs()[0]) is None


def test_the_past_is_reported_as_it_looked_then(store: Store) -> None:
    upgrade(store, slower=1.25)
    before, soon, late = ((START + timedelta(days=day)).timestamp() for day in (29.9, 31.0, 33.9))
    told = dict(past_verdicts(LiveResults(store), (), [before, soon, late]))
    assert list(told) == [before, soon, late]
    assert VerdictState.SLOWER not in told[before].counts()
    assert (
        told[late].counts()[VerdictState.SLOWER]
        == VerdictService(LiveResults(store), ()).judge().counts()[VerdictState.SLOWER]
    )
    # A run that had not ended by then has no part in it.
    ends = {one.history.points[-1].time for one in told[soon].verdicts if one.history.points}
    assert max(ends) <= soon


def test_a_later_decision_changes_nothing_in_the_past(store: Store) -> None:
    upgrade(store, slower=1.25)
    late, made = START + timedelta(days=33.9), START + timedelta(days=50)
    store.decisions.add(Decision(made=made, kind="reset", cases="*", until=made, reason="new disk"))
    ((_, then),) = past_verdicts(LiveResults(store), (), [late.timestamp()])
    assert then.regressions
    ((_, now),) = past_verdicts(LiveResults(store), (), [made.timestamp()])
    assert not now.regressions


def test_a_failed_run_is_no_part_of_a_history(store: Store) -> None:
    failed = replace(measured(CASES[0], 1), outcome=Outcome.FAILED, reason="why")
    store.add_run(failed)
    feed = JudgeInput(LiveResults(store))
    feed.read()
    assert feed.nodes == []


def test_figures_are_made_from_the_samples_of_runs() -> None:
    full = {
        ("iops", "read", ""): 3000.0,
        ("iops", "write", ""): 1000.0,
        ("clat_percentile", "read", "99"): 0.002,
        ("clat_max", "write", ""): 0.5,
        ("host_cpu", "", "qemu"): 0.8,
        ("host_cpu", "", "total"): 1.6,
        ("boot_time", "", ""): 7.0,
    }
    still = {("host_cpu", "", "total"): 0.03, ("boot_time", "", ""): 7.0}
    assert figures(full, still, tool="fio") == {
        ("throughput", "read"): [3000.0, None],
        ("throughput", "write"): [1000.0, None],
        ("latency_p99", "read"): [0.002, None],
        ("longest_stall", "write"): [0.5, None],
        ("cpu_cost", ""): [0.0002, None],
    }
    assert figures(still, tool="fio") == {}
    assert figures(still, tool="idle") == {("idle_cost", ""): [0.03]}
    assert figures(still, tool="boot") == {("boot_time", ""): [7.0]}


def figures(*runs: dict[Number, float], tool: str) -> dict[tuple[str, str], list[float | None]]:
    columns = {
        number: array("d", [one.get(number, math.nan) for one in runs])
        for number in {number for one in runs for number in one}
    }
    return {
        place: [None if math.isnan(value) else value for value in column]
        for place, column in figures_of(columns, tool).items()
    }


def test_runs_read_at_once_and_one_by_one_are_the_same_history(store: Store) -> None:
    order = [*range(1, 40), 7, 3, *range(40, 45), 41]
    store.add_history(
        replace(measured(CASES[0], day), uid=f"{number}") for number, day in enumerate(order)
    )
    (runs,) = store.numbers_by_case(until=store.newest_run())
    definition = Definition.of(CASES[0])
    one_by_one = JudgedCase(definition, runs.at([0]))
    for place in range(1, len(runs.runs)):
        one_by_one.add(runs.at([place]))
    at_once = JudgedCase(definition, runs)
    kept = [
        {place: [*points] for place, points in columns.counting(-math.inf).items()}
        for columns in (at_once, one_by_one)
    ]
    assert kept[0] == kept[1]
    assert kept[0]


def test_a_figure_that_some_runs_do_not_have_is_judged_by_those_that_have_it(store: Store) -> None:
    some = [
        replace(run, samples=run.samples[: 1 if day % 2 else None])
        for day in range(8)
        if (run := measured(CASES[0], day))
    ]
    store.add_history(some)
    (runs,) = store.numbers_by_case(until=store.newest_run())
    columns = JudgedCase(Definition.of(CASES[0]), runs)
    counts = {place: len(points) for place, points in columns.counting(-math.inf).items()}
    assert max(counts.values()) == 8
    assert set(counts.values()) == {4, 8}


@pytest.mark.parametrize(
    ("cache", "parameters", "durable"),
    [
        ("none", {}, False),
        ("directsync", {}, True),
        ("writeback", {"fdatasync": 1}, True),
        ("unsafe", {"fsync": 1}, False),
    ],
)
def test_writes_that_must_reach_the_device_are_distinguished(
    cache: str, parameters: dict[str, int], durable: bool
) -> None:
    definition = replace(
        Definition.of(CASES[0]),
        cache=cache,
        directions=(Direction.WRITE,),
        parameters={"rw": "randwrite", **parameters},
    )
    assert ("durable" in shared_labels(definition, NOTHING_KNOWN)) is durable
    lost = replace(DURABLE, node=definition.node, storage=definition.storage, torn=1)
    place = (lost.node, lost.storage, durability_key(definition.options))
    assert "durable" not in shared_labels(definition, KnownDurability({place: lost}))


def test_what_the_store_has_let_go_of_is_let_go_of_here(store: Store) -> None:
    results = LiveResults(store)
    feed, now = JudgeInput(results), START + timedelta(days=200)
    tidier = DatabaseMaintenance(results, lambda: Settings(keep_runs="20d"), lambda: now)
    most = 0
    for day in range(200):
        for case in CASES[:2]:
            results.keep(measured(case, day))
        feed.read()
        now = START + timedelta(days=day + 1)
        tidier.check()
        most = max(most, *(len(one.points) for one in feed.material("lab").histories))
    # Ages count from the 20th newest run, of two cases a day.
    assert most <= (20 + 10) * 1.25 + 1
    afresh = JudgeInput(LiveResults(store))
    afresh.read()
    feed.read()
    assert feed.nodes == afresh.nodes
    for one, other in zip(
        feed.material("lab").histories, afresh.material("lab").histories, strict=True
    ):
        assert list(one.points)[-len(other.points) :] == list(other.points)


def test_where_an_environment_began_and_ended_is_all_that_is_kept_of_it(store: Store) -> None:
    upgrade(store, slower=1.0, days=100, after=100)
    feed = JudgeInput(LiveResults(store))
    feed.read()
    timeline = feed.material("lab").timeline
    assert [digest for _, digest in timeline] == [OLD.digest] * 2 + [NEW.digest] * 2
    ends = sorted(
        run.finished.timestamp() for day in (0, 99, 100, 199) for run in rounds(day, day >= 100)
    )
    (change,) = environment_changes(timeline, {})
    assert change.time == min(ends[2 * len(CASES) :])
    assert (timeline[0][0], timeline[-1][0]) == (ends[0], ends[-1])


@pytest.mark.parametrize(
    "ends",
    [
        [(1, OLD, 1), (2, OLD, 0), (2, NEW, 1), (2, NEW, 0), (3, NEW, 1)],
        [(150, NEW, 0), *((minute, OLD, 0) for minute in range(101, 200, 7))],
        [*((minute, OLD, 0) for minute in range(100)), *((m, NEW, 0) for m in range(50, 150))],
        [*((minute, OLD, 0) for minute in range(9)), (500, OLD, 1), (10, NEW, 0), (11, NEW, 1)],
    ],
    ids=["at the same time", "stored late", "clock set back", "clock ahead once"],
)
def test_environments_follow_each_other_alike_however_the_runs_are_read(
    store: Store, ends: list[tuple[int, Environment, int]]
) -> None:
    results = LiveResults(store)
    followed = JudgeInput(results)
    for number, (minute, environment, case) in enumerate(ends):
        run = replace(measured(CASES[case], 0), uid=f"{number}", environment=environment)
        results.keep(replace(run, finished=START + timedelta(minutes=minute)))
        followed.read()
    afresh = JudgeInput(LiveResults(store))
    afresh.read()
    one, other = (
        environment_changes(feed.material("lab").timeline, {}) for feed in (followed, afresh)
    )
    assert [change.time for change in one] == [change.time for change in other]
    assert one


def test_guests_of_two_systems_take_turns_on_a_node(store: Store) -> None:
    results, digests = LiveResults(store), []
    for number in range(40):
        facts = {**(NEW if number >= 20 else OLD).facts, "guest_kernel": "ab"[number % 2]}
        environment = Environment(node="lab", facts=facts)
        run = replace(measured(CASES[number % 2], 0), uid=f"{number}", environment=environment)
        results.keep(replace(run, finished=START + timedelta(minutes=number)))
        digests.append(environment.digest)
    feed = JudgeInput(results)
    feed.read()
    assert [digest for _, digest in feed.material("lab").timeline] == digests


def rounds(day: int, upgraded: bool) -> list[Run]:
    return [measured(case, day, upgraded=upgraded) for case in CASES]


def no_results() -> Snapshot:
    return Snapshot(now=START, records=[])


def test_verdicts_stand_on_the_metrics_page(store: Store) -> None:
    upgrade(store, slower=1.25)
    page = Page(no_results, live={})
    VerdictService(LiveResults(store), (), on_update=page.judged).judge()
    text = page.render()[0].decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    virtio = [
        one.value
        for one in samples
        if one.name == "pvebench_regression"
        and (one.labels["bus"], one.labels["metric"]) == ("virtio", "throughput")
    ]
    assert virtio
    assert set(virtio) == {1.0}
    states = {one.value for one in samples if one.name == "pvebench_change_state"}
    assert states == {-2.0, 0.0}
    levels = {
        one.labels["environment"]: one.value
        for one in samples
        if one.name == "pvebench_performance_index_ratio"
    }
    assert levels[OLD.slug] == 1.0
    assert levels[NEW.slug] == pytest.approx(0.8**0.5, abs=0.02)
    baselines = {
        one.value
        for one in samples
        if one.name == "pvebench_baseline_iops" and one.labels["bus"] == "virtio"
    }
    assert all(9_900 < value < 10_100 for value in baselines)
    expected = {metric.exposed for metric in CATALOG.values() if is_of_verdicts(metric.exposed)}
    # No latency was measured here, and nothing creeps.
    missing = {"pvebench_baseline_latency_percentile_seconds", "pvebench_change_gradual_ratio"}
    assert expected - {one.name for one in samples} == missing


def test_a_slow_loss_stands_in_the_sentence_the_metrics_and_the_data(store: Store) -> None:
    store.add_history(
        measured(case, day, slower=1.001**day if case.scenario.disk.bus == "virtio" else 1.0)
        for day in range(160)
        for case in CASES
    )
    page = Page(no_results, live={})
    verdicts = VerdictService(LiveResults(store), (), on_update=page.judged).judge()
    said = "Everything on virtio is gradually slower: 15% since 2026-05-01 (160 runs)"
    assert headline(verdicts).startswith(said)
    assert {one["state"] for one in verdicts_data(verdicts)["verdicts"]} == {
        "gradually_slower",
        "unchanged",
    }
    assert [one["slow"] for one in verdicts_data(verdicts)["changes"]] == [True]
    text = page.render()[0].decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    crept = [one for one in samples if one.name == "pvebench_change_gradual_ratio"]
    assert {one.labels["bus"] for one in crept} == {"virtio"}
    assert all(one.value == pytest.approx(-0.16, abs=0.02) for one in crept)
    worse = [one for one in samples if one.name == "pvebench_regression" and one.value == 1]
    assert len(worse) == len(crept)


def is_of_verdicts(name: str) -> bool:
    words = ("change", "regression", "implausible_gain", "baseline", "verdict", "performance")
    return name.removeprefix("pvebench_").startswith(words)


def test_the_verdict_stands_on_the_page_and_in_the_api(store: Store) -> None:
    upgrade(store, slower=1.25)
    verdicts = VerdictService(LiveResults(store), ()).judge()
    pages = Pages(LiveResults(store), list, verdicts=lambda: verdicts)
    app = make_app(Page(no_results, live={}), pages)
    with served(app) as where:
        shown = http_client.get(f"{where}/").text
        data = http_client.get(f"{where}/api/v1/verdict").json()
        case = http_client.get(f"{where}/cases/{CASES[0].key}").text
    assert "×</span> Everything on virtio is 20% slower since pve-qemu-kvm 9.2.0-2" in shown
    cells = re.findall(r'<div class="note">.*?▼</span> (.*?)</div>', shown)
    assert len(cells) == sum(case.scenario.disk.bus == "virtio" for case in CASES)
    assert all(re.fullmatch(r"(1[89]|2[012])% slower than before", one) for one in cells)
    assert "▲</span>" not in shown
    assert re.search(r"▼</span> slower</span></td><td class=\"right\">-\d\d\.\d%</td>", case)
    assert data["regression"] is True
    assert data["changes"][0]["shared"] == {"bus": "virtio"}
    assert data["changes"][0]["moves"][0]["change_ratio"] == pytest.approx(-0.2, abs=0.02)
    assert data["counts"]["slower"] == len(
        [one for one in data["verdicts"] if one["state"] == "slower"]
    )
