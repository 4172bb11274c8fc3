"""Judging at the hub: the verdicts of a site, any number of workers, and what a dead one leaves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pvebench.cli.main import run_cli
from pvebench.config.known_issues import load_known_issues
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome
from pvebench.store.changes import Decision
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench.store.writing import ReplacedRun
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import verdicts_data
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench_fleet import HubDatabaseError
from pvebench_fleet.hub import judging
from pvebench_fleet.hub.judging import INTERVAL_SECONDS, UPGRADE_SECONDS, judge_next
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.node_transaction import NodeTransaction
from pvebench_fleet.hub.store.overview import read_fleet_view, read_overview
from pvebench_fleet.node_effects import node_effects
from testing.demo_year import assignments, last_days
from testing.hub_sites import filled_store, send
from testing.stored_runs import run
from testing.stores import TemporaryStore

NOW = 1.7e9
DAYS = 75
NEWER = Environment(node="lab", facts={"kernel": "6.14.0"})


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The last days of a node of the demo, with two upgrades, a decision and a correction."""
    node = assignments("randread-4k-qd1")[1:2]
    store = filled_store(tmp_path_factory.mktemp("year"), node, last_days(DAYS), end=NOW)
    made = datetime.fromtimestamp(NOW - 50 * 86400, UTC)
    store.decisions.add(
        Decision(made=made, kind="accept", cases="*qcow2*", until=made, reason="known")
    )
    newest = next(iter(store.cases().values())).last.number
    noisy = ReplacedRun(number=newest, gone=(), put=(), outcome=Outcome.NOISY, reason="noisy")
    store.correct([noisy])
    return store


def rows(url: str, query: str, *values: Any) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute(query.encode(), values).fetchall()


def stored_data(url: str) -> str:
    """Return what is stored of one node as `verdicts_data` has it."""
    (state,) = rows(url, "SELECT summary FROM node_state")
    verdicts = rows(
        url,
        "SELECT c.key AS case_key, concat(definition->'labels'->>'scenario', '/', "
        "definition->'workload'->>'slug') AS case, v.* FROM verdict v "
        'JOIN "case" c USING (case_id) ORDER BY place',
    )
    for one in verdicts:
        for name in ("site", "node", "place", "case_id"):
            del one[name]
    changes = [row["data"] for row in rows(url, "SELECT data FROM change ORDER BY place")]
    parts = {**state["summary"], "changes": changes, "verdicts": verdicts}
    return json.dumps(parts, sort_keys=True)


def test_verdicts_equal_those_of_the_site_byte_for_byte(
    year: Store, hub: HubDatabase, door: HubDatabase, judge: HubDatabase, login: str
) -> None:
    hub.add_token("vienna", "a" * 64)
    send(year, door, "vienna")
    issues = load_known_issues()
    assert judge_next(judge, issues)
    assert not judge_next(judge, issues)
    own = VerdictService(LiveResults(year), issues).judge()
    assert len(own.changes) > 0
    assert own.regressions
    assert stored_data(login) == json.dumps(verdicts_data(own), sort_keys=True)


@pytest.fixture
def two_sites(hub: HubDatabase, door: HubDatabase, tmp_path: Path) -> Iterator[list[Store]]:
    """Two sites with two runs each."""
    stores = []
    for name, token in (("vienna", "a"), ("graz", "b")):
        hub.add_token(name, token * 64)
        (tmp_path / name).mkdir()
        store = TemporaryStore(tmp_path / name / "pvebench.db", simulated=False)
        store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
        for number in range(2):
            store.add_run(run(number))
        send(store, door, name)
        stores.append(store)
    yield stores
    for store in stores:
        store.close()


def test_two_workers_judge_different_nodes_and_none_twice(
    two_sites: list[Store], judge: HubDatabase, login: str
) -> None:
    other = HubDatabase(login, role="pvebench_judge")
    with judge.begin_judging(NOW) as first, other.begin_judging(NOW) as second:
        assert first is not None
        assert second is not None
        assert {first.site_name, second.site_name} == {"vienna", "graz"}
        third = HubDatabase(login, role="pvebench_judge")
        with third.begin_judging(NOW) as nothing:
            assert nothing is None
        third.close()
    other.close()


def test_a_worker_that_dies_leaves_the_node_to_the_next_one(
    two_sites: list[Store], judge: HubDatabase, login: str, server: str
) -> None:
    dying = HubDatabase(login, role="pvebench_judge")
    begun, ended = threading.Event(), threading.Event()

    def die() -> None:
        with suppress(HubDatabaseError), dying.begin_judging(NOW) as node:
            assert node is not None
            begun.set()
            ended.wait(60)
            node.save(Verdicts(), now=NOW, due=NOW, seconds=0.0)

    thread = threading.Thread(target=die)
    thread.start()
    assert begun.wait(60)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE state = 'idle in transaction'"
        )
    ended.set()
    thread.join(60)
    judged = 0
    while judge_next(judge, ()):
        judged += 1
    assert judged == 2
    query = "SELECT count(*) AS n FROM node_state WHERE judged = 2"
    assert rows(login, query) == [{"n": 2}]


