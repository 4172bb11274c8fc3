"""The pages for people: what they say in each situation, and that nothing breaks out of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import httpx2
import pytest
from sqlalchemy import event

from pvebench.drivers.clocks import START
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome
from pvebench.model.status import CycleStatus, Phase, State, WorkerStatus
from pvebench.model.storage_use import WriteCost
from pvebench.report.value_text import PHASES
from pvebench.store.live_results import LiveResults, View
from pvebench.store.store import Store
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import headline
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.responses import render
from pvebench.web.views.pages import index_view, worker_view
from pvebench.web.views.tables import STALE_INTERVALS
from testing import http_client
from testing.changes import FINDING, upgrade
from testing.changes import START as UPGRADE_START
from testing.demo_year import results_of as demo_results
from testing.faulty_node import Fault
from testing.html_reader import Reader
from testing.packs import QUICK, ROOT, SMALL, quick, write_pack
from testing.simulated_site import app_of, results_of, served
from testing.simulations import Simulation, simulate
from testing.stored_runs import ended
from testing.stores import TemporaryStore

EVIL = """<script>alert(1)</script>"'&{{ 7*7 }}"""


def index(simulation: Simulation, results: LiveResults | None = None) -> str:
    content = (results or results_of(simulation)).now
    now = simulation.world.clock.now()
    page = index_view(content, [simulation.worker.status], now)
    return render("index.html", page=page, simulated=page.simulated, here="/")


def shown_worker(worker: SimpleNamespace, now: datetime) -> SimpleNamespace:
    """Return the values of a page that has one worker and nothing else."""
    page = index_view(View(), [], now)
    page.workers = [worker]
    return page


