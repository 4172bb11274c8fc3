"""A Prometheus of the tests is ready when all of its rules are, wherever its files are.

Prometheus places each rule group within the interval by a hash of the path of its file. The places
of some folders are asked of Prometheus itself, as versions differ in the hash.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.metrics_page import page_of
from testing.prometheus import evaluated, late_groups, prometheus
from testing.simulated_site import app_of, served
from testing.simulations import simulate

INTERVAL = 4
FOLDERS = 40
STARTED_SECONDS = 2.0
"""Until a Prometheus that was started now has scraped."""
GROUPS = {
    "pvebench": "scenario_workload:pvebench_result_overdue_ratio:current",
    "pvebench-alerts": 'ALERTS{alertname="PVEBenchWatchdog",alertstate="firing"}',
}
"""Rule group -> a series that it makes of any page."""
Places = dict[Path, dict[str, float]]
"""Folder -> group -> seconds after the beginning of an interval."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """The places of the rules in some folders, as one Prometheus with all of them has them."""
    directory = tmp_path_factory.mktemp("rules")
    found: Places = {directory / f"folder-{number}": {} for number in range(FOLDERS)}
    with prometheus(directory, None, evaluate=INTERVAL, rules_of=found) as server:
        server.wait_for_rules()
        for group in server.rule_groups():
            folder = Path(group["file"]).parents[2]
            if folder in found:
                found[folder][group["name"]] = evaluated(group) % INTERVAL
    assert {frozenset(one) for one in found.values()} == {frozenset(GROUPS)}
    return found


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    simulation = simulate(tmp_path_factory.mktemp("exporter"))
    simulation.worker.run()
    with served(app_of(simulation, page=page_of(simulation))) as address:
        yield address.removeprefix("http://")


@pytest.mark.parametrize("last", GROUPS)
def test_it_is_ready_when_the_last_of_its_rule_groups_is(
    places: Places, exporter: str, last: str
) -> None:
    (first,) = GROUPS.keys() - {last}

    def waits(folder: Path) -> tuple[float, float]:
        now = time.time()
        early, late = ((places[folder][one] - now) % INTERVAL for one in (first, last))
        return early, late

    def apart(folder: Path) -> float:
        early, late = waits(folder)
        return (late - early) % INTERVAL

    folder = min(places, key=lambda folder: abs(apart(folder) - STARTED_SECONDS))
    # Start just after the evaluation of the last: the other's comes after the first scrape.
    time.sleep(waits(folder)[1] + 0.1)
    early, late = waits(folder)
    assert late - early > INTERVAL / 4
    with prometheus(folder, exporter, evaluate=INTERVAL) as server:
        server.wait_for("pvebench_iops")
        server.wait_for_rules()
        assert [name for name, series in GROUPS.items() if not server.query(series)] == []


def test_a_rule_that_fails_or_was_never_evaluated_is_named() -> None:
    well = {"name": "well", "file": "/a", "lastEvaluation": "2026-01-01T00:00:10.123456789Z"}
    never = {"name": "never", "file": "/b", "lastEvaluation": "0001-01-01T00:00:00Z"}
    failed = {**well, "name": "failed"}
    groups = [
        {**well, "rules": [{"name": "x", "health": "ok"}]},
        {**never, "rules": [{"name": "y", "health": "unknown"}]},
        {**failed, "rules": [{"name": "z", "health": "err", "lastError": "many-to-many"}]},
    ]
    moment = evaluated(groups[0])
    assert late_groups(groups, moment - 1) == {
        "/b: never": ("0001-01-01T00:00:00Z", {"y": "unknown"}),
        "/a: failed": (well["lastEvaluation"], {"z": "many-to-many"}),
    }
    assert "/a: well" in late_groups(groups, moment)
