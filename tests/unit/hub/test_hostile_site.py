"""A site with a valid token that sends what no pvebench sends: only itself feels it."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import psycopg
import pytest

from pvebench.cli.main import run_cli
from pvebench.config.known_issues import load_known_issues
from pvebench.model.run import Sample, Unit
from pvebench_fleet.hub.app import FleetPages
from pvebench_fleet.hub.judging import judge_next
from pvebench_fleet.hub.rules import AHEAD_SECONDS, TABLES, Holder, SiteBusy
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.site_transaction import SiteTransaction
from pvebench_fleet.wire import Head, pack, shape_of
from testing.hub_requests import PROCESS, SHAPE, Sending, line, rows

COUNTS = 'SELECT site, count(*) FROM "{}" GROUP BY site ORDER BY site'


@pytest.fixture
def other(hub: HubDatabase, door: HubDatabase) -> Sending:
    """Site `other`, which is as it should be."""
    hub.add_token("other", "b" * 64)
    sending = Sending(door, "other")
    sending.hello()
    return sending


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of three rows per table."""
    for table, (_, *names) in TABLES.items():
        monkeypatch.setitem(TABLES, table, (3, *names))


def shape(at: int) -> bytes:
    made = shape_of([Sample(f"metric{at}", None, 1.0, Unit.IOPS)])
    return made.model_dump_json().encode()


def numbered(kind: str, at: int) -> dict[str, Any] | bytes:
    """Return a line of a kind; another number is another row."""
    common = {"kind": kind, "seq": at + 1}
    match kind:
        case "shape":
            return shape(at)
        case "environment":
            return {**common, "digest": f"e{at}", "node": "lab", "slug": "", "facts": {}}
        case "cycle":
            extra = {"node": "lab", "pack": "", "tier": "", "planned": 1, "started": 1.0}
            return {**common, "uid": f"c{at}", **extra}
        case _:
            extra = {"made": 1.0, "decision": "accept", "cases": "*", "until": 1.0, "reason": ""}
            return {**common, "number": at, **extra}


@pytest.mark.parametrize("kind", ["shape", "environment", "cycle", "decision"])
def test_rows_of_a_site_have_a_limit_and_those_of_others_stay(
    kind: str, few: None, site: Sending, other: Sending, url: str
) -> None:
    status, answer = site.push(*(numbered(kind, at) for at in range(8)))
    assert (status, len(answer["refused"])) == (200, 5)
    assert other.push(*(numbered(kind, at) for at in range(2)))[1]["refused"] == []
    assert rows(url, COUNTS.format(kind)) == [(1, 3), (2, 2)]
    reasons = rows(url, "SELECT DISTINCT reason FROM refused")
    assert reasons == [(f"this site has 3 rows in table {kind}, the maximum of a site",)]
    assert site.push(*(numbered(kind, at) for at in range(8)))[1]["refused"] == answer["refused"]


@pytest.mark.parametrize(
    ("table", "field"),
    [("case", "case"), ("cycle", "cycle"), ("environment", "environment"), ("arrived", "case")],
)
def test_names_that_only_runs_have_are_limited_too(
    table: str, field: str, few: None, site: Sending, other: Sending, url: str
) -> None:
    lines = [line(at, **{field: f"n{at}/a/b/c"}) for at in range(8)]
    status, answer = site.push(SHAPE, *lines)
    assert (status, len(answer["refused"])) == (200, 5)
    assert other.push(SHAPE, line(0))[1]["refused"] == []
    assert rows(url, COUNTS.format(table)) == [(1, 3), (2, 1)]
    assert rows(url, COUNTS.format("run")) == [(1, 3), (2, 1)]


@pytest.mark.parametrize("value", [-30_369.0, 1e18])
def test_numbers_that_no_machine_can_have_are_refused(
    value: float, site: Sending, url: str
) -> None:
    status, answer = site.push(SHAPE, line(0, value=value), line(1))
    assert (status, answer["refused"]) == (200, [1])
    ((reason,),) = rows(url, "SELECT reason FROM refused")
    assert str(reason).endswith("is impossible")


