"""The demo's timelines of verdicts: when it is judged, and what the exported past says of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pvebench.metrics import state_metrics
from pvebench.metrics.exposition import Families
from pvebench.model.units import parse_duration
from pvebench.verdicts.node_verdicts import OVERDUE, Outage
from pvebench_lab.cli.demo import NO_RESULTS_SECONDS, judge_past, judged_moments, with_outages
from pvebench_lab.cli.past_metrics import PastMetrics, Period, past_metrics_text
from testing.changes import CASES, START, measured
from testing.packs import ROOT
from testing.stores import TemporaryStore

DAY = 86400.0
END = 1000 * DAY


def test_it_is_judged_now_and_then_and_soon_after_new_software() -> None:
    moments = judged_moments([END - 300 * DAY, END - 90 * DAY, END - 20 * DAY], END)
    ago = [(END - moment) / DAY for moment in moments]
    assert ago == sorted(ago, reverse=True)
    year = [352, 320, 298.5, 288, 256, 224, 192, 160, 128, 96, 88.5, 80, 64, 48, 32, 18.5, 9, 4]
    assert ago == year


def test_nodes_that_were_upgraded_on_one_day_are_judged_once_when_the_last_was() -> None:
    moments = judged_moments([END - 20.25 * DAY, END - 20 * DAY, END - 19.75 * DAY], END)
    assert [END - one for one in moments if 17 * DAY < END - one < 20 * DAY] == [18.25 * DAY]


def test_software_that_came_a_moment_ago_is_not_judged_yet() -> None:
    assert judged_moments([END - 0.5 * DAY], END)[-1] < END


def reported(*values: float) -> list[PastMetrics]:
    """Return changes of one case, one each day."""
    found = []
    labels = dict.fromkeys(state_metrics.CHANGE.labels, "x")
    for day, value in enumerate(values):
        families = Families()
        families.add(state_metrics.CHANGE, labels, value)
        found.append((day * DAY, [families]))
    return found


def lines_of(families: Families) -> list[str]:
    return [line for _, lines in families.lines.values() for line in lines]


def written(start: float, end: float, step: float = DAY / 2) -> list[tuple[float, float]]:
    """Return (days, value) of the samples in a window of three days of changes."""
    window = Period(start=start * DAY, end=end * DAY, step=step)
    text = "".join(past_metrics_text(reported(0.0, -0.4, -0.5), window))
    (family,) = [
        one
        for one in text_string_to_metric_families(text)
        if one.name == state_metrics.CHANGE.exposed
    ]
    return [(float(sample.timestamp) / DAY, sample.value) for sample in family.samples]


def test_what_was_said_holds_until_something_else_is_said() -> None:
    assert written(0, 3) == [
        (0.0, 0.0),
        (0.5, 0.0),
        (1.0, -0.4),
        (1.5, -0.4),
        (2.0, -0.5),
        (2.5, -0.5),
    ]


def test_a_window_begins_with_what_had_been_said_before_it() -> None:
    assert written(1.5, 2) == [(1.5, -0.4)]


def test_verdicts_of_the_past_are_made_from_the_store(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=True)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    for day in range(40):
        store.add_run(measured(CASES[0], day))
    end = START + timedelta(days=40)
    found = judge_past(store, end.timestamp())
    store.close()
    assert len(found) > 2
    window = Period(start=START.timestamp(), end=end.timestamp(), step=DAY)
    text = "".join(past_metrics_text(found, window))
    read = {family.name: family for family in text_string_to_metric_families(text)}
    assert {sample.value for sample in read[state_metrics.REGRESSION.exposed].samples} == {0.0}
    assert read[state_metrics.CHANGE_STATE.exposed].samples


def test_a_past_without_results_has_the_alert_that_the_rule_fires() -> None:
    """As in prometheus/tests/alerts.yml: by node, 2.5 intervals and 15 minutes after a result."""
    outage = Outage("pve3", 10 * DAY, 17 * DAY)
    past = with_outages(reported(*[0.0] * 20), [outage])
    window = Period(start=0, end=20 * DAY, step=DAY / 2)
    text = "".join(past_metrics_text(past, window))
    read = {family.name: family for family in text_string_to_metric_families(text)}
    samples = read["ALERTS"].samples
    names = {"alertname": "PVEBenchNoResults", "alertstate": "firing", "severity": "warning"}
    assert all(sample.labels == names | {"node": "pve3"} for sample in samples)
    days = [float(sample.timestamp) / DAY for sample in samples]
    assert 12.5 < days[0] < 12.6
    assert 16.5 <= days[-1] <= 17
    # The other series go on.
    assert len(read[state_metrics.CHANGE.exposed].samples) >= len(written(0, 20))


def test_limits_of_missing_results_are_those_of_the_alert() -> None:
    rules = yaml.safe_load((ROOT / "prometheus/rules/alerts.yml").read_text("utf-8"))
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}
    alert = alerts["PVEBenchNoResults"]
    assert float(alert["expr"].rpartition(">")[2]) == OVERDUE
    assert OVERDUE * DAY + parse_duration(alert["for"]) == NO_RESULTS_SECONDS


def test_an_outage_in_the_simulated_results_is_found(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=True)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    for day in (*range(20), *range(28, 40)):
        store.add_run(measured(CASES[0], day))
    end = START + timedelta(days=40)
    past = judge_past(store, end.timestamp())
    store.close()
    fired = [
        (moment - START.timestamp()) // DAY
        for moment, families in past
        if any("PVEBenchNoResults" in line for part in families for line in lines_of(part))
    ]
    assert fired[0] in (21, 22)
    assert fired[-1] < 28
