"""Recording and alert rules: valid, each tested, each alert with a runbook."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from ruamel.yaml import YAML

from pvebench.analysis.verdict import VerdictState
from pvebench.metrics.exposition import Page
from pvebench.metrics.result_collectors import Snapshot
from pvebench.model.run_metrics import JUDGED
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.server import sections
from testing.changes import START, upgrade
from testing.packs import ROOT
from testing.stores import TemporaryStore

RULES = ROOT / "prometheus" / "rules"
TESTS = ROOT / "prometheus" / "tests"
RUNBOOKS = ROOT / "docs" / "runbooks.md"


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def rules(kind: str) -> list[dict[str, Any]]:
    return [
        rule
        for path in sorted(RULES.glob("*.yml"))
        for group in load(path)["groups"]
        for rule in group["rules"]
        if kind in rule
    ]


def alerts() -> list[dict[str, Any]]:
    return rules("alert")


def expectations() -> list[dict[str, Any]]:
    return [
        expectation
        for path in sorted(TESTS.glob("*.yml"))
        for test in load(path)["tests"]
        for expectation in test["promql_expr_test"]
    ]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_the_rules_are_valid_and_promtool_has_nothing_to_say() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES.glob("*.yml")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_do_what_their_tests_say() -> None:
    done = promtool("test", "rules", *map(str, TESTS.glob("*.yml")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_index_turns_round_every_figure_of_which_less_is_better() -> None:
    text = (ROOT / "prometheus" / "rules" / "pvebench.yml").read_text("utf-8")
    named = set(re.findall(r'pvebench_change_ratio\{metric[=!]~"([^"]+)"', text))
    assert named == {"|".join(name for name, one in JUDGED.items() if one.more_is_better)}


def test_the_examples_of_receivers_are_valid_for_alertmanager(tmp_path: Path) -> None:
    example = ROOT / "prometheus" / "alertmanager" / "alertmanager.yml"
    assert amtool(example).returncode == 0
    broken = tmp_path / "broken.yml"
    broken.write_text(
        example.read_text("utf-8").replace("receiver: phone", "receiver: fax"), "utf-8"
    )
    assert 'undefined receiver "fax"' in amtool(broken).stdout


def test_a_lost_exporter_and_the_dead_mans_switch_go_where_the_examples_say() -> None:
    example = str(ROOT / "prometheus" / "alertmanager" / "alertmanager.yml")
    for labels, expected in (
        ("alertname=PVEBenchWatchdog", "watchdog"),
        ("alertname=PVEBenchExporterDown severity=warning", "phone,mail"),
        ("alertname=PVEBenchNoisy severity=info", "phone"),
    ):
        told = subprocess.run(
            ["amtool", "config", "routes", "test", f"--config.file={example}", *labels.split()],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        assert told.stdout.strip() == expected


def amtool(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["amtool", "check-config", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_tests_see_a_rule_that_does_something_else(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "tests").mkdir()
    for path in [*RULES.glob("*.yml"), *TESTS.glob("*.yml")]:
        text = path.read_text("utf-8").replace("> 2.5", "> 25").replace("== -2", "== -1")
        (tmp_path / path.parent.name / path.name).write_text(text, "utf-8")
    for path in (tmp_path / "tests").glob("*.yml"):
        assert promtool("test", "rules", str(path)).returncode != 0, path


def test_one_upgrade_is_one_alert_however_many_cases_and_figures_it_moved(tmp_path: Path) -> None:
    """By Prometheus' own program; the page is what the exporter makes of the runs."""
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    upgrade(store, slower=1.25)
    page = Page(lambda: Snapshot(now=START, records=[]), live={})
    verdicts = VerdictService(LiveResults(store), (), on_update=page.judged).judge()
    store.close()
    assert verdicts.counts()[VerdictState.SLOWER] > 6
    test = {
        "interval": "1m",
        "input_series": [
            {"series": series_of(sample), "values": f"{sample.value!r}x30"}
            for family in text_string_to_metric_families(page.render()[0].decode())
            for sample in family.samples
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{severity=~"warning|critical"})',
                "eval_time": "20m",
                "exp_samples": [{"labels": '{alertname="PVEBenchChange"}', "value": 1}],
            }
        ],
        "alert_rule_test": [],
    }
    rules = [str(path) for path in RULES.glob("*.yml")]
    file = tmp_path / "year.yml"
    file.write_text(json.dumps({"rule_files": rules, "tests": [test]}), "utf-8")
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def series_of(sample: Sample) -> str:
    labels = ", ".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
    return f"{sample.name}{{{labels}}}"


@pytest.mark.parametrize("rule", rules("record"), ids=lambda rule: str(rule["record"]))
def test_every_recording_rule_has_an_expected_value(rule: dict[str, Any]) -> None:
    values = [one for one in expectations() if rule["record"] in one["expr"]]
    assert any(one["exp_samples"] for one in values)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_every_alert_is_seen_firing_and_not_firing(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    seen = [bool(one["exp_samples"]) for one in expectations() if f'"{name}"' in one["expr"]]
    assert True in seen
    # The watchdog is the one that must never be silent.
    assert False in seen or name == "PVEBenchWatchdog"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_every_alert_says_what_it_is_and_leads_to_its_runbook(alert: dict[str, Any]) -> None:
    assert alert["alert"].startswith("PVEBench")
    # A change brings its own, one of those of `judging.change`.
    own = "{{ $labels.severity }}"
    assert alert["labels"]["severity"] in {"none", "info", "warning", "critical", own}
    assert ("pvebench_change_info" in alert["expr"]) == (alert["labels"]["severity"] == own)
    texts = alert["annotations"]
    assert texts["summary"]
    assert texts["description"]
    # By the address of the page: a path in a repository leads nowhere from a mail.
    page, _, name = texts["runbook_url"].partition("/runbooks/")
    assert "pvebench_web_info" in page
    assert sections()[name.lower()].startswith(f"{name}\n\n")
    headings = re.findall(r"^## (\w+)$", RUNBOOKS.read_text("utf-8"), flags=re.MULTILINE)
    assert alert["alert"] in headings


def test_every_runbook_has_its_alert() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOKS.read_text("utf-8"), flags=re.MULTILINE)
    assert sorted(headings) == sorted(alert["alert"] for alert in alerts())