def test_shapes_of_one_site_are_no_shapes_of_another(
    site: Sending, other: Sending, judge: HubDatabase, url: str
) -> None:
    site.push(*(shape(at) for at in range(150)))
    other.push(SHAPE, line(0))
    with judge.begin_judging(time.time()) as node:
        assert node is not None
        assert "metric" not in node._numbers_query([("metric7", "", "", "1/s")])
        assert node._numbers_query([("iops", "", "", "1/s")]).count("WHEN") <= 1
    status, answer = site.push(SHAPE, line(1, shape=json.loads(shape(999))["shape"]))
    assert (status, answer["refused"]) == (200, [2])


def test_known_rows_take_no_number_of_a_sequence(site: Sending, url: str) -> None:
    """They have 31 bits: 8,000 known rows a push would use them up within two days."""
    lines = [line(at, case=f"lab/a{at}/b/c") for at in range(50)]
    more = [numbered("environment", 1), numbered("cycle", 1)]
    for _ in range(5):
        site.push(SHAPE, *more, *lines)
    query = "SELECT relname::text, pg_sequence_last_value(oid) FROM pg_class WHERE relkind = 'S'"
    used = dict(rows(url, query))
    assert used["case_case_id_seq"] == 50
    assert used["environment_env_seq"] == used["cycle_cycle_id_seq"] == 2
    assert used["shape_shape_seq"] == 1