def said(html: str) -> str:
    """Return the text of a page with its white space made single."""
    return " ".join(Reader(html).text.split())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Three good cycles; the last try of every case failed."""
    simulation = simulate(tmp_path_factory.mktemp("pages"), cycles=4)
    for _ in range(3 * 13):
        simulation.worker.step()
    simulation.world.faults._rates[Fault.TOOL_FAILS] = 1.0
    simulation.worker.run()
    return simulation


@pytest.fixture(scope="module")
def address(measured: Simulation) -> Iterator[str]:
    with served(app_of(measured)) as where:
        yield where


def test_there_is_one_table_for_each_workload_with_rows_of_bus_and_format(
    measured: Simulation,
) -> None:
    view = index_view(results_of(measured).now, [], measured.world.clock.now())
    assert [(table.title, table.slug, table.place, table.caches) for table in view.tables] == [
        ("4k random read, depth 32", "randread-4k-qd32", "storage local", ["none", "writeback"]),
        ("4k random write, depth 32", "randwrite-4k-qd32", "storage local", ["none", "writeback"]),
    ]
    rows = [("scsi", ("qcow2",)), ("scsi", ("raw",)), ("virtio", ("qcow2",)), ("virtio", ("raw",))]
    assert [(row.bus, row.options) for row in view.tables[0].rows] == rows


def test_each_cell_says_how_far_it_is_behind_the_fastest_and_the_table_says_it_in_words(
    measured: Simulation,
) -> None:
    view = index_view(results_of(measured).now, [], measured.world.clock.now())
    reads = view.tables[0]
    cells = [cell for row in reads.rows for cell in row.cells if cell]
    assert sum(cell.best for cell in cells) >= 1
    first = [cell for cell in cells if cell.against in ("fastest", "highest so far")]
    assert [cell.best for cell in first] == [True]
    behind = [cell.against for cell in cells if not cell.best]
    gap = "\N{MINUS SIGN}[0-9.]+%(, noise too large)?"
    assert all(re.fullmatch(gap, text) for text in behind), behind
    # Noise decides whether the first may be called the fastest; cell and sentence agree.
    words = {"fastest": "is", "highest so far": "has the highest result"}
    assert reads.found.startswith(f"virtio, raw, cache writeback {words[first[0].against]} ")
    assert "The default (scsi, raw, cache none) is" in reads.found
    assert "% slower (95% CI " in reads.found


def test_a_cell_shows_the_last_good_number_its_spread_age_trend_and_the_failure_since(
    measured: Simulation,
) -> None:
    view = index_view(results_of(measured).now, [], measured.world.clock.now())
    cell = view.tables[0].rows[3].cells[0]
    assert cell is not None
    key = next(key for key in measured.store.cases() if "virtio.raw.none/randread" in key)
    good = measured.store.cases().get(key)
    assert good is not None
    assert good.good is not None
    iops = measured.level(key)
    (number,) = cell.numbers
    assert number.text == f"{iops:,.0f} IOPS"
    assert re.fullmatch(r"±\d(\.\d)?%", number.spread_text)
    assert number.spark is not None
    assert number.spark.label.startswith("3 runs: first ")
    assert cell.age.endswith(" min ago")
    assert [(note.word, note.url) for note in cell.notes] == [
        ("failed", f"/runs/{good.last.number}")
    ]


def test_a_planned_case_without_a_run_yet_does_not_break_the_page(measured: Simulation) -> None:
    first, *others = results_of(measured).now.planned.values()
    results = LiveResults(measured.store, [replace(first, key=f"{first.key}0"), *others])
    assert set(results.now.planned) - set(results.now.cases) == {f"{first.key}0"}
    view = index_view(results.now, [], measured.world.clock.now())
    assert len(view.tables) == 2


def test_options_that_differ_from_their_defaults_make_rows_of_their_own(tmp_path: Path) -> None:
    text = SMALL.replace("cache: [none]", "cache: [none]\n  aio: [io_uring, threads]")
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, text))
    simulation.worker.run()
    view = index_view(results_of(simulation).now, [], simulation.world.clock.now())
    assert [(row.bus, row.options) for row in view.tables[0].rows] == [
        ("scsi", ("raw",)),
        ("scsi", ("raw", "aio threads")),
        ("virtio", ("raw",)),
        ("virtio", ("raw", "aio threads")),
    ]


def test_large_blocks_are_shown_as_bandwidth_and_mixed_ones_in_both_directions(
    tmp_path: Path,
) -> None:
    text = SMALL + "  - fio: {rw: read, bs: 64k, iodepth: 4}\n  - fio: {rw: randrw, bs: 32k}\n"
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, text))
    simulation.worker.run()
    view = index_view(results_of(simulation).now, [], simulation.world.clock.now())
    units = {
        table.slug.split("-")[0]: [
            (str(number.direction), number.text.split()[-1]) for number in cell.numbers
        ]
        for table in view.tables
        for cell in table.rows[0].cells
        if cell
    }
    assert units == {
        "randread": [("read", "IOPS")],
        "read": [("read", "MiB/s")],
        "randrw": [("read", "IOPS"), ("write", "IOPS")],
    }


@pytest.mark.parametrize(
    "name", ["prometheus/rules/alerts.yml", "grafana/dashboards/operations.json"]
)
def test_stale_is_the_same_on_the_page_in_alerts_and_on_dashboards(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    limits = re.findall(r"overdue_ratio:current[^()]* > ([\d.]+)", text)
    assert set(map(float, limits)) == {STALE_INTERVALS}


def test_the_link_of_an_alert_leads_to_what_to_do_about_it(measured: Simulation) -> None:
    with served(app_of(measured)) as where:
        found = http_client.get(f"{where}/runbooks/PVEBenchChange")
        none = http_client.get(f"{where}/runbooks/PVEBenchNothing%0d%0aX: y")
    assert found.headers["content-type"].startswith("text/plain")
    assert found.text.startswith("PVEBenchChange\n\nA regression is confirmed")
    assert "PVEBenchImplausibleGain\n" not in found.text
    assert none.status_code == 404


def test_results_older_than_two_and_a_half_intervals_are_called_stale(measured: Simulation) -> None:
    content = results_of(measured).now
    soon = measured.world.clock.now() + timedelta(minutes=4)
    late = measured.world.clock.now() + timedelta(minutes=13)
    assert "stale" not in str(index_view(content, [], soon).tables)
    view = index_view(content, [], late)
    assert (12, "stale") in view.counts
    assert ("!", "stale") in {
        (note.sign, note.word)
        for table in view.tables
        for row in table.rows
        for cell in row.cells
        if cell
        for note in cell.notes
    }


def test_failures_stand_on_the_page_with_their_reason_and_lead_to_their_run(
    measured: Simulation,
) -> None:
    page = Reader(index(measured))
    newest = measured.store.runs(limit=1, not_ok=True)[0]
    assert "ended with status 1: simulated: the tool failed" in page.text
    links = [attributes.get("href") for tag, attributes in page.elements if tag == "a"]
    assert f"/runs/{newest.number}" in links


def test_while_a_case_runs_the_page_reports_phase_time_cycle_and_what_is_next() -> None:
    cases = quick()[1].cases
    now = START
    status = WorkerStatus(
        node="lab",
        state=State.RUNNING,
        since=now - timedelta(seconds=3),
        progressed=now,
        case=cases[0],
        phase=Phase.MEASURE,
        phase_seconds=8.0,
        upcoming=tuple(cases[1:3]),
        cycle=CycleStatus(
            uid="c",
            number=2,
            pack="quick",
            tier="wall",
            planned=12,
            done=9,
            failed=1,
            started=now - timedelta(seconds=90),
            expected_end=now + timedelta(seconds=30),
        ),
    )
    view = worker_view(status, now)
    assert (view.state, view.elapsed) == ("measuring", "3 s of about 8 s")
    assert view.phase_seconds == (3.0, 8.0)
    page = render("index.html", page=shown_worker(view, now), simulated=False, here="/")
    text = said(page)
    assert re.search(r"ends about \d\d:\d\d UTC, in 30 s", text)
    ahead = text.index(f"{cases[1].slug} about "), text.index(f"{cases[2].slug} about ")
    assert "in 10 s" in text[ahead[0] : ahead[1]]
    assert "in 20 s" in text[ahead[1] :]


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_words(phase: Phase) -> None:
    status = WorkerStatus(
        node="lab",
        state=State.RUNNING,
        since=START,
        progressed=START,
        case=quick()[1].cases[0],
        phase=phase,
    )
    view = worker_view(status, START)
    assert " " in PHASES[phase] or PHASES[phase] == "measuring"
    assert view.phase_seconds is None
    assert view.elapsed == "for 0 s"


def test_an_idle_worker_reports_when_the_next_case_is_due(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=None, pack=write_pack(tmp_path))
    while simulation.worker.status.next_due is None:
        simulation.worker.step()
    assert "lab: waiting" in said(index(simulation))
    assert re.search(r"The next case is due at 00:\d\d UTC, in 9 min", said(index(simulation)))


def test_an_empty_store_says_what_will_come(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    simulation.worker.step()
    assert "No results yet. The first case is running now" in said(index(simulation))
    assert "12 not measured yet" in said(index(simulation))


@pytest.mark.parametrize("unknown", ["storage=lab%2Fnone", "storage=x", "storage=%00", "sort=1"])
def test_a_storage_that_is_not_there_is_refused(address: str, unknown: str) -> None:
    assert http_client.get(f"{address}/?{unknown}").status_code in {400, 404}
    assert http_client.get(f"{address}/?storage=lab%2Flocal").status_code == 200


def test_one_storage_is_shown_at_a_time_and_the_others_are_a_click_away(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=True)
    content, now = demo_results(store).now, START
    view = index_view(content, [], now)
    assert [(name, chosen) for name, _, chosen, _ in view.choices] == [
        ("pve1, ceph", True),
        ("pve1, local-zfs", False),
        ("pve2, local-nvme", False),
    ]
    assert {table.place for table in view.tables} == {"storage ceph"}
    other = index_view(content, [], now, storage="pve2/local-nvme")
    assert {table.place for table in other.tables} == {"storage local-nvme"}
    assert view.tables[-1].title == "Idle VM"


def test_an_open_change_stands_on_top_with_its_sentence_and_its_cases(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    upgrade(store, slower=1.25)
    results = LiveResults(store)
    verdicts = VerdictService(results, ()).judge()
    view = index_view(results.now, [], UPGRADE_START + timedelta(days=40), verdicts)
    ((change, links),) = view.changes
    assert change.regression
    begin = datetime.fromtimestamp(change.begin, UTC)
    assert headline(verdicts) == f"{begin:%Y-%m-%d}: {sentence(change)}"
    assert len(links) == 6
    assert links[0][0].startswith("4k random ")
    assert {url.split("/")[3].split(".")[1] for _, url in links} == {"virtio"}
    assert view.verdict == ""
    page = render("index.html", page=view, simulated=False, here="/")
    assert f'<li id="change-{verdicts.changes[0].id}">' in page
    assert f'<time datetime="{begin.isoformat()}">' in page
    assert "<summary>6 cases</summary>" in page
    assert said(page).index(sentence(change)) < said(page).index("Nothing is running")
    chart = view.year
    assert chart is not None
    assert [(mark.number, mark.open) for mark in chart.marks] == [(1, True)]
    assert [band.text for band in chart.bands] == ["first runs", "qemu_package 9.0.2-5 → 9.2.0-2"]
    assert re.search("last (7[789]|8[0123])%", chart.label)
    assert chart.title == "Cases of the latest open change"


def test_closed_changes_are_a_table_with_begin_and_duration(tmp_path: Path) -> None:
    results = LiveResults(TemporaryStore(tmp_path / "pvebench.db", simulated=False))
    resolved = replace(FINDING, state="resolved", end=FINDING.begin + 30.6 * 86400)
    accepted = replace(FINDING, state="accepted", begin=FINDING.begin - 86400)
    verdicts = Verdicts(changes=(replace(FINDING, id="o"), resolved, accepted))
    view = index_view(results.now, [], UPGRADE_START, verdicts)
    page = said(render("index.html", page=view, simulated=False, here="/"))
    assert "2 closed changes" in page
    first = page.index("1970-04-11 31 days a, b, c and 1 more are 18% slower since ")
    assert (
        page.index("1 open change") < first < page.index("1970-04-10 accepted a, b, c and 1 more")
    )


def test_the_chart_ends_where_the_year_does_and_begins_with_two_runs(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=2)
    for _ in range(13):
        simulation.worker.step()
    assert index_view(results_of(simulation).now, [], START).year is None
    simulation.worker.run()
    chart = index_view(results_of(simulation).now, [], START).year
    assert chart is not None
    assert (chart.title, chart.point, chart.marks) == ("Default configuration", "one run", [])
    assert all("scsi, raw, cache none" in line.text for line in chart.lines)
    assert [len(line.points.split()) for line in chart.lines] == [2, 2]
    assert chart.value_ticks[0].text == "0%"


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 13, 30])
def test_a_young_store_says_what_the_page_will_say_and_when(tmp_path: Path, steps: int) -> None:
    simulation = simulate(tmp_path, cycles=None)
    for _ in range(steps):
        simulation.world.clock.sleep(simulation.worker.step())
    results = results_of(simulation)
    verdicts = VerdictService(results, ()).judge()
    now = simulation.world.clock.now()
    view = index_view(results.now, [simulation.worker.status], now, verdicts)
    assert [reached for _, reached in view.ahead] == [steps >= 13, False, False]
    assert bool(re.search(r"About 00:\d\d UTC \(7 runs", view.ahead[2][0])) is (steps > 0)
    text = said(render("index.html", page=view, simulated=True, here="/"))
    assert "Upcoming results" in text
    # What is not known is not called slower, nor in the colour of it.
    assert "slower," not in text.replace("whether anything gets slower,", "")
    notes = [note for t in view.tables for r in t.rows for c in r.cells if c for note in c.notes]
    assert {note.word for note in notes if not note.soft} == set()


def test_a_judging_that_failed_is_on_the_page_at_once_however_young_the_store(
    tmp_path: Path,
) -> None:
    simulation = simulate(tmp_path, cycles=None)
    simulation.world.clock.sleep(simulation.worker.step())
    simulation.world.clock.sleep(simulation.worker.step())
    assert results_of(simulation).now.cases
    current = [Verdicts()]
    words = "Verdict unknown: the latest update failed"
    with served(app_of(simulation, verdicts=lambda: current[-1])) as address:
        assert words not in said(http_client.get(f"{address}/").text)
        current.append(Verdicts(failed=True))
        assert words in said(http_client.get(f"{address}/").text)
        assert http_client.get(f"{address}/api/v1/verdict").json()["failed"] is True


def test_an_empty_store_with_nothing_running_says_what_to_do(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    view = index_view(LiveResults(store).now, [], START)
    assert "Start measuring with “pvebench serve”" in view.advice
    assert "Nothing is running" in said(render("index.html", page=view, simulated=False, here="/"))


def test_cases_that_left_the_packs_are_counted_and_not_in_the_tables(measured: Simulation) -> None:
    planned = list(results_of(measured).now.planned.values())[:4]
    view = index_view(LiveResults(measured.store, planned).now, [], measured.world.clock.now())
    assert view.elsewhere == 8
    page = said(render("index.html", page=view, simulated=True, here="/"))
    assert "Not shown: 8 cases with results that no pack has now, for example after an edit" in page
    assert sum(cell is not None for t in view.tables for r in t.rows for cell in r.cells) == 4


def test_a_new_run_is_known_at_once_and_looking_asks_the_database_nothing(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    results = results_of(simulation)
    assert results.now.cases == {}
    for _ in range(3):
        simulation.worker.step()
    assert len(results.now.cases) == 2
    asked: list[object] = []
    listener = lambda *given: asked.append(given)  # noqa: E731 # to be taken away again
    event.listen(simulation.store._engine, "before_cursor_execute", listener)
    assert "2 with a result" in said(index(simulation, results))
    event.remove(simulation.store._engine, "before_cursor_execute", listener)
    assert asked == []


def test_simulated_results_are_loudly_called_so_on_every_page(
    address: str, measured: Simulation
) -> None:
    key = next(iter(measured.store.cases()))
    for path in ("/", f"/cases/{key}", "/runs/1"):
        assert "These results are simulated" in http_client.get(address + path).text
    store = TemporaryStore(measured.store.path.parent / "real.db", simulated=False)
    view = index_view(LiveResults(store).now, [], measured.world.clock.now())
    assert "invented" not in render("index.html", page=view, simulated=view.simulated, here="/")


def test_a_case_reports_its_definition_numbers_trend_and_runs(
    address: str, measured: Simulation
) -> None:
    key = next(key for key in measured.store.cases() if "scsi.raw.none/randwrite" in key)
    page = http_client.get(f"{address}/cases/{key}").text
    text = said(page)
    assert "local.scsi.raw.none/randwrite-4k-qd32" in text
    assert "The environment did not change." in text
    assert "iodepth 32" in text
    assert re.search(r"latency write p99 [\d.]+ ms", text)
    assert len(re.findall(r"run \d+ 2026-01-01 00:\d\d:\d\d UTC ok", text)) == 3
    labels = [values.get("aria-label") for tag, values in Reader(page).elements if tag == "svg"]
    assert labels[0] is not None
    assert "write: first " in labels[0]


def test_a_case_that_was_never_measured_has_a_page_too(tmp_path: Path) -> None:
    simulation = simulate(tmp_path)
    key = quick()[1].cases[0].key
    with served(app_of(simulation)) as where:
        assert "Not measured yet." in http_client.get(f"{where}/cases/{key}").text
        # Quoted slashes mean the same.
        assert http_client.get(f"{where}/cases/{key.replace('/', '%2F')}").status_code == 200


def test_changes_of_the_environment_are_marked_with_what_changed(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, cycles=3)
    for _ in range(13):
        simulation.worker.step()
    simulation.world.facts["kernel"] = "simulated-2"
    simulation.world.power_off()
    simulation.worker.run()
    key = next(iter(simulation.store.cases()))
    with served(app_of(simulation)) as where:
        page = http_client.get(f"{where}/cases/{key}").text
    assert "kernel simulated-1 → simulated-2" in said(page)
    assert page.count('class="mark"') == 1


def test_a_run_shows_the_effective_configuration_first_and_every_other_evidence(
    address: str, measured: Simulation
) -> None:
    text = http_client.get(f"{address}/runs/1").text
    titles = re.findall(r"<summary>(.*)</summary>", text)
    assert titles[0] == "Effective configuration, read back after the switch"
    assert titles[1:4] == ["job.fio", "Command in the guest", "Raw output"]
    assert len(titles) == len(measured.store.evidence(1))
    assert "[job]" in text or "rw=" in text
    assert "accel simulated" in said(text)
    assert "Pass 1 of this case in its cycle." in said(text)


def test_what_comes_from_outside_cannot_become_markup(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c1", node=EVIL, pack="p", tier="t", planned=1)
    plain = quick()[1].cases[0]
    case = replace(
        plain,
        scenario=replace(plain.scenario, node=EVIL, storage=EVIL),
        workload=replace(
            plain.workload, title=EVIL, slug=EVIL, parameters={"bs": 4096, EVIL: EVIL}
        ),
    )
    run = ended(
        case,
        START,
        environment=Environment(node=EVIL, facts={EVIL: EVIL}),
        outcome=Outcome.FAILED,
        reason=EVIL,
        evidence={"effective": EVIL, EVIL: EVIL},
    )
    number = store.add_run(run).number
    (tmp_path / "other").mkdir()
    simulation = simulate(tmp_path / "other")
    simulation.worker.status = replace(
        simulation.worker.status,
        node=EVIL,
        case=case,
        phase=Phase.BOOT,
        fault=EVIL,
        upcoming=(case,),
    )
    with served(app_of(simulation, results=LiveResults(store))) as where:
        for path in ("/", f"/runs/{number}", f"/cases/{quote(case.key)}", f"/{quote(EVIL)}"):
            answer = http_client.get(where + path)
            scripts = [
                values.get("src") for tag, values in Reader(answer.text).elements if tag == "script"
            ]
            assert EVIL in Reader(answer.text).text, path
            assert "alert(1)</script>" not in answer.text
            ours = ("/static/pvebench.js", "/static/theme.js")
            assert all(str(src).startswith(ours) for src in scripts), path


def test_a_secret_that_a_driver_let_slip_is_not_shown(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path))
    secret = "a1b2c3d4-aaaa-bbbb"
    texts = [
        f"Authorization: PVEAPIToken=bench@pve!token={secret}",
        f'{{"password": "{secret}"}}',
        f"Cookie: PVEAuthCookie={secret}; path=/",
    ]
    case = simulation.worker.assignments[0].matrix.cases[0]
    simulation.store.begin_cycle("c1", node="lab", pack="p", tier="t", planned=1)
    evidence = {"error": "\n".join(texts)}
    failed = ended(case, START, outcome=Outcome.FAILED, reason=texts[0], evidence=evidence)
    number = simulation.store.add_run(failed).number
    paths = (
        "/",
        f"/runs/{number}",
        f"/cases/{case.key}",
        "/api/v1/runs",
        "/api/v1/results",
        f"/api/v1/runs/{number}",
        f"/api/v1/cases/{case.key}",
    )
    with served(app_of(simulation)) as where:
        for path in paths:
            answer = http_client.get(where + path)
            assert answer.status_code == 200
            assert secret not in answer.text, path
        assert "PVEAPIToken=[hidden]" in http_client.get(f"{where}/runs/{number}").text


def test_every_answer_carries_the_headers_that_keep_a_browser_strict(address: str) -> None:
    for path in ("/", "/runs/1", "/nothing", "/api/v1/status", "/static/pvebench.css", "/metrics"):
        headers = http_client.get(address + path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_pages_have_no_inline_style_or_script(address: str, measured: Simulation) -> None:
    key = next(iter(measured.store.cases()))
    for path in ("/", f"/cases/{key}", "/runs/1", "/nothing"):
        for tag, attributes in Reader(http_client.get(address + path).text).elements:
            assert tag != "style"
            assert "style" not in attributes
            assert tag != "script" or attributes.get("src")
            assert not [name for name in attributes if name.startswith("on")]


def test_an_unknown_page_run_or_case_is_a_helpful_404(address: str) -> None:
    for path, words in (
        ("/nothing", "/nothing not found"),
        ("/runs/999999", "Run 999999 not found"),
        ("/runs/" + "9" * 5000, "Run 999"),
        ("/runs/one", "Run one not found"),
        ("/cases/lab/none", "Case 'lab/none' not found"),
    ):
        answer = http_client.get(address + path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"].startswith("text/html")
        assert words in said(answer.text)
        assert "Next step: " in said(answer.text)


def test_nothing_but_get_and_head_is_possible(address: str) -> None:
    assert httpx2.head(f"{address}/").status_code == 200
    assert httpx2.head(f"{address}/").content == b""
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = http_client.request(method, f"{address}/")
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_a_fault_of_ours_is_reported_without_its_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulate(tmp_path, pack=QUICK)
    app = app_of(simulation)

    def broken(*_: object) -> None:
        raise OSError("a detail for the log")

    monkeypatch.setattr("pvebench.web.endpoints.index_view", broken)
    monkeypatch.setattr("pvebench.web.api.status_data", broken)
    with served(app) as where:
        for path in ("/", "/api/v1/status"):
            answer = http_client.get(where + path)
            assert answer.status_code == 500
            assert "a detail" not in answer.text
            assert "check pvebench's log; runs continue" in said(answer.text)
            assert "content-security-policy" in answer.headers
        assert http_client.get(f"{where}/-/healthy").status_code == 200


def test_static_files_may_be_kept_for_ever_because_their_address_changes(address: str) -> None:
    page = Reader(http_client.get(f"{address}/").text)
    (sheet,) = [v["href"] for tag, v in page.elements if tag == "link" and v["rel"] == "stylesheet"]
    assert re.fullmatch(r"/static/pvebench\.css\?v=[0-9a-f]{12}", str(sheet))
    answer = http_client.get(f"{address}{sheet}")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"].startswith("text/css")
    assert http_client.get(f"{address}/static/..%2fpages.py").status_code == 404


def test_many_viewers_in_one_moment_get_the_same_page_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulate(tmp_path)
    made = []

    def counting(*given: object) -> object:
        made.append(given)
        return index_view(*given)  # type: ignore[arg-type] # passed on

    monkeypatch.setattr("pvebench.web.endpoints.index_view", counting)
    with served(app_of(simulation)) as where:
        for _ in range(5):
            http_client.get(f"{where}/")
        assert len(made) == 1
        simulation.worker.step()
        http_client.get(f"{where}/")
    assert len(made) == 2


def test_reading_many_cases_takes_as_many_questions_as_reading_few(
    tmp_path: Path, measured: Simulation
) -> None:
    few = simulate(tmp_path, pack=write_pack(tmp_path))
    few.worker.run()

    def questions(store: Store) -> int:
        asked: list[object] = []
        listen = lambda *given: asked.append(given)  # noqa: E731 # to be taken away again
        event.listen(store._engine, "before_cursor_execute", listen)
        LiveResults(store)
        event.remove(store._engine, "before_cursor_execute", listen)
        return len(asked)

    # Where no run failed, nobody asks for the numbers of those that did.
    assert questions(few.store) <= questions(measured.store) <= questions(few.store) + 1


def test_boots_and_idle_vms_show_what_was_measured(tmp_path: Path) -> None:
    text = SMALL.replace("workloads:", "workloads:\n  - boot: {}\n  - idle: {}")
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, text))
    simulation.worker.run()
    shown = said(index(simulation))
    assert "no result" not in shown
    assert re.search(r"Boot of the guest.*\d ms|Boot of the guest.*\d s", shown)
    assert "cores" in shown


def test_a_tool_that_only_streams_shows_its_speed_and_what_it_measures_beside(
    tmp_path: Path,
) -> None:
    pack = SMALL.replace("fio: {rw: randread, bs: 4k, iodepth: 8}", "hdparm: {cached: true}")
    simulation = simulate(tmp_path, pack=write_pack(tmp_path, pack))
    simulation.worker.run()
    key = simulation.recorder.runs[0].case.key
    with served(app_of(simulation)) as where:
        text = said(http_client.get(f"{where}/cases/{key}").text)
    assert "In addition to the disk, this workload measures cache." in text
    assert "MiB/s read" in text or "GiB/s read" in text


def test_while_a_history_is_analyzed_the_page_does_not_ask_for_more_runs(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path), cycles=7)
    simulation.worker.run()
    now = simulation.world.clock.now()
    assert index_view(results_of(simulation).now, [], now).verdict == (
        "Analyzing the history. The first verdict will appear here."
    )
    cost = WriteCost(node="lab", storage="local", cycle_bytes=1, day_bytes=2**30)
    other = replace(cost, storage="other")
    content = replace(
        results_of(simulation).now,
        costs=(cost, other),
        devices={"lab/local": "990 PRO", "lab/other": "x"},
    )
    view = index_view(content, [], now)
    assert view.device == "990 PRO"
    assert view.costs == (cost.text,)
    assert "1.0 GiB per day, 365.0 GiB per year; no write budget" in view.costs[0]


def test_the_page_shows_the_note_as_it_is_now(tmp_path: Path) -> None:
    simulation, notes = simulate(tmp_path, cycles=1), ["Day 90 of 365."]
    simulation.worker.step()
    with served(app_of(simulation, note=lambda: notes[-1])) as address:
        for text in ("Day 90 of 365.", "Day 200 of 365.", ""):
            notes.append(text)
            shown = said(http_client.get(f"{address}/").text)
            assert f"no disk was measured. {text}".strip() in shown
            assert shown.count("of 365.") == bool(text)
