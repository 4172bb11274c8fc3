"""The hub's database, PostgreSQL as Debian ships it: what a push stores, and who sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pvebench.model.run import Sample, Unit
from pvebench_fleet import HubDatabaseError
from pvebench_fleet.hub.rules import SiteRow
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.overview import read_overview
from pvebench_fleet.hub.store.site_transaction import SiteTransaction, SiteUnknown
from pvebench_fleet.wire import shape_of
from testing.hub_requests import PROCESS, SHAPE, TOKEN, Sending, line, rows
from testing.simulated_fleet import Killed, Schedule


def test_a_shape_whose_digest_is_not_of_its_numbers_is_refused(site: Sending, url: str) -> None:
    forged = {**json.loads(SHAPE), "numbers": [("lies", "", "", "1")]}
    status, answer = site.push(forged, line(0))
    assert (status, answer["refused"]) == (200, [0, 1])
    query = "SELECT numbers FROM shape JOIN run USING (shape)"
    assert site.push(SHAPE, line(0))[1]["refused"] == []
    assert rows(url, query) == [(json.loads(SHAPE)["numbers"],)]


def test_a_later_line_replaces_an_earlier_one_and_nothing_is_stored_twice(
    site: Sending, url: str
) -> None:
    assert site.push(SHAPE, line(0), line(1))[0] == 200
    assert site.push(SHAPE, line(0, revision=1, value=7.0))[0] == 200
    found = rows(url, "SELECT number, revision, vals FROM run ORDER BY number")
    assert found == [(1, 1, [7.0]), (2, 0, [1.0])]


def test_a_bad_line_is_refused_and_the_others_are_stored(site: Sending, url: str) -> None:
    lines = [
        line(0),
        b"{not json",
        line(1, values=[1.0, 2.0]),  # not the length of its shape
        line(2, shape="0" * 16),  # an unknown shape
        line(3, reason="\0"),
        line(4, number=2**61),
        line(5, finished=1e308),  # beyond any calendar
        {"kind": "environment", "seq": 9, "digest": "e", "node": "\0", "slug": "", "facts": {}},
        {
            "kind": "environment",
            "seq": 10,
            "digest": "f",
            "node": "",
            "slug": "",
            "facts": {"a": "\0"},
        },
        {"kind": "tomorrow's", "seq": 11},
        line(12),
    ]
    status, answer = site.push(SHAPE, *lines)
    assert status == 200
    assert sorted(answer["refused"]) == [0, 2, 3, 4, 6, 9, 10, 11]
    assert {number for (number,) in rows(url, "SELECT number FROM run")} == {1, 2**61, 13}
    assert rows(url, "SELECT count(*) FROM refused") == [(8,)]


def test_a_statement_that_fails_for_one_row_stores_the_others(
    site: Sending, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE run ADD CHECK (number <> 2)")
    status, answer = site.push(SHAPE, line(0), line(1), line(2))
    assert (status, answer["refused"]) == (200, [2])
    assert {number for (number,) in rows(url, "SELECT number FROM run")} == {1, 3}


def test_each_month_has_a_partition_and_odd_clocks_share_one(site: Sending, url: str) -> None:
    site.push(SHAPE, line(0), line(1, finished=0.0), line(2, finished=1.0))
    query = "SELECT tableoid::regclass::text, number FROM run ORDER BY number"
    assert rows(url, query) == [("run_2023_11", 1), ("run_other", 2), ("run_other", 3)]


def test_runs_of_one_case_and_time_are_distinct_by_names_of_any_form(
    site: Sending, url: str
) -> None:
    names = [f"{1:032x}", f"{2:032x}", "7-1", "7-2"]  # as of the runner, and of `demo fill`
    lines = [line(at, uid=name, finished=1.7e9) for at, name in enumerate(names)]
    site.push(SHAPE, *lines)
    site.push(SHAPE, *lines)
    assert rows(url, "SELECT number FROM run ORDER BY number") == [(1,), (2,), (3,), (4,)]
    assert rows(url, "SELECT uid::text FROM run WHERE number = 2")[0][0].endswith("-000000000002")


def test_a_cycle_that_comes_after_its_runs_is_complete(site: Sending, url: str) -> None:
    cycle = {
        "kind": "cycle", "seq": 2, "uid": "c", "node": "lab", "pack": "quick", "tier": "wall",
        "planned": 3, "started": 1.0,
    }  # fmt: skip
    site.push(SHAPE, line(0))
    site.push(cycle, {**cycle, "seq": 3, "finished": 2.0})
    query = (
        "SELECT c.uid, pack, planned, c.started, c.finished FROM run JOIN cycle c USING (cycle_id)"
    )
    assert rows(url, query) == [("c", "quick", 3, 1.0, 2.0)]


def test_a_page_of_the_database_has_25_runs_of_25_numbers(site: Sending, url: str) -> None:
    """Its 8,168 bytes have rows and a pointer of 4 to each: PostgreSQL's storage-page-layout."""
    shape = shape_of([Sample(f"m{at}", None, 1.0, Unit.IOPS) for at in range(25)])
    run = line(0, uid=f"{1:032x}", cycle=f"{2:032x}", shape=shape.shape, values=[1.1] * 25)
    site.push(shape.model_dump_json().encode(), run)
    ((size,),) = rows(url, "SELECT pg_column_size(run.*) FROM run")
    assert 25 * (size + 4) <= 8168


