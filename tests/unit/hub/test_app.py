"""The hub over HTTP, with real sites: SQLite on one side, PostgreSQL on the other."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from pvebench.model.run import Outcome
from pvebench.store.writing import ReplacedRun
from pvebench.web.server import WebServer
from pvebench.web.server import listen as open_socket
from pvebench_fleet import push
from pvebench_fleet.fleet_log import FleetLog
from pvebench_fleet.hub.app import make_app
from pvebench_fleet.hub.rules import Door
from pvebench_fleet.hub.store.database import CONNECTIONS, HubDatabase
from pvebench_fleet.push import HubAddress, sending
from pvebench_fleet.wire import Limits
from testing.hub_requests import HELLO, TOKENS, ask
from testing.prometheus import free_port
from testing.real_outcomes import until
from testing.stored_runs import SECOND, run
from testing.stores import TemporaryStore


@contextmanager
def serving(database: HubDatabase) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    door = Door(database.begin, lambda: 1, Limits(wait_seconds=0))
    with WebServer(make_app(door, database), open_socket(address)):
        yield f"http://{address}"


@pytest.fixture
def hub_url(hub: HubDatabase, door: HubDatabase) -> Iterator[str]:
    for name, token in TOKENS.items():
        hub.add_token(name, token)
    with serving(door) as url:
        yield url


def test_results_of_two_sites_with_the_same_node_arrive_once_and_corrected(
    hub_url: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "LEAST_WAIT", 0.0)
    monkeypatch.setattr("pvebench_fleet.push.POLL_SECONDS", 0.05)
    for name, token in TOKENS.items():
        folder = tmp_path / name
        folder.mkdir()
        secret = folder / "token"
        secret.write_text(token)
        secret.chmod(0o600)
        store = TemporaryStore(folder / "pvebench.db", simulated=False)
        store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
        first = store.add_run(run(0)).number
        with sending(HubAddress(url=hub_url, token_file=secret, site=name), store):
            store.add_run(run(1, SECOND))
            correction = ReplacedRun(
                number=first, gone=(), put=(), outcome=Outcome.NOISY, reason="noisy"
            )
            store.correct([correction])
            fleet_log = FleetLog(store.engine)
            until(lambda log=fleet_log: log.position()[0] == 7)
        store.close()
    with psycopg.connect(url) as opened:
        found = opened.execute(
            "SELECT s.name, uid, outcome, vals, definition->'labels'->>'node', e.facts->>'kernel' "
            'FROM run r JOIN site s USING (site) JOIN "case" c USING (case_id) '
            "JOIN environment e USING (env) ORDER BY 1, r.finished"
        ).fetchall()
    assert [(name, outcome) for name, _, outcome, *_ in found] == [
        ("graz", "noisy"),
        ("graz", "ok"),
        ("vienna", "noisy"),
        ("vienna", "ok"),
    ]
    assert [row[3:] for row in found] == [([1000.0], "lab", "6.8.12")] * 4


def test_the_token_of_another_site_stores_nothing_and_is_named(
    hub_url: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the results of a site would be those of another, and the hub would hold that one."""
    monkeypatch.setattr(push, "LEAST_WAIT", 0.0)
    secret = tmp_path / "token"
    secret.write_text(TOKENS["graz"])
    secret.chmod(0o600)
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c", node="lab", pack="quick", tier="wall", planned=1)
    store.add_run(run(0))
    address = HubAddress(url=hub_url, token_file=secret, site="vienna")
    with sending(address, store) as sender:
        until(lambda: "403 this is the token of site graz" in sender.state)
    store.close()
    with psycopg.connect(url) as opened:
        assert opened.execute("SELECT count(*) FROM run").fetchone() == (0,)


@pytest.mark.parametrize("token", ["", "c" * 64, "a" * 63, "a" * 10_000])
@pytest.mark.parametrize("path", ["hello", "push", "rewind", "marks"])
def test_no_address_answers_without_the_token_of_a_site(
    path: str, token: str, hub_url: str
) -> None:
    method = "GET" if path == "marks" else "POST"
    status, headers, _ = ask(hub_url, path, b"{}", method=method, token=token)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")


