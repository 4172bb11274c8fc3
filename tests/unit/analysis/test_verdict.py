"""Verdicts on histories with known changes: what is told, and what is not."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.judge import Judge, NodeReport
from pvebench.analysis.verdict import VerdictState, as_ratio
from pvebench.config.known_issues import load_known_issues
from pvebench.model.run_metrics import JUDGED
from pvebench.verdicts.change_text import sentence
from testing.histories import (
    BEFORE,
    DAY,
    Effect,
    Labels,
    after_change,
    fleet_labels,
    histories,
    material,
    unchanged,
)

ONE = {"bus": "virtio", "cache": "none", "format": "raw", "rw": "randwrite"}


def judge(found: list[CaseHistory], **changes: Labels) -> NodeReport:
    return Judge(load_known_issues()).judge(material(found, **changes))


def states(report: NodeReport) -> dict[str, int]:
    return dict(Counter(str(verdict.state) for verdict in report.verdicts))


def told(report: NodeReport) -> list[str]:
    return [sentence(finding) for finding in report.findings]


def test_an_upgrade_that_changes_nothing_is_met_with_silence() -> None:
    for seed in range(1, 6):
        report = judge(histories(runs=46, seed=seed))
        assert (report.findings, len(report.events)) == ((), 1)
        assert states(report).keys() <= {"unchanged", "possibly_slower", "possibly_faster"}


def test_what_the_affected_cases_have_in_common_is_named() -> None:
    report = judge(histories(after_change(0.82, bus="virtio", rw="randwrite")))
    assert states(report) == {"unchanged": 20, "slower": 4}
    assert told(report) == [
        "Random write on virtio is 18% slower since pve-qemu-kvm 9.2.0-2 "
        "(95% CI 17-19%; all 4 cases, 5 runs)"
    ]


def test_figures_that_moved_together_are_reported_together_with_the_known_issue() -> None:
    def slower_and_dearer(labels: Labels, figure: str, run: int) -> float:
        if labels["bus"] != "virtio" or run < 40:
            return 1.0
        return 0.82 if figure == "throughput" else 1.09

    report = judge(histories(slower_and_dearer, figures=("throughput", "cpu_cost")))
    (text,) = told(report)
    assert text.startswith("Everything on virtio is 17% slower since pve-qemu-kvm 9.2.0-2")
    assert re.search(r"host CPU per I/O up (8.\d|9.\d)%", text)
    assert "known issue R2" in text
    assert "fixed in 9.2.0-3" in text


def test_a_change_of_everything_is_reported_as_that_and_not_taken_for_noise_of_the_host() -> None:
    report = judge(histories(after_change(0.9)))
    assert states(report) == {"slower": 24}
    assert told(report)[0].startswith("Everything is 10% slower")


def test_one_case_alone_needs_three_runs() -> None:
    found = histories(after_change(0.8, **ONE), runs=42)
    assert states(judge(found)).get("slower", 0) == 0
    assert states(judge(histories(after_change(0.8, **ONE), runs=43))) == {
        "unchanged": 23,
        "slower": 1,
    }


def test_one_run_may_only_raise_a_doubt() -> None:
    report = judge(histories(after_change(0.8), labels=[ONE], runs=41))
    assert states(report) == {"possibly_slower": 1}
    assert report.findings == ()


def test_a_gain_of_durable_writes_is_an_alarm_and_no_win() -> None:
    sync = {**ONE, "durable": "yes"}
    report = judge(
        histories(after_change(8.0), labels=[sync]), after={**BEFORE, "kernel": "6.11.11-1-pve"}
    )
    assert states(report) == {"implausible": 1}
    (finding,) = report.findings
    assert finding.regression
    assert "known issue R1" in sentence(finding)
    assert ". Implausible: " in sentence(finding)


def test_a_plausible_gain_is_no_alarm() -> None:
    (finding,) = judge(histories(after_change(1.15), labels=[ONE])).findings
    assert (finding.kind, finding.implausible, finding.regression) == ("level", False, False)


def test_a_change_at_an_unknown_time_is_found_and_its_cases_reported_together() -> None:
    found = histories(after_change(0.8, 60, bus="virtio"), runs=80, changed_at=1000)
    report = judge(found)
    assert states(report)["slower"] == 8
    (finding,) = [one for one in report.findings if len(one.cases) > 1]
    assert not finding.known
    assert sentence(finding).startswith("Everything on virtio is 20% slower since 1970-03-0")


def test_a_history_of_a_few_runs_is_not_called_the_same() -> None:
    report = judge(histories(runs=4, changed_at=1000))
    assert states(report) == {"inconclusive": 24}
    assert report.verdicts[0].reason == "4 ok runs; first verdict after 3 more runs"


def test_the_same_says_which_change_it_excludes() -> None:
    (verdict,) = judge(histories(labels=[ONE], runs=60)).verdicts
    assert verdict.state == "unchanged"
    size = int(re.fullmatch("changes above ([0-9]+)% ruled out", verdict.reason)[1])
    assert size == math.ceil(100 * math.expm1(verdict.excluded)) <= 10


@pytest.mark.parametrize("runs", [9, 10, 12])
def test_too_few_runs_say_what_could_hide_and_when_it_is_known(runs: int) -> None:
    found = histories(labels=[ONE], runs=runs, changed_at=9, noise=0.06)
    (verdict,) = judge(found).verdicts
    assert verdict.state == "inconclusive"
    assert re.fullmatch(
        "[0-9]+ runs?( after [0-9]+)?: changes up to [0-9]+% possible; 10% can be ruled out after "
        "[0-9]+ more runs?",
        verdict.reason,
    )
    later = histories(labels=[ONE], runs=runs + 3 * verdict.more_runs, changed_at=9, noise=0.06)
    assert states(judge(later)) == {"unchanged": 1}


def test_few_wild_runs_are_not_known_yet_instead_of_a_size_that_rules_out_nothing() -> None:
    (verdict,) = judge(histories(labels=[ONE], runs=9, changed_at=9, noise=0.5)).verdicts
    assert verdict.state == "inconclusive"
    assert " possible" not in verdict.reason
    assert re.fullmatch(r"3 runs after 6: not yet known; .*", verdict.reason)


@pytest.mark.parametrize("before", [5, 10, 19])
def test_half_the_speed_after_a_few_runs_is_reported(before: int) -> None:
    cases = fleet_labels()[:9]
    found = histories(
        after_change(0.5, before), labels=cases, runs=before + 60, changed_at=before, noise=0.03
    )
    report = judge(found)
    assert states(report) == {"slower": 9}
    assert told(report)[0].startswith("Everything is 50% slower since pve-qemu-kvm 9.2.0-2")


@pytest.mark.parametrize("before", [5, 10, 15])
def test_a_case_that_lost_a_fifth_is_never_the_same_however_few_runs_came_before(
    before: int,
) -> None:
    for seed in range(6):
        found = histories(
            after_change(0.8, before, bus="virtio"),
            runs=before + 1 + seed,
            changed_at=before,
            noise=0.03,
            seed=seed,
        )
        report = judge(found)
        hit = {v.state for v in report.verdicts if v.history.labels["bus"] == "virtio"}
        assert VerdictState.UNCHANGED not in hit


def test_what_an_event_has_confirmed_stays_while_the_level_does() -> None:
    found = histories(after_change(0.95, bus="virtio"), runs=140, noise=0.03)
    for runs in (44, 50, 60, 80, 100, 140):
        report = judge([one.before(86400.0 * (runs + 1) - 100) for one in found])
        (finding,) = report.findings
        assert finding.moves[0].low <= math.log(0.95) <= finding.moves[0].high, runs


def test_another_cpu_ends_the_comparison_and_says_so() -> None:
    report = judge(histories(unchanged), after={**BEFORE, "cpu_model": "Another CPU"})
    assert states(report) == {"inconclusive": 24}
    assert "different hardware: A CPU -> Another CPU" in report.verdicts[0].reason


def test_a_case_that_varies_too_much_is_not_called_the_same() -> None:
    report = judge(histories(labels=[ONE], noise=0.5, runs=43))
    assert states(report) == {"inconclusive": 1}


def test_the_table_and_the_sentence_say_the_same_number() -> None:
    report = judge(histories(after_change(1.17), labels=[ONE], runs=60))
    (verdict,), (finding,) = report.verdicts, report.findings
    assert (verdict.effect, verdict.low, verdict.high) == (
        finding.moves[0].effect,
        finding.moves[0].low,
        finding.moves[0].high,
    )
    assert f" is {verdict.ratio:.0%} faster" in sentence(finding)


def test_an_accepted_change_is_no_alarm_any_more_and_stays_visible() -> None:
    found = histories(after_change(0.8, bus="virtio"), runs=60)
    loud = judge(found)
    last = max(point.time for one in found for point in one.points)
    quiet = Judge().judge(material(found, accepted_until={one.of: last for one in found}))
    assert [finding.regression for finding in loud.findings] == [True]
    assert [(finding.regression, finding.state) for finding in quiet.findings] == [
        (False, "accepted")
    ]
    assert not any(verdict.state.confirmed for verdict in quiet.verdicts)
    assert states(quiet)["unchanged"] >= 23
    assert sum(bool(verdict.accepted) for verdict in quiet.verdicts) == 8


def test_a_regression_that_is_repaired_is_back_at_the_baseline() -> None:
    def broken_for_a_while(labels: Labels, figure: str, run: int) -> float:
        return 0.8 if 40 <= run < 60 else 1.0

    found = histories(broken_for_a_while, runs=80)
    mended = material(found)
    timeline = [
        (time, "fixed" if time > 86400.0 * 61 - 1 else name) for time, name in mended.timeline
    ]
    report = Judge().judge(
        type(mended)(
            node="pve1",
            histories=found,
            timeline=timeline,
            facts={**mended.facts, "fixed": {**BEFORE, "qemu_package": "9.2.0-3"}},
        )
    )
    assert states(report) == {"unchanged": 24}
    assert [round(finding.moves[0].effect, 1) for finding in report.findings] == [0.2, -0.2]
    assert all(
        one.reason.startswith("back at the baseline, changes above") for one in report.verdicts
    )


def test_a_loss_after_a_much_larger_one_that_was_repaired_is_not_the_same() -> None:
    def mended_and_lost_again(labels: Labels, figure: str, run: int) -> float:
        return 0.03 if 30 <= run < 50 else 0.75 if run >= 70 else 1.0

    report = judge(histories(mended_and_lost_again, runs=95))
    assert states(report) == {"slower": 24}


def test_a_third_of_a_thousandfold_loss_is_no_way_back() -> None:
    def mended_by_half(labels: Labels, figure: str, run: int) -> float:
        return 0.001 if 30 <= run < 50 else 0.5 if run >= 50 else 1.0

    assert states(judge(histories(mended_by_half, runs=80))) == {"slower": 24}


def test_judging_again_after_one_more_run_says_the_same_as_judging_afresh() -> None:
    found = histories(after_change(0.9, bus="scsi"), runs=50)
    again = Judge()
    for runs in (48, 49, 50):
        report = again.judge(material([one.before(86400.0 * (runs + 1) - 100) for one in found]))
    fresh = Judge().judge(material(found))
    assert told(report) == told(fresh)
    assert [one.state for one in report.verdicts] == [one.state for one in fresh.verdicts]


@pytest.mark.parametrize(("figure", "ratio"), [("throughput", 0.25), ("latency_p99", 0.2)])
def test_a_ratio_is_of_the_value_itself_with_plus_for_better(figure: str, ratio: float) -> None:
    assert as_ratio(math.log(1.25), JUDGED[figure]) == pytest.approx(ratio)


def test_codes_are_those_of_the_metric() -> None:
    states = ("slower", "possibly_slower", "unchanged", "possibly_faster", "faster", "implausible")
    assert [VerdictState(state).code for state in states] == [-2, -1, 0, 1, 2, 2]


def test_a_step_before_an_upgrade_is_not_blamed_on_it() -> None:
    found = histories(after_change(0.8, 60, **ONE), labels=[ONE], runs=82, changed_at=75)
    report = judge(found)
    (finding,) = report.findings
    assert not finding.known
    assert "% slower since 1970-03-0" in sentence(finding)


def creeping(loss: float, begin: int = 0, **affected: str) -> Effect:
    """Return an effect that takes `loss` of the value with every run from `begin` on."""

    def effect(labels: Labels, figure: str, run: int) -> float:
        hit = all(labels.get(key) == value for key, value in affected.items())
        return (1 - loss) ** max(0, run - begin) if hit else 1.0

    return effect


def test_a_level_that_creeps_is_reported_with_how_far_and_since_when() -> None:
    found = histories(creeping(0.001, bus="virtio"), runs=240, changed_at=1000)
    report = judge(found)
    assert states(report) == {"gradually_slower": 8, "unchanged": 16}
    assert told(report) == [
        "Everything on virtio is gradually slower: 21% since 1970-01-02 (240 runs) "
        "(95% CI 20-22%; all 8 cases)"
    ]
    assert report.findings[0].regression


def test_the_step_that_the_scan_sees_where_a_creep_began_is_part_of_it() -> None:
    found = histories(creeping(0.003, 150, **ONE), labels=[ONE], runs=310, changed_at=1000)
    early = judge([one.before(found[0].points[190].time) for one in found])
    assert [finding.slow for finding in early.findings] == [False]
    report = judge(found)
    assert [finding.slow for finding in report.findings] == [True]
    assert states(report) == {"gradually_slower": 1}


def test_a_step_is_no_creep_however_large() -> None:
    found = histories(after_change(0.3, 120, **ONE), labels=[ONE], runs=240, changed_at=1000)
    report = judge(found)
    assert [finding.slow for finding in report.findings] == [False]
    assert states(report) == {"slower": 1}


def test_what_creeps_within_a_day_may_be_the_day_and_is_not_reported() -> None:
    slow = histories(creeping(0.001, **ONE), labels=[ONE], runs=240, changed_at=1000)
    hourly = [
        replace(one, points=GoodRuns(replace(p, time=p.time / 240) for p in one.points))
        for one in slow
    ]
    assert states(judge(hourly)) == {"inconclusive": 1}


def test_an_accepted_creep_is_reported_again_only_if_it_goes_on() -> None:
    found = histories(creeping(0.001, **ONE), labels=[ONE], runs=480, changed_at=1000)
    half = found[0].points[240].time
    whole = creeping(0.001, **ONE)
    stopped = histories(
        lambda labels, figure, run: whole(labels, figure, min(run, 240)),
        labels=[ONE],
        runs=480,
        changed_at=1000,
    )
    for made, state in ((found, "gradually_slower"), (stopped, "unchanged")):
        accepted = {one.of: half for one in made}
        report = Judge().judge(material(made, accepted_until=accepted))
        assert states(report) == {state: 1}
        assert all(
            finding.begin >= half for finding in report.findings if finding.state != "accepted"
        )


def test_a_part_of_the_runs_that_got_slower_is_a_change_with_its_share() -> None:
    def sometimes(labels: Labels, figure: str, run: int) -> float:
        return 0.75 if run >= 200 and run * 7919 % 4 == 0 else 1.0

    report = judge(histories(sometimes, labels=[ONE], runs=300, changed_at=10**6))
    (finding,) = report.findings
    assert (finding.kind, finding.regression, finding.state) == ("mode", True, "open")
    assert finding.share == pytest.approx(0.25, abs=0.03)
    assert sentence(finding).startswith("25% of the runs of virtio/none/raw/randwrite, at random")
    assert re.search(r"are (24|25|26)% slower since 1970-07-\d\d", sentence(finding))
    assert states(report) == {"slower": 1}


def test_slow_periods_that_became_frequent_are_bursts() -> None:
    def periods(labels: Labels, figure: str, run: int) -> float:
        return 0.7 if run % 160 == 99 or (run >= 200 and run % 10 < 3) else 1.0

    (finding,) = judge(histories(periods, labels=[ONE], runs=420, changed_at=10**6)).findings
    assert finding.kind == "bursts"
    assert "for several runs each, are" in sentence(finding)


@pytest.mark.parametrize("runs", [150, 300])
def test_rare_slow_runs_that_stay_rare_are_no_change(runs: int) -> None:
    def rarely(labels: Labels, figure: str, run: int) -> float:
        return 0.7 if run % 23 < 3 else 1.0

    assert judge(histories(rarely, labels=[ONE], runs=runs, changed_at=10**6)).findings == ()


def test_an_upgrade_after_a_change_is_not_blamed_at_its_first_cycle() -> None:
    for runs in (41, 43, 48):
        found = histories(after_change(0.8, 37, bus="virtio"), runs=runs)
        assert not [change for change in judge(found).findings if change.known]


def test_a_load_of_the_host_on_the_day_of_an_upgrade_is_not_blamed_on_it() -> None:
    def busy(labels: Labels, figure: str, run: int) -> float:
        return 0.75 if run in {9, 22, 23, 35} or run >= 40 else 1.0

    report = judge(histories(busy, runs=41))
    assert not [change for change in report.findings if change.group]
    slower = histories(
        lambda labels, figure, run: (
            busy(labels, figure, run) * (0.8 if run >= 40 and labels["bus"] == "virtio" else 1.0)
        ),
        runs=41,
    )
    groups = [change.group for change in judge(slower).findings]
    assert (("bus", "virtio"),) in groups
    assert not [group for group in groups if group and group != (("bus", "virtio"),)]


def test_a_change_that_is_open_is_never_inconclusive() -> None:
    rng = np.random.default_rng(3)
    for before in (20, 40, 60):
        logs = rng.normal(0, 0.02, before + 200)
        logs[before:] += math.log(0.8)
        logs[before + 80 :] += math.log(0.6)
        times = 3600.0 * (7 + 2 * np.arange(len(logs)))  # twelve a day
        points = GoodRuns(
            GoodRun(float(time), "old", math.exp(value))
            for time, value in zip(times, logs, strict=True)
        )
        (one,) = histories(labels=[ONE], runs=1)
        for runs in (before + 40, before + 80, before + 110, len(logs)):
            report = judge([replace(one, points=points[:runs])])
            assert any(change.regression for change in report.findings)
            assert states(report) == {"slower": 1}
            assert all(change.moves[0].high < 0 for change in report.findings)


def alternating(stuck: int) -> Effect:
    """Return an effect of two levels that alternate, and stay at the worse one from a run on."""

    def effect(labels: Labels, figure: str, run: int) -> float:
        return 0.9 if run >= stuck or run // 7 % 2 else 1.0

    return effect


def test_a_mode_that_lasts_longer_than_it_ever_did_is_a_level() -> None:
    (finding,) = judge(
        histories(alternating(300), labels=[ONE], runs=400, changed_at=10**6)
    ).findings
    assert (finding.kind, finding.regression) == ("level", True)
    begin = finding.begin / DAY
    assert begin == pytest.approx(300, abs=10)


def test_two_levels_that_alternate_are_no_regression() -> None:
    for runs in (200, 300, 400):
        report = judge(histories(alternating(10**6), labels=[ONE], runs=runs, changed_at=10**6))
        assert not [change for change in report.findings if change.regression]


def test_a_level_that_a_case_often_had_is_no_regression_while_it_is_short() -> None:
    def often(until: int) -> Effect:
        def effect(labels: Labels, figure: str, run: int) -> float:
            return 0.8 if 100 <= run < 140 or 180 <= run < 220 or run >= until else 1.0

        return effect

    for runs, red in ((285, False), (340, True)):
        report = judge(histories(often(260), labels=[ONE], runs=runs, changed_at=10**6))
        assert any(change.regression for change in report.findings) is red
    report = judge(histories(often(260), labels=[ONE], runs=285, changed_at=10**6))
    newest = report.findings[0]
    assert newest.begin / DAY == pytest.approx(260, abs=5)
    assert (newest.state, newest.back, newest.worse) == ("resolved", True, True)
    assert ", back to the earlier level (" in sentence(newest)


def test_noise_that_grew_is_no_regression() -> None:
    rng = np.random.default_rng(4)
    logs = rng.normal(0, 0.02, 200) * np.where(np.arange(200) < 120, 1, 3)
    (one,) = histories(labels=[ONE], runs=1)
    points = GoodRuns(GoodRun(DAY * run, "old", math.exp(value)) for run, value in enumerate(logs))
    (verdict,) = judge([replace(one, points=points)]).verdicts
    assert not verdict.state.confirmed


@pytest.mark.parametrize(
    ("cases", "of", "all_but", "expected"),
    [(1, 3, True, "1 case,"), (1, 9, False, "1 of 9 cases,"), (3, 3, False, "all 3 cases,")],
)
def test_numbers_of_cases_are_in_the_right_form(
    cases: int, of: int, all_but: bool, expected: str
) -> None:
    (change,) = judge(histories(after_change(0.8, bus="virtio"))).findings
    names = tuple(str(number) for number in range(cases))
    text = sentence(replace(change, cases=names, names=names, of=of, all_but=all_but))
    assert f"; {expected}" in text