def test_a_node_without_new_runs_waits_and_new_ones_wait_a_day(
    two_sites: list[Store], door: HubDatabase, judge: HubDatabase
) -> None:
    while judge_next(judge, (), lambda: NOW):
        pass
    two_sites[0].add_run(run(2))
    send(two_sites[0], door, "vienna")
    assert not judge_next(judge, (), lambda: NOW + INTERVAL_SECONDS / 2)
    assert judge_next(judge, (), lambda: NOW + INTERVAL_SECONDS)
    assert not judge_next(judge, (), lambda: NOW + 9 * INTERVAL_SECONDS)


def test_new_software_is_judged_at_once_and_again_some_hours_later(
    two_sites: list[Store], door: HubDatabase, judge: HubDatabase, login: str
) -> None:
    while judge_next(judge, (), lambda: NOW):
        pass
    for number in range(2, 4):
        two_sites[0].add_run(replace(run(number), environment=NEWER))
    send(two_sites[0], door, "vienna")
    assert judge_next(judge, (), lambda: NOW + 1)
    query = "SELECT due FROM node_state WHERE judged = 4"
    assert rows(login, query) == [{"due": NOW + 1 + UPGRADE_SECONDS}]


def test_a_node_that_cannot_be_judged_keeps_no_other_waiting(
    two_sites: list[Store], judge: HubDatabase, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = HubDatabase.begin_judging

    @contextmanager
    def faulty(database: HubDatabase, now: float) -> Iterator[NodeTransaction | None]:
        with begin(database, now) as node:
            if node is not None and node.site_name == "vienna":
                monkeypatch.setattr(node, "save", None)
            yield node

    monkeypatch.setattr(HubDatabase, "begin_judging", faulty)
    while judge_next(judge, (), lambda: NOW):
        pass
    query = (
        "SELECT name, judged, due, failed <> '' AS failed FROM node_state JOIN site USING (site)"
    )
    assert sorted(rows(login, query), key=lambda row: str(row["name"])) == [
        {"name": "graz", "judged": 2, "due": NOW + INTERVAL_SECONDS, "failed": False},
        {"name": "vienna", "judged": 0, "due": NOW + INTERVAL_SECONDS, "failed": True},
    ]


def test_each_case_has_its_newest_run_and_counts(
    two_sites: list[Store], judge: HubDatabase, login: str
) -> None:
    while judge_next(judge, ()):
        pass
    query = "SELECT number, outcome, counts, good_vals FROM case_state ORDER BY site"
    expected = {"number": 2, "outcome": "ok", "counts": {"ok": 2}, "good_vals": [1000.0]}
    assert rows(login, query) == [expected, expected]


def test_a_reader_sees_verdicts_of_its_sites_only(
    two_sites: list[Store], judge: HubDatabase, url: str
) -> None:
    while judge_next(judge, ()):
        pass
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS viewer")
        connection.execute("CREATE ROLE viewer IN ROLE pvebench_pages")
        query = "INSERT INTO role_sees SELECT 'viewer', site FROM site WHERE name = 'graz'"
        connection.execute(query)
        for table in ("node_state", "case_state", "verdict"):
            connection.execute("RESET ROLE")
            (every,) = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()
            connection.execute("SET ROLE viewer")
            (seen,) = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()
            assert (every[0], seen[0]) == (2, 1)


def test_the_judge_can_change_no_results(judge: HubDatabase) -> None:
    for statement in (b"DELETE FROM run", b"UPDATE site SET acked = 0", b"SELECT * FROM token"):
        with pytest.raises(Exception, match="permission denied"), judge.connection() as connection:
            connection.execute(statement)


def test_the_command_judges_all_due_nodes(
    two_sites: list[Store], login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "POLL_SECONDS", 0.0)
    assert run_cli(["hub", "judge", "--database", login, "--once"]) == 0
    states = rows(login, "SELECT judged, judged_at FROM node_state")
    assert [row["judged"] for row in states] == [2, 2]
    assert all(abs(row["judged_at"] - time.time()) < 600 for row in states)


def test_effects_and_present_versions_of_all_sites_reach_the_comparison(
    year: Store, hub: HubDatabase, door: HubDatabase, judge: HubDatabase, login: str
) -> None:
    hub.add_token("vienna", "a" * 64)
    send(year, door, "vienna")
    assert judge_next(judge, ())
    overview = HubDatabase(login, role="pvebench_overview")
    view, lines = overview.read(read_fleet_view), overview.read(read_overview)
    overview.close()
    ((effects,),) = view.effects.values()
    own = VerdictService(LiveResults(year), ()).judge().reports[0]
    assert effects == node_effects([one.history for one in own.verdicts], own.events)
    assert any(one.differences and one.group for one in effects)
    assert view.facts["vienna"][0]["kernel"] == own.events[-1].after["kernel"]
    (site,) = lines.sites
    assert (site.name, site.refused, site.critical + site.warnings > 0) == ("vienna", 0, True)
    assert site.newest_run is not None
    assert abs(site.newest_run - NOW) < 2 * 86400
    assert [(one.node, one.unjudged) for one in lines.nodes] == [("pve2", 0)]
    assert lines.worst[0].change == min(one.change for one in lines.worst) < -0.3
