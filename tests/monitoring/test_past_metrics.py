"""Rebuilding Prometheus' history from the store: export, promtool, every run is found again."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pvebench.config import Settings
from pvebench.metrics.exposition import Families
from pvebench.metrics.state_metrics import LATENCY
from pvebench.metrics.verdict_collectors import collect_changes
from pvebench.model.run import LATENCY_BOUNDS
from pvebench.service.publisher import page_of
from pvebench.store.store import Store
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.web.endpoints import Pages
from pvebench.web.server import WebServer, listen, make_app
from pvebench_lab.cli.demo import SHOWN, firing_alerts
from pvebench_lab.cli.past_metrics import Period, write_past
from testing import http_client
from testing.changes import FINDING
from testing.demo_year import filled_store, results_of
from testing.families import families_of
from testing.packs import ROOT
from testing.prometheus import Prometheus, backfill, free_port, prometheus

HOUR = 3600.0


def exported(store: Store, path: Path, window: Period) -> Path:
    with path.open("w", encoding="utf-8") as file:
        write_past(results_of(store), Settings(), window, file)
    return path


def changes(server: Prometheus, name: str, start: float, end: float) -> set[tuple[str, float]]:
    """Return (scenario, workload) as text and every value that a metric ever had."""
    answer = http_client.get(
        f"{server.address}/api/v1/query",
        params={"query": f"{name}[{int(end - start)}s]", "time": end},
        timeout=300,
    ).json()
    return {
        (entry["metric"]["scenario"] + "/" + entry["metric"]["workload"], float(value))
        for entry in answer["data"]["result"]
        for _, value in entry["values"]
    }


def test_after_a_gap_a_backfill_has_every_run(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    # promtool refuses nothing, but Prometheus compacts the last three hours itself.
    store = filled_store(tmp_path, days=3, end=now - timedelta(hours=4))
    runs = store.runs(limit=10_000)
    exporter = f"127.0.0.1:{free_port()}"
    results = results_of(store)
    app = make_app(page_of(results, lambda: SHOWN), Pages(results, list))
    with WebServer(app, listen(exporter)):
        with prometheus(tmp_path, exporter) as server:
            server.wait_for("pvebench_iops")
        # It is down; what was measured before is not in it.
        window = Period(
            start=(now - timedelta(days=3, hours=5)).timestamp(),
            end=now.timestamp() - 3 * HOUR,
            step=HOUR,  # every run is in it whatever the step: what is held between is not asked
            labels={"job": "pvebench", "instance": exporter},
        )
        backfill(exported(store, tmp_path / "past.om", window), tmp_path / "data")
        with prometheus(tmp_path, exporter) as server:
            found = changes(server, "pvebench_run_timestamp_seconds", window.start, window.end)
            joined = server.wait_for("count without () (pvebench_run_timestamp_seconds)")
    store.close()
    good = {
        (f"{run.scenario}/{run.workload}", run.finished.timestamp())
        for run in runs
        if run.outcome.good
    }
    assert len(good) > 300
    assert good <= found
    # The past continues the series that a scrape makes: there are not two of each.
    assert len(joined) == len({name for name, _ in good})


def test_the_text_is_what_openmetrics_asks_for(tmp_path: Path) -> None:
    store = filled_store(tmp_path, days=1)
    end = datetime.now(UTC).timestamp()
    window = Period(start=end - HOUR, end=end, labels={"job": "pvebench", "instance": "x:1"})
    text = exported(store, tmp_path / "past.om", window).read_text("utf-8")
    store.close()
    families = {
        family.name: family for family in text_string_to_metric_families(of_one_moment(text))
    }
    assert families[LATENCY.name].samples
    moments = [sample.timestamp for sample in families["pvebench_iops"].samples]
    assert min(float(moment) for moment in moments) >= window.start
    assert max(float(moment) for moment in moments) < window.end
    one = families["pvebench_iops"].samples[0].labels
    held = [
        float(sample.timestamp)
        for sample in families["pvebench_iops"].samples
        if sample.labels == one
    ]
    gaps = [later - earlier for earlier, later in itertools.pairwise(held)]
    assert max(gaps) <= 240
    assert families["pvebench_scenario_info"].samples
    assert families["pvebench_environment_start_timestamp_seconds"].samples


def of_one_moment(text: str) -> str:
    """All of it, but of histograms their last moment only.

    prometheus_client's parser takes a bucket's second moment for a repetition of its first, and
    then misses the buckets that it has dropped; Prometheus' own is asked below.
    """
    lines = text.splitlines(keepends=True)
    last = max(line.split()[-1] for line in lines if line.startswith(f"{LATENCY.name}_"))
    return "".join(
        line
        for line in lines
        if not line.startswith(f"{LATENCY.name}_") or line.endswith(f" {last}\n")
    )


def test_the_samples_of_a_histogram_stand_together_at_each_moment(tmp_path: Path) -> None:
    """As OpenMetrics demands: not a bucket's whole time after another's."""
    store = filled_store(tmp_path, days=1)
    end = datetime.now(UTC).timestamp()
    text = exported(store, tmp_path / "past.om", Period(start=end - HOUR, end=end)).read_text()
    store.close()
    lines = [line for line in text.splitlines() if line.startswith(f"{LATENCY.name}_")]
    together = [len(list(same)) for _, same in itertools.groupby(lines, key=whose_and_when)]
    assert len(together) > 1
    assert set(together) == {len(LATENCY_BOUNDS) + len(("_count", "_sum"))}


def whose_and_when(line: str) -> tuple[str, str]:
    """The labels of a sample without the bound of its bucket, and its time."""
    labels = line[line.index("{") : line.rindex("}")]
    return re.sub(r'le="[^"]*",', "", labels), line.rsplit(maxsplit=1)[-1]


def test_the_command_writes_what_promtool_takes(tmp_path: Path) -> None:
    filled_store(tmp_path, days=0.5).close()
    out = tmp_path / "past.om"
    command = [
        "pvebench",
        "export",
        "openmetrics",
        "--state",
        str(tmp_path),
        "--step",
        "240",
        "--instance",
        "127.0.0.1:1",
        "--output",
        str(out),
    ]
    from pvebench.cli.main import run_cli

    assert run_cli(command[1:]) == 0
    backfill(out, tmp_path / "blocks")
    listed = subprocess.run(
        ["promtool", "tsdb", "list", str(tmp_path / "blocks")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.dumps(listed.stdout).count("\\n") > 1


def test_past_alerts_are_those_that_the_rules_raise(tmp_path: Path) -> None:
    """Witness: promtool evaluates the shipped rules on the exposed changes."""
    open_ = {"storages": ("a",), "known": True, "came_with": ()}
    changes = (
        replace(FINDING, id="slow", severity="critical", **open_),
        replace(FINDING, id="gain", severity="warning", reason="too good", **open_),
        replace(FINDING, id="better", severity="info", **open_),
        replace(FINDING, id="over", severity="warning", state="resolved", **open_),
    )
    verdicts = Verdicts(changes=changes)
    families = Families()
    collect_changes(verdicts, families)
    infos = [
        sample.labels
        for family in families_of(families)
        for sample in family.samples
        if sample.name == "pvebench_change_info"
    ]
    fired = Families()
    firing_alerts(verdicts, fired)
    alerts = [sample.labels for family in families_of(fired) for sample in family.samples]
    assert {labels["change"] for labels in alerts} == {"slow", "gain"}
    series = [{"series": series_of("pvebench_change_info", one), "values": "1x10"} for one in infos]
    check = {
        "expr": 'ALERTS{alertname=~"PVEBenchChange|PVEBenchImplausibleGain"}',
        "eval_time": "5m",
        "exp_samples": [{"labels": series_of("ALERTS", one), "value": 1} for one in alerts],
    }
    path = tmp_path / "alerts.yml"
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [check]}
    rules = [str(ROOT / "prometheus/rules/alerts.yml")]
    path.write_text(json.dumps({"rule_files": rules, "tests": [test]}), "utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def series_of(name: str, labels: dict[str, str]) -> str:
    return (
        name + "{" + ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items()) + "}"
    )