def test_a_push_of_many_lines_is_a_few_statements(
    site: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run with the site's row locked, in one of the few connections of all sites."""
    run, count = SiteTransaction._run, 0

    def counted(self: SiteTransaction, query: str, *values: Any) -> Any:
        nonlocal count
        count += 1
        return run(self, query, *values)

    monkeypatch.setattr(SiteTransaction, "_run", counted)
    counts = []
    for many in (5, 300):
        count = 0
        lines = [
            numbered(kind, at)
            for kind in ("environment", "cycle", "decision")
            for at in range(many)
        ]
        site.push(SHAPE, *lines, *(line(at) for at in range(many)), *[b"{}"] * many)
        counts.append(count)
    assert counts[1] <= counts[0] < 80


def test_a_run_from_the_future_is_refused_and_named(
    site: Sending, other: Sending, judge: HubDatabase, url: str
) -> None:
    now = time.time()
    late, soon = now + 50 * 365 * 86400, now + AHEAD_SECONDS - 600
    status, answer = site.push(SHAPE, line(0), line(1, finished=late), line(2, finished=soon))
    assert (status, answer["refused"]) == (200, [2])
    ((reason,),) = rows(url, "SELECT reason FROM refused")
    assert re.match(r"ended 18\d\d\d d", reason)
    assert reason.endswith("in the future: check the clock of this site")
    assert rows(url, "SELECT max(newest_run) FROM site") == [(soon,)]
    assert judge_next(judge, ())
    assert rows(url, "SELECT number FROM case_state") == [(3,)]


def test_a_site_whose_clock_is_ahead_keeps_its_lines_until_it_is_right(
    site: Sending, url: str
) -> None:
    late = time.time() + 3 * 86400
    head = Head(
        turn=site.turn, process=PROCESS, after=0, chain="", to=(1, "1" * 32), count=2, now=late
    )
    body = pack(head, [SHAPE, json.dumps(line(0)).encode()])
    status, answer = site.request("POST", "push", body)
    assert status == 422
    assert "clock of this site is 72 h" in answer["error"]
    assert rows(url, "SELECT acked FROM site") == [(0,)]
    assert rows(url, "SELECT skew_seconds > 250000 FROM site") == [(True,)]


@pytest.mark.parametrize("now", [1e308, -1e308, 1e18])
def test_a_time_beyond_any_clock_reaches_no_page(now: float, site: Sending, url: str) -> None:
    """Its difference to the hub's time has 300 digits."""
    body = {"process": PROCESS, "seen": 0, "version": "x", "schemas": [1], "now": now}
    assert site.request("POST", "hello", json.dumps(body).encode())[0] == 400
    assert rows(url, "SELECT abs(skew_seconds) < 1e11 FROM site") == [(True,)]


@pytest.mark.parametrize("kind", ["environment", "definition"])
def test_data_of_any_depth_is_small(kind: str, site: Sending, url: str) -> None:
    """A worker has all definitions and facts of a site in memory."""
    large = {f"{at:0300}": "x" * 300 for at in range(100)}
    labels = dict.fromkeys(("node", "storage", "bus", "cache", "format", "scenario"), "a")
    work = {"slug": "a", "tool": "", "title": "", "directions": [], "ramp_seconds": 0}
    work |= {"runtime_seconds": 1, "parameters": {}, "caveats": []}
    data = {"labels": labels, "scenario": {}, "workload": work, "scale": 1, "fingerprint": "a"}
    lines = {
        "environment": {**numbered("environment", 0), "facts": large},  # type: ignore[dict-item] # no bytes
        "definition": {
            "kind": "definition", "seq": 1, "key": "a/a/a/a", "first_started": 1.0,
            "definition": {**data, "later": large},
        },
    }  # fmt: skip
    assert site.push(lines[kind])[1]["refused"] == [1]
    ((reason,),) = rows(url, "SELECT reason FROM refused")
    assert "more than 32768 characters" in reason


def test_processes_marks_and_refused_lines_keep_the_newest(
    few: None, site: Sending, hub: HubDatabase, url: str
) -> None:
    for at in range(8):
        site.push(*[b"{}"] * 8, numbered("cycle", at))
    hub.hold("lab")
    for at in range(8):
        with hub.begin("lab", None) as change:
            change.put_holder(Holder(process=f"{at:016x}", turn=1))
    for table in ("process", "mark", "refused"):
        assert rows(url, COUNTS.format(table)) == [(1, 3)]
    assert rows(url, "SELECT max(seq), min(seq) FROM mark") == [(72, 54)]
    assert f"{7:016x}" in {process for (process,) in rows(url, "SELECT process FROM process")}


def test_the_size_of_a_sites_runs_has_a_limit_and_pruning_counts_it_anew(
    site: Sending, other: Sending, hub: HubDatabase, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = "SELECT bytes FROM site WHERE name = 'lab'"
    old = time.time() - 50 * 31 * 86400
    site.push(SHAPE, line(0, reason="x" * 5000), line(1, finished=old, reason="x" * 5000))
    site.push(SHAPE, line(0, value=2.0, reason="", revision=1))
    assert rows(url, size) == [(3 * 136 + 10_000,)]
    for module in ("site_transaction", "database"):
        monkeypatch.setattr(f"pvebench_fleet.hub.store.{module}.SITE_BYTES", 1000)
    status, answer = site.push(SHAPE, line(2))
    assert (status, answer["refused"]) == (200, [3])
    assert rows(url, "SELECT reason FROM refused") == [
        ("this site has 10.2 KiB of runs, the maximum of a site",)
    ]
    assert other.push(SHAPE, line(2))[1]["refused"] == []
    hub.prune(36, time.time(), apply=True)
    assert rows(url, size) == [(136,)]
    assert site.push(SHAPE, line(2))[1]["refused"] == []


def test_rows_that_no_run_refers_to_are_pruned(
    site: Sending, hub: HubDatabase, judge: HubDatabase, url: str
) -> None:
    kinds = ("shape", "environment", "cycle")
    site.push(SHAPE, line(0), *(numbered(kind, 1) for kind in kinds))
    site.push(SHAPE, line(1, finished=1.6e9, case="old/a/b/c"))
    judge_next(judge, ())
    judge_next(judge, ())
    before = {table: rows(url, COUNTS.format(table))[0][1] for table in (*kinds, "case")}
    assert before == {"shape": 2, "environment": 2, "cycle": 2, "case": 2}
    hub.prune(30, time.time(), apply=True)  # used lately
    assert {table: rows(url, COUNTS.format(table))[0][1] for table in before} == before
    with psycopg.connect(url) as connection:
        for table in before:
            connection.execute(f'UPDATE "{table}" SET seen = 0'.encode())
    hub.prune(30, time.time(), apply=True)
    left = {table: [count for _, count in rows(url, COUNTS.format(table))] for table in before}
    assert left == {"shape": [1], "environment": [1], "cycle": [], "case": [2]}


def test_a_second_request_of_a_site_at_the_same_time_does_not_wait(
    site: Sending, other: Sending, door: HubDatabase
) -> None:
    with door.begin("lab", None), pytest.raises(SiteBusy):
        site.push(SHAPE, line(0))
    with door.begin("lab", None):
        assert other.push(SHAPE, line(0))[0] == 200
    assert site.push(SHAPE, line(0))[0] == 200


def test_sites_are_judged_in_turn_whatever_number_of_nodes_one_invents(
    site: Sending, other: Sending, judge: HubDatabase, url: str
) -> None:
    site.push(SHAPE, *(line(at, case=f"n{at}/a/b/c") for at in range(50)))
    other.push(SHAPE, line(0))
    for _ in range(2):
        assert judge_next(judge, ())
    done = "SELECT site, count(*) FROM node_state WHERE judged > 0 GROUP BY site ORDER BY site"
    assert rows(url, done) == [(1, 1), (2, 1)]


def test_a_node_that_kills_its_worker_is_tried_after_those_of_other_sites(
    site: Sending, other: Sending, judge: HubDatabase, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.push(SHAPE, line(0))
    other.push(SHAPE, line(0))
    with judge.begin_judging(1.0) as node:
        assert node is not None
        killer = node.site
        node._connection.close()  # nothing of this transaction is left
    with judge.begin_judging(2.0) as node:
        assert node is not None
        assert node.site != killer
    with judge.begin_judging(3.0) as node:
        assert node is not None
        assert node.site == killer


@pytest.mark.parametrize("kernel", ["²:1.0", "9" * 300, "1:" + "9" * 298])
def test_facts_of_a_site_break_no_page_of_the_others(
    kernel: str, site: Sending, other: Sending, judge: HubDatabase, login: str
) -> None:
    for sending, text in ((site, kernel), (other, "6.14.8-1-pve")):
        facts = {"kernel": text, "qemu": text, "zfs": text}
        environment = {**numbered("environment", 1), "facts": facts}  # type: ignore[dict-item] # no bytes
        sending.push(SHAPE, environment, line(1, environment="e1"))
        judge_next(judge, ())
    reader = HubDatabase(login, role="pvebench_overview")
    pages = FleetPages(reader, load_known_issues(), "fleet")
    assert "other</a></td><td>active, clock" in pages.page()
    assert "not compared" not in pages.page()
    assert 'pvebench_hub_site_runs_received{site="other"} 1' in pages.metrics()
    assert "None" in pages.site("other")
    reader.close()


def test_names_of_a_site_reach_no_terminal_raw(
    site: Sending, login: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.push(SHAPE, line(0, case="\x1b]0;owned\x07/a/b/c"))
    run_cli(["hub", "doctor", "--database", login])
    shown = capsys.readouterr().out
    assert "lab,  ]0;owned : never judged" in shown or "]0;owned" in shown
    assert shown.replace("\n", "").isprintable()


def test_a_site_sends_while_it_is_judged(site: Sending, judge: HubDatabase) -> None:
    """Rows that refer to the site lock its key until the judging ends, which takes minutes."""
    site.push(SHAPE, line(0))
    with judge.begin_judging(time.time()) as node:
        assert node is not None
        assert site.push(SHAPE, line(1))[0] == 200
