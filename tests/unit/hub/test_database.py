"""Old months, outdated rows, free space, and what the doctor finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from pvebench.cli.main import run_cli
from pvebench.web.server import WebServer
from pvebench.web.server import listen as open_socket
from pvebench_fleet.hub.app import has_little_space, make_app
from pvebench_fleet.hub.fleet_view import findings
from pvebench_fleet.hub.judging import judge_next
from pvebench_fleet.hub.rules import Door
from pvebench_fleet.hub.store.database import DENSE_SECONDS, KEPT_SECONDS, HubDatabase
from pvebench_fleet.hub.store.overview import NodeLine, Overview
from testing.hub_requests import (
    GRAZ,
    HELLO,
    NOW,
    PROCESS,
    SETTINGS,
    SHAPE,
    TOKENS,
    Sending,
    ask,
    line,
    rows,
)
from testing.prometheus import free_port


def test_old_months_are_listed_then_removed_and_the_newest_run_stays(
    site: Sending, hub: HubDatabase, login: str, url: str
) -> None:
    site.push(SHAPE, line(0), line(1, finished=NOW - 100 * 86400))
    judge = HubDatabase(login, role="pvebench_judge")
    judge_next(judge, ())
    judge.close()
    assert hub.prune(2, NOW, apply=False) == ["run_2023_08"]
    assert rows(url, "SELECT count(*) FROM run") == [(2,)]
    assert hub.prune(2, NOW, apply=True) == ["run_2023_08"]
    assert hub.prune(2, NOW, apply=True) == []
    assert rows(url, "SELECT number FROM run") == [(1,)]
    assert len(rows(url, "SELECT FROM case_state")) == 1
    site.push(SHAPE, line(2, finished=NOW - 100 * 86400))  # a late run makes its month again
    assert rows(url, "SELECT count(*) FROM run") == [(2,)]


def test_outdated_marks_go_and_the_newest_stays(site: Sending, hub: HubDatabase, url: str) -> None:
    ages = [KEPT_SECONDS + 9, DENSE_SECONDS + 20, DENSE_SECONDS + 10, 20, 10]
    with psycopg.connect(url) as connection:
        for seq, age in enumerate(ages):
            at = NOW - NOW % 3600 + 1800 - age
            connection.execute("INSERT INTO mark VALUES (1, %s, '', %s)", (seq, at))
    hub.prune(99, NOW - NOW % 3600 + 1800, apply=True)
    assert rows(url, "SELECT seq FROM mark ORDER BY seq") == [(2,), (3,), (4,)]
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE mark SET at = 0")
    hub.prune(99, NOW, apply=True)
    assert rows(url, "SELECT seq FROM mark") == [(4,)]


def test_replaced_versions_stay_while_a_twin_may_come_back(
    site: Sending, hub: HubDatabase, url: str
) -> None:
    site.push(SHAPE, line(0))
    site.push(SHAPE, line(0, value=2.0, revision=1))
    with psycopg.connect(url) as connection:  # an older process that was seen lately
        connection.execute("INSERT INTO process VALUES (1, 'other', 0, false, %s)", (NOW,))
    hub.prune(99, NOW, apply=True)
    assert rows(url, "SELECT number, vals FROM replaced") == [(1, [1.0])]
    hub.prune(99, NOW + KEPT_SECONDS + 1, apply=True)
    assert rows(url, "SELECT number FROM replaced") == []
    assert rows(url, "SELECT vals FROM run") == [([2.0],)]
    assert rows(url, "SELECT process FROM site") == [(PROCESS,)]


@pytest.mark.parametrize(("free", "status"), [(9, 507), (11, 400)])
def test_a_push_gets_507_while_the_disk_is_almost_full(
    free: int, status: int, hub: HubDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = SimpleNamespace(total=100, used=100 - free, free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    hub.add_token("vienna", TOKENS["vienna"])
    address = f"127.0.0.1:{free_port()}"
    app = make_app(Door(hub.begin, lambda: 1), hub, lambda: has_little_space(tmp_path))
    with WebServer(app, open_socket(address)):
        assert ask(f"http://{address}", "push", b"not gzip")[0] == status
        assert ask(f"http://{address}", "hello", json.dumps(HELLO).encode())[0] == 200


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda s: {**s, "fsync": "off"}, ("critical", "fsync is off: a crash loses results")),
        (lambda s: {**s, "server_version_num": "140001"}, ("critical", "PostgreSQL 14: needs 15")),
        (lambda s: {**s, "odd_runs": "3"}, ("warning", "3 runs with a time before 2020")),
    ],
)
def test_the_doctor_names_settings_that_lose_results(
    change: Callable[[dict[str, str]], dict[str, str]], finding: tuple[str, str]
) -> None:
    assert {level for level, _ in findings(Overview(), SETTINGS, NOW)} == {"ok"}
    found = [*findings(Overview(), change(SETTINGS), NOW)]
    assert any(level == finding[0] and text.startswith(finding[1]) for level, text in found)


def test_the_doctor_names_sites_and_nodes_with_problems() -> None:
    silent = replace(GRAZ, name="linz", state="active", contact=0.0, skew=-400.0, refused=2)
    nodes = [
        NodeLine(site="graz", node="a", unjudged=1, judged_at=0.0, failed=""),
        NodeLine(site="graz", node="b", unjudged=0, judged_at=NOW, failed="KeyError: x"),
    ]
    overview = Overview(sites=[replace(GRAZ, refused=0), silent], nodes=nodes)
    found = "\n".join(f"{level} {text}" for level, text in findings(overview, SETTINGS, NOW))
    for part in (
        "critical graz is held",
        "warning linz silent for",
        "warning linz: clock off by",
        "warning linz: 2 lines refused",
        "warning graz, a: never judged",
        "critical graz, b: judging failed: KeyError: x",
    ):
        assert part in found


@pytest.mark.parametrize(("newest", "reported"), [(600.0, False), (3700.0, True)])
def test_the_doctor_suspects_the_hub_itself_if_no_site_connects(
    newest: float, *, reported: bool
) -> None:
    sites = [
        replace(GRAZ, state="active", contact=NOW - newest),
        replace(GRAZ, name="linz", state="active", contact=NOW - 2 * 3600.0),
        replace(GRAZ, name="wels", state="active", contact=None),
    ]
    found = [text for level, text in findings(Overview(sites=sites), SETTINGS, NOW)]
    assert any("check that `pvebench hub serve` runs" in text for text in found) is reported


def test_prune_and_doctor_are_commands(
    site: Sending, login: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.push(SHAPE, line(0))
    assert run_cli(["hub", "prune", "--database", login, "--keep-months", "1"]) == 0
    assert "run_2023_11 would be deleted; add --apply" in capsys.readouterr().out
    # The cluster of the tests has fsync off.
    assert run_cli(["hub", "doctor", "--database", login]) == 1
    assert "critical fsync is off" in capsys.readouterr().out
