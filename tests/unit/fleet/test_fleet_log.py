"""The log of a site: what its triggers write, and what retention keeps for the hub."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pvebench.config import Settings
from pvebench.errors import ToolsMissing
from pvebench.model.run import Outcome
from pvebench.service.housekeeping import DatabaseMaintenance
from pvebench.service.instance import fleet_of
from pvebench.store.changes import Decision
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench.store.writing import ReplacedRun
from pvebench_fleet.fleet_log import FIRST, KEPT_SECONDS, FleetLog
from testing.simulated_fleet import Schedule
from testing.sqlite_fleet_log import SqliteLog, maker, template
from testing.stored_runs import FIRST as CASE
from testing.stored_runs import SECOND, START, run
from testing.stores import TemporaryStore

DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    opened.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
    return opened


def lines(store: Store) -> list[tuple[str, str, int]]:
    with closing(sqlite3.connect(store.path)) as connection:
        query = "SELECT kind, key, revision FROM fleet_log ORDER BY seq"
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("seed", [2, 36, 58])
def test_the_log_in_the_database_holds_the_rules_of_the_simulation(
    seed: int, tmp_path: Path
) -> None:
    made: list[SqliteLog] = []
    schedule = Schedule(seed, make_log=maker(template(tmp_path), made)).play()
    assert schedule.broken == []


def test_a_site_without_a_fleet_logs_nothing(store: Store) -> None:
    store.add_run(run(0))
    FleetLog(store.engine).end()
    assert lines(store) == []
    assert FleetLog(store.engine).state() is None


def test_a_site_that_leaves_its_fleet_ends_its_log(store: Store) -> None:
    FleetLog(store.engine).begin()
    assert store.in_fleet
    with fleet_of(Settings(), store):
        assert (store.in_fleet, lines(store)) == (False, [])


def test_without_the_package_the_error_states_why_it_is_needed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pvebench.service.instance.SERVICES", {})
    FleetLog(store.engine).begin()
    with pytest.raises(ToolsMissing, match="results wait for the hub of a fleet, but") as failed:
        fleet_of(Settings(), store)
    assert failed.value.next_step == "reinstall pvebench"


def test_a_line_precedes_those_that_refer_to_it(store: Store) -> None:
    FleetLog(store.engine).begin()
    store.add_run(run(0))
    store.add_run(run(1))
    store.add_run(run(2, SECOND))
    kinds = [kind for kind, _, _ in lines(store)]
    assert kinds == ["cycle", "environment", "definition", "run", "run", "definition", "run"]


def test_what_was_stored_before_is_logged_once_and_in_the_same_order(store: Store) -> None:
    store.add_run(run(0))
    decision = Decision(made=START, kind="reset", cases="*", until=START, reason="new disk")
    store.decisions.add(decision)
    FleetLog(store.engine).begin()
    FleetLog(store.engine).begin()
    kinds = [kind for kind, _, _ in lines(store)]
    assert kinds == ["environment", "cycle", "definition", "decision", "run"]
    entries, before, after = FleetLog(store.engine).batch(10)
    assert (before, after[0]) == (FIRST, 5)
    assert [entry.data is not None for entry in entries] == [True] * 5
    assert entries[3].data is not None
    assert entries[3].data["decision"] == "reset"


def test_a_correction_is_a_line_of_its_own_transaction(store: Store) -> None:
    FleetLog(store.engine).begin()
    number = store.add_run(run(0)).number
    correction = ReplacedRun(
        number=number, gone=(), put=(), outcome=Outcome.IMPLAUSIBLE, reason="too fast"
    )
    store.correct([correction])
    assert lines(store)[-2:] == [("run", run(0).uid, 0), ("run", run(0).uid, 1)]
    broken = ReplacedRun(number=number + 9, gone=(), put=(), outcome=Outcome.OK, reason="")
    with pytest.raises(Exception, match="No row"):
        store.correct([correction, broken])
    assert lines(store)[-1] == ("run", run(0).uid, 1)


def test_a_run_costs_at_most_100_bytes_of_log(store: Store) -> None:
    store.add_run(run(0))
    with closing(sqlite3.connect(store.path)) as connection, connection:
        pages = "SELECT sum(pgsize) FROM dbstat WHERE name = 'fleet_log'"
        FleetLog(store.engine).begin()
        before = connection.execute(pages).fetchone()[0]
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
            "INSERT INTO runs (uid, case_key, node, scenario, workload, cycle, environment, "
            "started, finished, outcome, reason, pass_number) "
            "SELECT lower(hex(randomblob(16))) || '1234', case_key, node, scenario, workload, "
            "cycle, environment, started, finished, outcome, reason, pass_number FROM runs, n"
        )
        assert (connection.execute(pages).fetchone()[0] - before) / 5000 <= 100


def test_retention_keeps_what_the_hub_lacks_unless_asked_otherwise(store: Store) -> None:
    FleetLog(store.engine).begin()
    for day in range(60):
        store.add_run(run(day))
    ages = {"evidence_seconds": 90 * DAY, "runs_seconds": 20 * DAY}
    now = START + timedelta(days=60)
    *_, after = FleetLog(store.engine).batch(13)  # the lines of ten runs and of what they refer to
    FleetLog(store.engine).advance(after, now.timestamp())
    removal, done = store.prune(now, certain=True, **ages)
    assert (removal.runs, done) == (10, True)
    assert removal.unsent == 10
    removal, done = store.prune(now, certain=True, keep_unsent=False, **ages)
    assert (removal.runs, removal.unsent, done) == (10, 0, True)


def test_a_hub_that_is_away_for_long_does_not_stop_the_removal_of_what_it_has(store: Store) -> None:
    FleetLog(store.engine).begin()
    store.add_history(run(day) for day in range(300))
    *_, after = FleetLog(store.engine).batch(53)  # the lines of 50 runs and of what they refer to
    now = START + timedelta(days=300)
    FleetLog(store.engine).advance(after, now.timestamp())
    ages = {"evidence_seconds": 9999 * DAY, "runs_seconds": 20 * DAY}
    removal, done = store.prune(now, **ages)
    assert (removal.runs, removal.overdue, done) == (50, 50, True)
    assert removal.unsent > 200


def test_a_short_disk_removes_the_backlog_of_an_absent_hub(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    FleetLog(store.engine).begin()
    store.add_history(run(day) for day in range(300))
    usage = SimpleNamespace(total=1000, free=10)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    settings = Settings.model_validate({"keep_runs": "20d", "keep_evidence": "9999d"})
    clock = partial(START.__add__, timedelta(days=300))
    DatabaseMaintenance(LiveResults(store), lambda: settings, clock)._remove_old(clock())
    assert store.totals().runs == 40  # 20 days before the newest 20 runs


def test_lines_go_90_days_after_their_acknowledgment_and_the_rest_keeps_its_chain(
    store: Store,
) -> None:
    FleetLog(store.engine).begin()
    store.add_history(run(day) for day in range(400))
    at = 1.8e9
    *_, first = FleetLog(store.engine).batch(300)
    FleetLog(store.engine).advance(first, at)
    *_, second = FleetLog(store.engine).batch(300)
    FleetLog(store.engine).advance(second, at + 1)
    assert len(lines(store)) == second[0]
    chain = FleetLog(store.engine).chain_at(second[0])
    FleetLog(store.engine).advance(second, at + KEPT_SECONDS + 0.5)
    assert len(lines(store)) == second[0] - first[0]
    assert FleetLog(store.engine).chain_at(second[0]) == chain == second[1]
    assert FleetLog(store.engine).chain_at(first[0]) == first[1]
    assert FleetLog(store.engine).chain_at(0) is None


def test_a_line_far_after_the_newest_mark_is_not_looked_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    FleetLog(store.engine).begin()
    store.add_history(run(day) for day in range(20))
    monkeypatch.setattr("pvebench_fleet.fleet_log.FARTHEST", 10)
    assert FleetLog(store.engine).chain_at(10) is not None
    assert FleetLog(store.engine).chain_at(11) is None


def test_a_removed_run_is_a_line_without_content(store: Store) -> None:
    FleetLog(store.engine).begin()
    store.add_run(run(0))
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("DELETE FROM runs")
    entries, _, _ = FleetLog(store.engine).batch(10)
    assert [entry.kind for entry in entries if entry.data is None] == ["run"]


def test_a_site_without_a_fleet_loads_nothing_of_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pvebench.cli.main import run_cli; "
        f"assert run_cli(['run', '--driver', 'simulated', '--state', {str(tmp_path)!r}, "
        "'--cycles', '1']) == 0; "
        "assert not [m for m in sys.modules if m.startswith(('pvebench_fleet', 'psycopg'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
    assert CASE.key
