"""A change is reported once: its ID stays, and its sentence does not change with every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample as Shown

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.change import Change, FactDifference
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.verdict import Verdict, VerdictState
from pvebench.metrics.exposition import Families, text_of
from pvebench.metrics.verdict_collectors import MAX_CLOSED, MAX_SHOWN, collect_changes
from pvebench.sanitize import MAX_LETTERS, one_line
from pvebench.store.changes import Decision, KnownChange
from pvebench.store.live_results import LiveResults
from pvebench.store.outbox import Message
from pvebench.store.store import Store
from pvebench.verdicts.change_text import listed, sentence
from pvebench.verdicts.change_tracker import (
    KNOWN_SECONDS,
    NEAR_RUNS,
    UNCONFIRMED_SECONDS,
    ChangeTracker,
    recognized,
)
from pvebench.verdicts.node_verdicts import Verdicts, changes_of
from pvebench.verdicts.overall_state import headline, summary
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.views.pages import open_changes
from testing.captured_logs import captured_logs
from testing.changes import CASES, DAY, FINDING, MOVE, START, measured, upgrade

KNOWN = KnownChange(
    id="known", since=100 * DAY, worse=True, gradual=False, cases=frozenset(FINDING.cases)
)
KERNEL = FactDifference("kernel", "6.14.4-1-pve", "6.14.5-1-pve")


def days_apart(_: str, one: float, other: float) -> int:
    return round(abs(one - other) / DAY)


def shown(verdicts: Verdicts) -> list[Shown]:
    families = Families()
    collect_changes(verdicts, families)
    text = text_of([families])
    return [one for family in text_string_to_metric_families(text) for one in family.samples]


def values(samples: Sequence[Shown], name: str) -> list[float]:
    return [one.value for one in samples if one.name == f"pvebench_{name}"]


def info(samples: Sequence[Shown], name: str = "change_info") -> list[dict[str, str]]:
    return [one.labels for one in samples if one.name == f"pvebench_{name}"]


def of_cases(samples: Sequence[Shown], change: Mapping[str, str]) -> list[dict[str, str]]:
    """The cases of a change."""
    found = info(samples, "change_case_info")
    return [one for one in found if one["change"] == change["change"]]


def test_one_upgrade_is_one_change_with_the_sentence_of_the_verdict(store: Store) -> None:
    upgrade(store, slower=1.25)
    verdicts = VerdictService(LiveResults(store), ()).judge()
    samples = shown(verdicts)
    (labels,) = info(samples)
    assert labels["summary"].startswith(
        "Everything on virtio is 20% slower since pve-qemu-kvm 9.2.0-2 (all 6 cases; on lab"
    )
    assert (labels["node"], labels["kind"], labels["since"]) == ("lab", "level", "2026-05-31")
    assert values(samples, "change_cases") == [6]
    named = {(one["scenario"], one["workload"]) for one in of_cases(samples, labels)}
    virtio = [case for case in CASES if case.scenario.disk.bus == "virtio"]
    assert named == {(one.scenario.slug, one.workload.slug) for one in virtio}
    (low,) = values(samples, "change_effect_low_ratio")
    (effect,) = values(samples, "change_effect_ratio")
    (high,) = values(samples, "change_effect_high_ratio")
    assert low <= effect <= high < 0
    assert effect == pytest.approx(-0.2, abs=0.01)
    assert 0.999 < values(samples, "change_confidence_ratio")[0] <= 1
    assert values(samples, "change_since_timestamp_seconds") == [verdicts.changes[0].begin]
    (said,) = info(samples, "verdict_info")
    summary = f"{labels['since']}: {labels['summary']}"
    brief = "Everything on virtio: 20% slower"
    assert said == {"state": "regression", "headline": brief, "summary": summary}


def test_the_verdicts_words_are_the_changes_words_but_for_what_moves_with_every_run() -> None:
    summary, calm = sentence(FINDING), sentence(FINDING, evidence=False)
    assert summary.replace("95% CI 16-20%; ", "").replace(", 5 runs", "") == calm


def test_a_change_keeps_its_id_while_runs_come_in_and_after_a_restart(store: Store) -> None:
    upgrade(store, slower=1.25)
    results = LiveResults(store)
    keeper = VerdictService(results, ())
    first = keeper.judge().changes
    for day in range(34, 40):
        for case in CASES:
            hit = case.scenario.disk.bus == "virtio"
            results.keep(measured(case, day, slower=1.25 if hit else 1.0, upgraded=True))
        (now,) = keeper.judge().changes
        assert now.id == first[0].id
    assert summary(now) == summary(first[0])
    assert now.moves[0].runs > first[0].moves[0].runs


def test_what_is_accepted_is_no_change_any_more(store: Store) -> None:
    upgrade(store, slower=1.25)
    keeper = VerdictService(LiveResults(store), ())
    assert len(keeper.judge().changes) == 1
    until = measured(CASES[0], 60).finished
    store.decisions.add(Decision(made=START, kind="accept", cases="*", until=until, reason=""))
    samples = shown(keeper.judge())
    assert info(samples) == []
    assert set(values(samples, "changes")) == {0.0}
    assert info(samples, "verdict_info")[0]["state"] != "regression"


def test_before_anything_is_judged_the_wall_has_its_sentence() -> None:
    (said,) = info(shown(Verdicts()), "verdict_info")
    brief = "No verdict yet"
    assert said == {"state": "inconclusive", "headline": brief, "summary": headline(Verdicts())}
    assert values(shown(Verdicts()), "changes") == [0, 0, 0]


def test_most_of_a_storage_is_critical_and_a_gain_only_information(store: Store) -> None:
    upgrade(store, slower=1.25)
    (worse,) = VerdictService(LiveResults(store), ()).judge().changes
    assert worse.severity == "critical"  # 6 of the 12 cases


def test_a_gain_is_reported_for_information_only(store: Store) -> None:
    upgrade(store, slower=1 / 1.25)
    (better,) = VerdictService(LiveResults(store), ()).judge().changes
    assert (better.severity, better.worse) == ("info", False)


@pytest.mark.parametrize(
    ("finding", "known"),
    [
        (replace(FINDING, begin=(100 + NEAR_RUNS) * DAY), True),
        (replace(FINDING, begin=(101 + NEAR_RUNS) * DAY), False),
        (replace(FINDING, cases=("a", "b", "c", "d", "e", "f", "g", "h", "i")), True),
        (replace(FINDING, cases=("a", "b", "x", "y")), True),
        (replace(FINDING, cases=("a", "x", "y", "z")), False),
        (replace(FINDING, moves=(replace(MOVE, effect=0.2),)), False),
        (replace(FINDING, kind="drift", begin=1.0), True),
        (replace(FINDING, nodes=("pve1", "pve2")), True),
    ],
    ids=[
        "its time moved a little",
        "its time moved far",
        "more cases joined",
        "half are the same",
        "most are others",
        "it goes the other way",
        "it turned out to be slow",
        "another node shows it too",
    ],
)
def test_a_change_is_known_again(finding: Change, known: bool) -> None:
    assert recognized([finding], [KNOWN], days_apart) == ({0: "known"} if known else {})


def test_two_changes_of_the_same_cases_keep_apart() -> None:
    later = replace(FINDING, begin=108 * DAY)
    known = [KNOWN, replace(KNOWN, id="later", since=107 * DAY)]
    assert recognized([later, FINDING], known, days_apart) == {0: "later", 1: "known"}
    # Where only one was known, the other is new.
    assert recognized([later, FINDING], [KNOWN], days_apart) == {1: "known"}


def test_what_is_said_on_many_places_stays_readable() -> None:
    assert listed(()) == ""
    assert listed(("a",)) == "a"
    assert listed(("a", "b")) == "a and b"
    assert listed(("a", "b", "c", "d")) == "a, b, c and d"
    assert listed(tuple("abcdefgh")) == "a, b, c and 5 more"


def test_hostile_names_stay_one_line_of_bounded_length() -> None:
    text = one_line('a\r\nBcc: x\n"} 1\npvebench_up 1\x1b[31m\u2028' + "long " * 1000)
    assert text.isprintable()
    assert text.startswith('a Bcc: x "} 1 pvebench_up 1 [31m long')
    assert len(text) <= MAX_LETTERS


def test_ten_thousand_changes_are_counted_and_few_are_shown() -> None:
    found = [
        replace(FINDING, cases=(f"case {number}",), names=(f"case\n{number}",))
        for number in range(10_000)
    ]
    known = [
        replace(KNOWN, id=str(number), cases=frozenset(one.cases))
        for number, one in enumerate(found)
    ]
    assert recognized(found, known, days_apart) == {n: str(n) for n in range(10_000)}
    changes = tuple(
        replace(one, id=str(number), storages=("a",), severity="warning")
        for number, one in enumerate(found)
    )
    samples = shown(replace(Verdicts(), changes=changes))
    assert sum(values(samples, "changes")) == 10_000
    assert len(samples) == 4 + 7 * MAX_SHOWN


def test_ids_are_short_and_never_given_twice(store: Store) -> None:
    upgrade(store, slower=1.25)
    verdicts = VerdictService(LiveResults(store), ()).judge()
    (named,) = ChangeTracker().name(verdicts)
    taken = KnownChange(id=named.id, since=0, worse=False, gradual=False, cases=frozenset())
    store.changes.keep([taken])
    namer = ChangeTracker(store.changes)
    (other,) = namer.name(verdicts)
    assert other.id != named.id
    assert len(other.id) == len(named.id) == 8


def report(*findings: Change, until: float) -> Verdicts:
    """Verdicts with these findings, of which the open ones are confirmed now."""
    verdicts = tuple(
        Verdict(
            history=CaseHistory(
                case=case, of=case, name=case, figure=MOVE.figure, labels={}, points=RUNS
            ),
            state=VerdictState.SLOWER,
            effect=finding.moves[0].effect,
        )
        for finding in findings
        for case in finding.cases
    )
    node = NodeReport(
        node="pve1", verdicts=verdicts, findings=findings, events=(), levels=(), judged_until=until
    )
    labels = {case: {"node": "pve1", "storage": "a"} for one in findings for case in one.cases}
    return Verdicts(version=1, reports=(node,), labels=labels, changes=changes_of((node,)))


RUNS = GoodRuns(GoodRun(day * DAY, "", 1.0) for day in range(300))


@pytest.fixture
def named(store: Store) -> KnownChange:
    """What is kept of a reported change."""
    ChangeTracker(store.changes).name(report(FINDING, until=110 * DAY))
    (one,) = store.changes.all()
    notified = replace(one, notified="open", notified_at=110 * DAY)
    store.outbox.put([Message(kind="changed", title="", body="")], [notified])
    return store.changes.all()[0]


def test_another_process_knows_a_change_again(store: Store, named: KnownChange) -> None:
    moved = replace(FINDING, begin=103 * DAY, cases=(*FINDING.cases, "e"), names=("x",))
    (change,) = ChangeTracker(store.changes).name(report(moved, until=120 * DAY))
    assert change.id == named.id
    (kept,) = store.changes.all()
    assert (kept.notified, kept.notified_at) == ("open", 110 * DAY)
    assert (kept.since, kept.cases) == (103 * DAY, frozenset("abcde"))


@pytest.mark.parametrize(
    ("how", "ending"),
    [({"state": "resolved", "end": 115 * DAY}, "resolved"), ({"state": "accepted"}, "accepted")],
)
def test_the_end_of_a_change_has_its_reason(
    store: Store, named: KnownChange, how: dict[str, object], ending: str
) -> None:
    closed = replace(FINDING, **how)  # type: ignore[arg-type] # by name
    (change,) = ChangeTracker(store.changes).name(report(closed, until=120 * DAY))
    assert change.state != "open"
    (kept,) = store.changes.all()
    assert (kept.id, kept.ending, kept.ended) == (named.id, ending, 120 * DAY)


def test_one_that_is_doubted_for_less_than_a_day_has_not_ended(
    store: Store, named: KnownChange
) -> None:
    namer = ChangeTracker(store.changes)
    namer.name(report(until=120 * DAY))
    namer.name(report(until=120 * DAY + UNCONFIRMED_SECONDS - 1))
    assert store.changes.all()[0].ended is None
    (again,) = namer.name(report(FINDING, until=121 * DAY))
    assert again.id == named.id
    assert store.changes.all()[0].missing is None
    namer.name(report(until=122 * DAY))
    namer.name(report(until=122 * DAY + UNCONFIRMED_SECONDS))
    assert store.changes.all()[0].ending == "unconfirmed"


def test_one_that_returns_has_its_id_and_one_that_is_long_over_is_forgotten(
    store: Store, named: KnownChange
) -> None:
    namer = ChangeTracker(store.changes)
    namer.name(report(replace(FINDING, state="resolved", end=115 * DAY), until=120 * DAY))
    (again,) = namer.name(report(FINDING, until=121 * DAY))
    assert again.id == named.id
    assert store.changes.all()[0].ended is None
    namer.name(report(replace(FINDING, state="resolved", end=115 * DAY), until=122 * DAY))
    namer.name(report(until=122 * DAY + KNOWN_SECONDS + 1))
    assert store.changes.all() == []


def test_a_part_of_what_was_reported_as_a_whole_is_no_news(
    store: Store, named: KnownChange
) -> None:
    parts = [replace(FINDING, cases=cases, names=cases) for cases in (("a", "b"), ("c", "d"))]
    changes = ChangeTracker(store.changes).name(report(*parts, until=120 * DAY))
    assert named.id in {one.id for one in changes}
    assert len({one.id for one in changes}) == 2
    noted = {(one.notified, one.notified_at) for one in store.changes.all()}
    assert noted == {("open", 110 * DAY)}
    # Told as one again, the other part has not ended: it is in the whole.
    ChangeTracker(store.changes).name(report(FINDING, until=121 * DAY))
    (kept,) = store.changes.all()
    assert kept.ended is None


RESOLVED = replace(FINDING, state="resolved", end=115 * DAY, came_with=((KERNEL,),))


def test_a_closed_change_has_its_begin_end_size_cause_and_state_in_metrics(
    store: Store, named: KnownChange
) -> None:
    verdicts = report(RESOLVED, until=120 * DAY)
    (change,) = ChangeTracker(store.changes).name(verdicts)
    samples = shown(replace(verdicts, changes=(change,)))
    (labels,) = info(samples, "closed_change_info")
    assert change.id == labels["change"] == named.id
    assert labels | {"change": "", "summary": ""} == {
        "change": "",
        "node": "pve1",
        "storage": "a",
        "kind": "level",
        "state": "resolved",
        "since": "1970-04-11",
        "until": "1970-04-26",
        "cause": "kernel 6.14.5-1-pve",
        "metric": "throughput",
        "summary": "",
    }
    assert labels["summary"] == summary(change)
    assert values(samples, "closed_change_cases") == [4]
    assert values(samples, "closed_change_effect_ratio") == [pytest.approx(-0.181, abs=0.001)]
    assert values(samples, "closed_change_begin_timestamp_seconds") == [100 * DAY]
    assert values(samples, "closed_change_end_timestamp_seconds") == [115 * DAY]
    assert info(samples) == []


def test_an_accepted_change_is_closed_without_an_end(store: Store) -> None:
    verdicts = report(replace(FINDING, state="accepted"), until=120 * DAY)
    samples = shown(replace(verdicts, changes=ChangeTracker(store.changes).name(verdicts)))
    (labels,) = info(samples, "closed_change_info")
    assert (labels["state"], labels["until"], labels["cause"]) == ("accepted", "", "")
    assert values(samples, "closed_change_end_timestamp_seconds") == []


def test_the_return_to_an_earlier_level_is_the_end_of_a_change_and_no_other() -> None:
    returned = replace(
        FINDING, begin=115 * DAY, moves=(replace(MOVE, effect=0.2),), state="resolved", back=True
    )
    verdicts = report(returned, RESOLVED, until=120 * DAY)
    assert [one.begin for one in verdicts.closed_changes] == [100 * DAY]
    assert len(info(shown(verdicts), "closed_change_info")) == 1


def test_a_closed_change_keeps_its_id_as_long_as_it_is_listed(
    store: Store, named: KnownChange
) -> None:
    tracker = ChangeTracker(store.changes)
    tracker.name(report(RESOLVED, until=120 * DAY))
    moved = replace(RESOLVED, begin=101 * DAY, cases=(*FINDING.cases, "e"))
    for day in (130, 300):
        (change,) = tracker.name(report(moved, until=120 * DAY + KNOWN_SECONDS + day * DAY))
        assert change.id == named.id
    assert store.changes.all()[0].ended == 120 * DAY


def test_of_very_many_closed_changes_the_newest_are_shown() -> None:
    many = tuple(replace(RESOLVED, id=str(number)) for number in range(10_000))
    closed = info(shown(Verdicts(changes=many)), "closed_change_info")
    assert [one["change"] for one in closed] == [str(number) for number in range(MAX_CLOSED)]


def test_without_a_database_the_verdict_holds_all_the_same(store: Store) -> None:
    store.close()
    store.path.unlink()
    with captured_logs() as logs:
        assert len(ChangeTracker(store.changes).name(report(FINDING, until=110 * DAY))) == 1
    assert [one["log_level"] for one in logs] == ["warning", "warning"]


def on_two_nodes() -> Verdicts:
    """Verdicts with one change that two nodes show, named."""
    reports = []
    labels = {}
    for node in ("pve1", "pve2"):
        cases = tuple(f"{node}/{case}" for case in FINDING.cases)
        seen = replace(FINDING, nodes=(node,), known=True, group=(), cases=cases)
        (one,) = report(seen, until=110 * DAY).reports
        reports.append(replace(one, node=node))
        where = {"node": node, "storage": "a", "scenario": "s", "workload": "w"}
        labels |= dict.fromkeys(cases, where)
    verdicts = Verdicts(
        version=1, reports=tuple(reports), labels=labels, changes=changes_of(reports)
    )
    return replace(verdicts, changes=ChangeTracker().name(verdicts))


def test_a_change_on_two_nodes_has_one_id_in_metrics_and_as_the_anchor_of_the_page() -> None:
    verdicts = on_two_nodes()
    (change,) = verdicts.changes
    assert change.nodes == ("pve1", "pve2")
    (labels,) = info(shown(verdicts))
    ((on_page, _),) = open_changes(verdicts, {})
    assert labels["change"] == on_page.id == change.id
