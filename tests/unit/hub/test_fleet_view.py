"""The hub's page, its metrics and the alerts about them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import Mock
from urllib.request import urlopen

import pytest
from ruamel.yaml import YAML

from pvebench.model.environment import Affected, KnownIssue
from pvebench.web.server import WebServer
from pvebench.web.server import listen as open_socket
from pvebench_fleet.hub import fleet_view
from pvebench_fleet.hub.app import METRICS, FleetPages, Readers, make_pages, metrics_text, page_text
from pvebench_fleet.hub.fleet_view import (
    BEHIND_SECONDS,
    NO_SITE_SECONDS,
    SILENT_SECONDS,
    SKEW_SECONDS,
    Compared,
    compared,
    findings,
    upgrades,
)
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.hub.store.overview import FleetView, NodeLine, Overview, WorstCase
from testing.hub_requests import GRAZ, NOW, SETTINGS
from testing.packs import ROOT
from testing.prometheus import free_port
from testing.site_effects import sites_with

OVERVIEW = Overview(
    sites=[GRAZ, replace(GRAZ, name="new", contact=None, newest_run=None, skew=None)],
    nodes=[NodeLine(site="graz", node='p"1', unjudged=7, judged_at=0.0, failed="KeyError: x")],
    worst=[
        WorstCase(
            site="graz", node="pve1", key="pve1/a/b/c", direction="read", metric="throughput",
            state="slower", change=-0.4,
        )
    ],
)  # fmt: skip
RULES = ROOT / "prometheus" / "hub"


def test_the_page_shows_upgrades_sites_judging_and_worst_cases() -> None:
    found = upgrades(FleetView(effects=sites_with(4), facts={"bregenz": [{"kernel": "6.14.5"}]}))
    text = page_text(OVERVIEW, Compared(upgrades=found), name="fleet", now=NOW)
    for part in (
        "Everything is 5.0% slower at 4 of 12 sites since kernel 6.14.8",
        "Still to come: bregenz",
        "<td>held, clock off by ",
        "&lt;b&gt;slower&lt;/b&gt;",
        "new</a></td><td>held</td><td>never</td><td>never</td>",
        "<td>7</td><td>never</td><td>KeyError: x</td>",
        "<td>pve1/a/b/c</td><td>read throughput</td><td>-40.0%</td>",
    ):
        assert part in text
    assert "<b>slower" not in text
    assert re.search(r"<td>site00</td><td>-\d\.\d% \(-\d\.\d% to -\d\.\d%\)</td>", text)


def test_no_site_reverses_or_hides_text_on_the_page() -> None:
    site = replace(GRAZ, name="a\u202ezarg\u2066\u200b")
    text = page_text(replace(OVERVIEW, sites=[site]), Compared(), name="f\u202eleet", now=NOW)
    assert "zarg" in text
    assert text.replace("\n", "").isprintable()


def test_metrics_have_help_escaped_labels_and_every_name() -> None:
    text = metrics_text(OVERVIEW, Compared())
    assert 'pvebench_hub_site_info{site="graz",state="held"} 1.0\n' in text
    assert 'pvebench_hub_node_unjudged_runs{node="p\\"1",site="graz"} 7.0\n' in text
    assert 'pvebench_hub_site_contact_timestamp_seconds{site="new"} 0.0\n' in text
    assert set(re.findall("^# TYPE (.*) gauge$", text, re.MULTILINE)) == set(METRICS)
    assert set(re.findall("^([a-z_]+)[{ ]", text, re.MULTILINE)) == set(METRICS)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_are_valid_tested_and_about_existing_metrics() -> None:
    for command in (
        ["check", "rules", "--lint=all", "--lint-fatal", str(RULES / "alerts.yml")],
        ["test", "rules", str(RULES / "tests.yml")],
    ):
        done = subprocess.run(
            ["promtool", *command], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rules = (RULES / "alerts.yml").read_text("utf-8")
    assert set(re.findall(r"\bpvebench_hub_[a-z_]+", rules)) <= set(METRICS)
    tested = (RULES / "tests.yml").read_text("utf-8")
    for rule in YAML(typ="safe").load(rules)["groups"][0]["rules"]:
        assert tested.count(f"alertname: {rule['alert']}") >= 1


def test_the_alerts_page_and_doctor_have_the_same_limits() -> None:
    rules = YAML(typ="safe").load((RULES / "alerts.yml").read_text("utf-8"))
    expressions = {rule["alert"]: rule["expr"] for rule in rules["groups"][0]["rules"]}
    limits = {
        name: one.partition(" and ")[0].rpartition("> ")[2].strip()
        for name, one in expressions.items()
    }
    assert float(limits["PVEBenchHubSiteSilent"]) == SILENT_SECONDS
    assert float(limits["PVEBenchHubNoSite"]) == NO_SITE_SECONDS
    assert float(limits["PVEBenchHubSiteSkew"]) == SKEW_SECONDS
    assert limits["PVEBenchHubJudgingBehind"] == f"{BEHIND_SECONDS / 86400:.0f} * 86400"
    for skew, named in ((SKEW_SECONDS, False), (SKEW_SECONDS + 1, True)):
        shown = Overview(sites=[replace(GRAZ, contact=NOW, skew=skew)])
        assert ("clock off" in page_text(shown, Compared(), name="", now=NOW)) is named
        assert any("clock off" in text for _, text in findings(shown, SETTINGS, NOW)) is named


def test_page_and_metrics_come_from_the_database_with_the_role_that_reads_all_sites(
    hub: HubDatabase, login: str
) -> None:
    hub.add_token("graz", "a" * 64)
    reader = HubDatabase(login, role="pvebench_overview")
    address = f"127.0.0.1:{free_port()}"
    app = make_pages(Readers(everyone=FleetPages(reader, [], "fleet")))
    with WebServer(app, open_socket(address)):
        with urlopen(f"http://{address}/", timeout=60) as answer:
            policy = answer.headers["content-security-policy"]
            for part in ("default-src", "frame-ancestors", "base-uri", "form-action"):
                assert f"{part} 'none'" in policy
            assert b"graz</a></td><td>active</td><td>never</td>" in answer.read()
        with urlopen(f"http://{address}/metrics", timeout=60) as answer:
            assert b'pvebench_hub_site_runs_received{site="graz"} 0.0\n' in answer.read()
    reader.close()


def test_sites_are_compared_once_as_long_as_no_data_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade = Mock(return_value=[])
    monkeypatch.setattr(fleet_view, "upgrades", upgrade)
    compared(FleetView(effects=sites_with(4)), [])
    assert upgrade.call_count == 1


def test_a_site_whose_data_fails_is_named_and_the_others_are_compared_and_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def holds(self: KnownIssue, facts: Mapping[str, str]) -> Affected | None:
        return self.affected[0] if int(facts["kernel"]) else None

    monkeypatch.setattr(KnownIssue, "holds", holds)
    issue = KnownIssue(
        id="R0", title="slow", kind="slower", affected=(Affected(fact="kernel", since="1"),),
        moves=("throughput",), options={},
    )  # fmt: skip
    facts = {"graz": [{"kernel": "²"}], "linz": [{"kernel": "7"}]}
    found = compared(FleetView(effects=sites_with(4), facts=facts), [issue])
    assert found.failed == {"graz": "ValueError"}
    assert [sites for _, sites in found.issues] == [["linz"]]
    assert len(found.upgrades) == 1
    broken = replace(GRAZ, contact=float("-inf"))
    overview = Overview(sites=[broken, replace(GRAZ, name="linz")])
    text = page_text(overview, found, name="", now=NOW)
    assert "graz is not compared: ValueError" in text
    assert "<td>graz</td><td>not shown: see the log of `hub pages`</td>" in text
    assert "linz</a></td><td>held, clock off by" in text
    assert "pvebench_hub_sites_not_compared 1.0\n" in metrics_text(overview, found)