def test_a_message_that_breaks_the_protocol_gets_its_status(hub_url: str) -> None:
    assert ask(hub_url, "hello", b"{")[0] == 400
    assert ask(hub_url, "push", b"not gzip")[0] == 400
    assert ask(hub_url, "hello", json.dumps({**HELLO, "schemas": [9]}).encode())[0] == 422
    assert ask(hub_url, "elsewhere", b"{}")[0] == 404
    assert ask(hub_url, "hello", b"x" * (5 * 1024 * 1024))[0] == 413


def test_a_push_without_the_turn_gets_412_and_a_held_site_423(
    hub_url: str, hub: HubDatabase
) -> None:
    rewind = {"process": "0" * 16, "turn": 5, "seen": [0, ""], "to": [0, ""]}
    assert ask(hub_url, "rewind", json.dumps(rewind).encode())[0] == 412
    hub.hold("vienna")
    assert ask(hub_url, "hello", json.dumps(HELLO).encode())[0] == 423
    assert ask(hub_url, "hello", json.dumps(HELLO).encode(), token=TOKENS["graz"])[0] == 200
    assert hub.keep("vienna", "0" * 16, lambda: 1)
    assert ask(hub_url, "hello", json.dumps(HELLO).encode())[0] == 200


@pytest.mark.parametrize("own", [True, False])
def test_a_site_has_one_place_and_all_have_as_many_as_connections(
    own: bool,  # pytest passes it by name
    hub_url: str,
    hub: HubDatabase,
    door: HubDatabase,
) -> None:
    names = ["same"] * (CONNECTIONS + 1) if own else [f"site{at}" for at in range(CONNECTIONS + 1)]
    for name in {*names}:
        hub.add_token(name, name.ljust(64, "x"))
    taken = [door._free.get() for _ in range(CONNECTIONS)]
    answers: list[tuple[int, dict[str, str], bytes]] = []
    body = json.dumps(HELLO).encode()

    def hello(name: str, scheme: str) -> None:
        token = name.ljust(64, "x")
        answers.append(ask(hub_url, "hello", body, token=token, scheme=scheme))

    schemes = ("Bearer", "bearer", "BEARER", "bEARER", "BeareR")
    threads = [
        threading.Thread(target=hello, args=each) for each in zip(names, schemes, strict=True)
    ]
    refused = CONNECTIONS if own else 1
    try:
        for thread in threads:
            thread.start()
        until(lambda: len(answers) == refused)  # the others wait for a connection
    finally:
        for one in taken:
            door._free.put(one)
        for thread in threads:
            thread.join(60)
    expected = [429] * refused + [200] * (CONNECTIONS + 1 - refused)
    assert [status for status, _, _ in answers] == expected
    assert answers[0][1]["retry-after"] == "5"


@pytest.mark.parametrize("token", [TOKENS["graz"], "c" * 64])
def test_incomplete_requests_keep_no_site_out(hub_url: str, token: str) -> None:
    address = urlsplit(hub_url)
    head = f"POST /fleet/1/push HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 100\r\n"
    with ExitStack() as slow:
        for _ in range(2 * CONNECTIONS):
            client = slow.enter_context(socket.create_connection((address.hostname, address.port)))
            client.sendall(f"{head}Authorization: Bearer {token}\r\n\r\nx".encode())
        body = json.dumps(HELLO).encode()
        until(lambda: ask(hub_url, "hello", body)[0] == 200, seconds=10)
        assert [ask(hub_url, "hello", body)[0] for _ in range(5)] == [200] * 5


def test_a_database_that_is_gone_is_503_with_a_time_to_come_back(tmp_path: Path) -> None:
    gone = HubDatabase(f"postgresql://unknown@/none?host={tmp_path}")
    with serving(gone) as url:
        status, headers, _ = ask(url, "hello", json.dumps(HELLO).encode())
    assert (status, headers["retry-after"]) == (503, "60")


def test_a_full_disk_is_507(
    hub_url: str, door: HubDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        with door.connection():
            raise psycopg.errors.DiskFull("could not extend file")

    monkeypatch.setattr(HubDatabase, "site_of", full)
    status, headers, _ = ask(hub_url, "hello", json.dumps(HELLO).encode())
    assert (status, headers["retry-after"]) == (507, "60")
