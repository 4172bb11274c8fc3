"""What `pvebench print` writes is read by the programs that it is for.

The scrape job and the rules by promtool, what http_sd finds by Prometheus, both of Debian 12
(2.42). The import form by the rule of Grafana 12.4's `dash_template_evaluator.go`: each `${NAME}`
of `__inputs` is replaced in every text.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pvebench.cli.main import run_cli
from pvebench.provision.grafana import shipped_dashboards
from testing.metrics_page import page_of
from testing.packs import ROOT
from testing.prometheus import prometheus
from testing.simulated_site import app_of, served
from testing.simulations import simulate

Captured = pytest.CaptureFixture[str]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["promtool", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def whole(job: str, directory: Path) -> Path:
    config = directory / "prometheus.yml"
    config.write_text("global: {scrape_interval: 15s}\n" + job, "utf-8")
    return config


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--target", "bench.example.org:10620", "--target", "[2001:db8::1]:10620"],
        ["--file-sd", "/etc/prometheus/pvebench-targets.json"],
        ["--http-sd", "https://example.org/targets?a=\"'#: b"],
    ],
)
def test_the_job_is_one_that_prometheus_takes(
    options: list[str], tmp_path: Path, capsys: Captured
) -> None:
    assert run_cli(["print", "prometheus", *options]) == 0
    done = promtool("config", whole(capsys.readouterr().out, tmp_path))
    assert done.returncode == 0, done


def test_the_job_is_the_one_of_our_own_stack(capsys: Captured) -> None:
    assert run_cli(["print", "prometheus"]) == 0
    (printed,) = YAML(typ="safe").load(capsys.readouterr().out)["scrape_configs"]
    stack = YAML(typ="safe").load(ROOT / "prometheus/prometheus.yml")["scrape_configs"]
    (own,) = (job for job in stack if job["job_name"] == "pvebench")
    assert {**own, **printed} == {**own, "static_configs": [{"targets": ["127.0.0.1:10620"]}]}


def test_the_files_are_rules_and_targets_that_prometheus_takes(
    tmp_path: Path, capsys: Captured
) -> None:
    assert run_cli(["print", "prometheus", "--target", "b:1", "--output", str(tmp_path)]) == 0
    rules = sorted(tmp_path.glob("*.yml"))
    assert [path.name for path in rules] == [
        "pvebench-alerts.yml",
        "pvebench-rules.yml",
        "pvebench-scrape.yml",
    ]
    # The lines for prometheus.yml; Debian 12 has no scrape_config_files.
    *_, files, included = capsys.readouterr().out.splitlines()
    assert files.startswith(f'scrape_config_files: ["{rules[2]}"]')
    done = promtool("config", whole(included, tmp_path / ".."))
    assert (done.returncode, "2 rule files found" in done.stdout) == (0, True), done
    done = promtool("rules", *rules[:2])
    assert (done.returncode, "SUCCESS" in done.stdout) == (0, True), done
    targets = tmp_path / "pvebench-targets.json"
    assert json.loads(targets.read_text("utf-8")) == [{"targets": ["b:1"], "labels": {}}]
    job = f'scrape_configs: [{{job_name: p, file_sd_configs: [{{files: ["{targets}"]}}]}}]\n'
    done = promtool("config", whole(job, tmp_path))
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False), done


def test_tls_of_the_settings_is_in_the_job_and_the_address_too(
    tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "pvebench.yaml").write_text("listen: 192.0.2.1:9999\n", "utf-8")
    assert run_cli(["print", "prometheus", "--config", str(tmp_path / "pvebench.yaml")]) == 0
    captured = capsys.readouterr()
    assert '"192.0.2.1:9999"' in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("target", ["x", "http://x:1", "x:1/metrics", "a b:1", "x:123456", 'a"b:1'])
def test_what_is_no_target_is_refused(target: str) -> None:
    assert run_cli(["print", "prometheus", "--target", target]) == 2


def test_prometheus_scrapes_what_it_discovers_at_the_service_itself(
    tmp_path: Path, capsys: Captured
) -> None:
    simulation = simulate(tmp_path)
    with served(app_of(simulation, page=page_of(simulation))) as address:
        assert run_cli(["print", "prometheus", "--http-sd", f"{address}/metrics/targets"]) == 0
        printed = capsys.readouterr().out
        discovery = printed[printed.index("    http_sd_configs:") :]
        with prometheus(tmp_path, None, scrape=discovery) as server:
            (found,) = server.wait_for("up{job='pvebench'} == 1", seconds=60)
            assert found["metric"]["instance"] == address.removeprefix("http://")
            assert server.wait_for("pvebench_build_info")


def imported(node: Any, inputs: dict[str, str]) -> Any:
    """What Grafana makes of a file and the answers in its dialogue."""
    if isinstance(node, dict):
        return {key: imported(value, inputs) for key, value in node.items() if key != "__inputs"}
    if isinstance(node, list):
        return [imported(value, inputs) for value in node]
    if isinstance(node, str):
        return re.sub(r"\$\{.+?\}", lambda found: inputs.get(found[0], found[0]), node)
    return node


def test_the_import_dialogue_asks_for_one_data_source_and_all_panels_use_it(
    tmp_path: Path, capsys: Captured
) -> None:
    assert run_cli(["print", "dashboards", "--output", str(tmp_path)]) == 0
    for name, own in shipped_dashboards().items():
        file = json.loads((tmp_path / name).read_text("utf-8"))
        (asked,) = file["__inputs"]
        assert (asked["type"], asked["pluginId"]) == ("datasource", "prometheus")
        result = imported(file, {f"${{{asked['name']}}}": "chosen"})
        text = json.dumps(result)
        assert "DS_PROMETHEUS" not in text
        assert "pvebench-prometheus" not in text
        assert '"chosen"' in text
        assert (result["uid"], result["title"]) == (own["uid"], own["title"])
        required = {(one["type"], one["id"]) for one in file["__requires"]}
        versions = {one["version"] for one in file["__requires"] if one["type"] == "grafana"}
        assert versions == {"12.4.0"}
        assert {
            ("panel", panel["type"]) for panel in own["panels"] if panel["type"] != "row"
        } <= required


def test_one_dashboard_is_printed_by_its_name_and_a_wrong_name_reports_them(
    capsys: Captured,
) -> None:
    assert run_cli(["print", "dashboards", "overview"]) == 0
    assert json.loads(capsys.readouterr().out)["uid"] == "pvebench-overview"
    for name in ("../overview", "nothing", "/etc/passwd"):
        assert run_cli(["print", "dashboards", name]) == 2
        error = capsys.readouterr().err
        assert f"unknown dashboard {name!r}; use one of before-after-upgrade" in error
