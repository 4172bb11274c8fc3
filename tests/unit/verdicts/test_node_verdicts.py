"""A node that did not measure is reported in a sentence, and other pauses are not."""

from __future__ import annotations

from collections.abc import Iterable

from pvebench.analysis.case_history import CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.verdict import Verdict, VerdictState
from pvebench.model.run_metrics import JUDGED
from pvebench.verdicts.node_verdicts import (
    LEAST_OUTAGE_SECONDS,
    MOST_OUTAGES,
    Outage,
    outage_text,
    outages,
)

DAY = 86400.0


def report(*cases: Iterable[float]) -> NodeReport:
    """Return a report of cases with runs on these days."""
    verdicts = tuple(
        Verdict(
            history=CaseHistory(
                case=str(number),
                of=str(number),
                name=str(number),
                figure=JUDGED["throughput"],
                labels={},
                points=GoodRuns(GoodRun(day * DAY, "", 1.0) for day in days),
            ),
            state=VerdictState.UNCHANGED,
        )
        for number, days in enumerate(cases)
    )
    return NodeReport(
        node="pve3", verdicts=verdicts, findings=(), events=(), levels=(), judged_until=100 * DAY
    )


def test_a_week_without_results_of_any_case_is_an_outage() -> None:
    daily = [day for day in range(60) if not 40 < day < 48]
    (outage,) = outages(report(daily, [day + 0.25 for day in daily]))
    assert (outage.begin, outage.end) == (40.25 * DAY, 48 * DAY)
    text = "pve3 had no results for 8 days, from 1970-02-10 to 1970-02-18"
    assert outage_text(outage) == text


def test_a_case_that_was_not_measured_while_others_were_is_no_outage() -> None:
    daily = [day for day in range(60) if not 40 < day < 48]
    assert outages(report(daily, range(30, 60))) == []


def test_rare_runs_are_no_outages_nor_is_a_change_of_the_schedule() -> None:
    assert outages(report(range(0, 365, 7))) == []
    assert outages(report([*range(0, 90, 3), *range(90, 180)])) == []
    # Of many runs per day, a pause of some hours is no outage.
    assert outages(report([n / 24 for n in range(240) if not 100 < n < 115])) == []
    assert LEAST_OUTAGE_SECONDS == DAY


def test_very_many_outages_are_bounded_and_newest_first() -> None:
    found = outages(report([week * 7 + day / 8 for week in range(40) for day in range(32)]))
    assert len(found) == MOST_OUTAGES
    assert found[0].begin > found[-1].begin


def test_without_runs_there_is_no_outage() -> None:
    assert outages(report()) == []
    assert outages(report([5])) == []


def test_less_than_two_days_are_hours() -> None:
    text = outage_text(Outage("pve3", 0.0, 1.4 * 86400))
    assert text.startswith("pve3 had no results for 33 h, ")