@pytest.mark.parametrize("path", ["hello", "rewind", "marks"])
def test_an_unknown_site_gets_nothing(path: str, door: HubDatabase) -> None:
    body = {"process": PROCESS, "seen": 0, "version": "x", "schemas": [1], "now": 0.0}
    if path == "rewind":
        body = {"process": PROCESS, "turn": 1, "seen": [0, ""], "to": [0, ""]}
    method, content = ("GET", b"") if path == "marks" else ("POST", json.dumps(body).encode())
    with pytest.raises(SiteUnknown):
        Sending(door, "unknown").request(method, path, content)


def test_a_site_cannot_write_rows_of_another(site: Sending, hub: HubDatabase, url: str) -> None:
    hub.add_token("other", "b" * 64)
    site.push(SHAPE, line(0))
    other = Sending(site.door.begin.__self__, "other")  # type: ignore[attr-defined] # a bound method
    other.hello()
    other.push(SHAPE, line(0, value=99.0))
    query = "SELECT name, vals FROM run JOIN site USING (site) ORDER BY name"
    assert rows(url, query) == [("lab", [1.0]), ("other", [99.0])]


def test_a_reader_sees_only_the_sites_of_its_role(
    site: Sending, hub: HubDatabase, url: str
) -> None:
    hub.add_token("other", "b" * 64)
    site.push(SHAPE, line(0))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS viewer")
        connection.execute("CREATE ROLE viewer IN ROLE pvebench_pages")
        connection.execute("SET ROLE viewer")
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (0,)
        connection.execute("RESET ROLE")
        connection.execute(
            "INSERT INTO role_sees SELECT 'viewer', site FROM site WHERE name = 'lab'"
        )
        connection.execute("SET ROLE viewer")
        assert connection.execute("SELECT name FROM site").fetchall() == [("lab",)]
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (1,)
        for statement in ("DELETE FROM run", "SELECT * FROM token", "SELECT * FROM replaced"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_the_door_can_neither_add_tokens_nor_change_tables(door: HubDatabase) -> None:
    for statement in (b"DELETE FROM token", b"DROP TABLE run", b"CREATE TABLE mine (a int)"):
        with pytest.raises(HubDatabaseError) as refused, door.connection() as connection:
            connection.execute(statement)
        assert isinstance(refused.value.__cause__, psycopg.errors.InsufficientPrivilege)


def test_a_login_without_the_role_of_the_door_is_told_which_one_to_use(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS stranger")
        connection.execute("CREATE ROLE stranger LOGIN")
    stranger = HubDatabase(url.replace("//owner@", "//stranger@"), role="pvebench_door")
    with (
        pytest.raises(HubDatabaseError, match="permission denied") as refused,
        stranger.connection(),
    ):
        pass
    assert "as the role that ran `pvebench hub migrate`" in str(refused.value)


def test_only_a_refused_role_is_blamed_on_the_role(hub: HubDatabase, login: str) -> None:
    """PostgreSQL has code 22023 for an unknown role and for many other invalid parameters."""
    with pytest.raises(psycopg.errors.InvalidParameterValue), hub.connection() as connection:
        connection.execute("SELECT date_trunc('fortnight', now())")
    with pytest.raises(psycopg.errors.InvalidParameterValue), hub.connection() as connection:
        connection.execute("SET work_mem = '-5TB'")
    for unknown in (HubDatabase(login, role="unknown"), hub):
        role = "" if unknown is not hub else "unknown"
        with pytest.raises(HubDatabaseError, match="refused the role") as refused:
            unknown.read(read_overview, role)
        assert isinstance(refused.value.__cause__, psycopg.errors.InvalidParameterValue)


def test_two_tokens_are_valid_while_one_is_changed(hub: HubDatabase, door: HubDatabase) -> None:
    for letter in "abc":
        hub.add_token("lab", letter * 64)
    assert [door.site_of(letter * 64) for letter in "bc"] == ["lab", "lab"]
    with pytest.raises(SiteUnknown):
        door.site_of("a" * 64)


def test_a_forgotten_site_gets_410_and_its_rows_are_gone(
    site: Sending, hub: HubDatabase, url: str
) -> None:
    site.push(SHAPE, line(0))
    assert hub.forget("lab", apply=False) == 1
    assert rows(url, "SELECT count(*) FROM run") == [(1,)]
    assert hub.forget("lab", apply=True) == 1
    assert rows(url, "SELECT count(*) FROM run") == [(0,)]
    assert site.push(SHAPE, line(1))[0] == 410


def test_a_forgotten_site_stays_forgotten(site: Sending, hub: HubDatabase, url: str) -> None:
    hub.forget("lab", apply=True)
    for change in (
        lambda: hub.hold("lab"),
        lambda: hub.keep("lab", PROCESS, lambda: 1),
        lambda: hub.add_token("lab", "c" * 64),
    ):
        with pytest.raises(SiteUnknown, match="was forgotten"):
            change()
    assert rows(url, "SELECT state FROM site") == [("forgotten",)]
    assert rows(url, "SELECT count(*) FROM token") == [(1,)]


def test_a_site_is_not_forgotten_in_the_middle_of_its_push(
    site: Sending, hub: HubDatabase, door: HubDatabase
) -> None:
    site.push(SHAPE, line(0))
    hub.sites()
    opened = hub._free.get()
    assert opened is not None
    opened.execute("SET lock_timeout = '100ms'")
    hub._free.put(opened)
    with door.begin("lab", None), pytest.raises(HubDatabaseError, match="lock timeout"):
        hub.forget("lab", apply=False)


def test_a_database_without_the_schema_names_the_command(server: str) -> None:
    with pytest.raises(HubDatabaseError, match="schema none") as refused:
        HubDatabase(server).sites()
    assert "pvebench hub migrate" in str(refused.value)


# --- The simulation, with the tables of PostgreSQL.


class Dying(SiteTransaction):
    """Dies before its statement number `left`."""

    left = 0

    def _run(self, query: str, *values: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise Killed
        return super()._run(query, *values)


class PostgresHub:
    """The hub of a schedule; a backup is a copy of the rows of all tables."""

    tables = (
        "site",
        "process",
        "mark",
        "refused",
        "environment",
        "case",
        "shape",
        "run",
        "replaced",
        "arrived",
        "cycle",
        "decision",
    )

    def __init__(self, database: HubDatabase, url: str) -> None:
        self.database, self.url, self.dies_at = database, url, 0
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("SET session_replication_role = replica")  # as pg_restore does

    @contextmanager
    def begin(self, site: str, sent: float | None) -> Iterator[Any]:
        with self.database.connection() as connection:
            Dying.left = self.dies_at
            yield Dying(connection, site, sent)

    def rows(self) -> dict[str, int]:
        query = "SELECT 'r' || number - 1, vals[1]::int FROM run"
        found = self.connection.execute(query).fetchall()
        assert len(found) == len(dict(found)), "a run is there twice"
        return dict(found)

    def site(self) -> SiteRow:
        with self.database.begin("lab", None) as change:
            return change.site

    def back_up(self) -> dict[str, list[tuple[Any, ...]]]:
        return {
            table: self.connection.execute(f'SELECT t::text FROM "{table}" t').fetchall()
            for table in self.tables
        }

    def restore(self, backup: dict[str, list[tuple[Any, ...]]]) -> None:
        for table in reversed(self.tables):
            self.connection.execute(f'DELETE FROM "{table}"')
        for table, content in backup.items():
            for (text,) in content:
                query = f'INSERT INTO "{table}" OVERRIDING SYSTEM VALUE SELECT (%s::"{table}").*'
                self.connection.execute(query, (text,))


@pytest.mark.parametrize("seed", [36, 58, 69])
def test_the_tables_of_the_hub_hold_the_rules_of_the_simulation(
    seed: int, hub: HubDatabase, door: HubDatabase, url: str
) -> None:
    hub.add_token("lab", TOKEN)
    played = PostgresHub(door, url)
    assert Schedule(seed, hub=played).play().broken == []
    played.connection.close()
