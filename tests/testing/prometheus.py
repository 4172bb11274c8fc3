"""A real Prometheus on a free port, scraping what a test serves."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2

from testing import http_client
from testing.packs import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str, *, at: float | None = None) -> list[dict[str, Any]]:
        asked: dict[str, Any] = {"query": expression} | ({} if at is None else {"time": at})
        answer = http_client.post(f"{self.address}/api/v1/query", data=asked, timeout=300).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def query_range(
        self, expression: str, *, days: float, step: float, end: float | None = None
    ) -> list[dict[str, Any]]:
        now = time.time() if end is None else end
        asked = {"query": expression, "start": now - days * 86400, "end": now, "step": step}
        answer = http_client.post(
            f"{self.address}/api/v1/query_range", data=asked, timeout=300
        ).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def wait_for(self, expression: str, *, seconds: float = 300.0) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while not (found := self.query(expression)):
            assert time.monotonic() < deadline, f"Prometheus has no {expression}"
            time.sleep(0.5)
        return found

    def rule_groups(self) -> list[dict[str, Any]]:
        """Return its rule groups: each with its file, its rules, and when it was evaluated."""
        answer = http_client.get(f"{self.address}/api/v1/rules", timeout=300).json()
        assert answer["status"] == "success", answer
        groups: list[dict[str, Any]] = answer["data"]["groups"]
        return groups

    def wait_for_rules(self, *, seconds: float = 300.0) -> None:
        """Wait until every rule has been evaluated on what is there now and has its series.

        When a group is evaluated within the interval depends on the path of its file: that one
        group is done says nothing of another. Alerts have series from the third evaluation on
        (`RestoreForState` in Prometheus' rules/manager.go).
        """
        since, deadline = time.time(), time.monotonic() + seconds
        while late := self._late_rules(since):
            assert time.monotonic() < deadline, f"rules not ready in {seconds:.0f} s: {late}"
            time.sleep(0.2)

    def _late_rules(self, since: float) -> dict[str, Any]:
        groups = self.rule_groups()
        if not groups or (late := late_groups(groups, since)):
            return late if groups else {"rules": "there are none"}
        stored = {one["metric"]["alertname"] for one in self.query(FIRING)}
        return dict.fromkeys(firing(groups) - stored, "fires, but has no series")


FIRING = 'ALERTS{alertstate="firing"}'


def firing(groups: list[dict[str, Any]]) -> set[str]:
    """Return the alerts that fire."""
    every = (rule for group in groups for rule in group["rules"])
    return {one["name"] for one in every if one.get("state") == "firing"}


def late_groups(groups: list[dict[str, Any]], since: float) -> dict[str, Any]:
    """Return group -> when it was evaluated and what failed, of those not well since a moment."""
    found = {}
    for group in groups:
        failed = [one for one in group["rules"] if one["health"] != "ok"]
        if evaluated(group) <= since or failed:
            errors = {one["name"]: one.get("lastError", one["health"]) for one in failed}
            found[f"{group['file']}: {group['name']}"] = group["lastEvaluation"], errors
    return found


def evaluated(group: dict[str, Any]) -> float:
    """Return when a rule group was evaluated last, in seconds since the epoch; before 1970: never.

    Python's own parser knows microseconds at most.
    """
    text = re.sub(r"(\.\d{6})\d+", r"\1", group["lastEvaluation"])
    return (datetime.fromisoformat(text) - datetime.fromtimestamp(0, UTC)).total_seconds()


@contextmanager
def prometheus(
    directory: Path,
    exporter: str | None,
    *options: str,
    seconds: int = 1,
    evaluate: int | None = None,
    rules_of: Iterable[Path] = (),
    remote_write: str = "",
    scrape: str = "",
) -> Iterator[Prometheus]:
    """Run Debian's Prometheus with the repository's configuration, scraping every few seconds.

    Args:
        exporter: host:port of the file of targets; None: it has none.
        evaluate: seconds between evaluations of the rules; None: as between scrapes.
        rules_of: further directories whose rules it has, as a Prometheus there would.
        remote_write: where everything is sent on to; empty: nowhere.
        scrape: further YAML of the job pvebench.
    """
    config = directory / "config"
    every = [place / "config" / "rules" for place in (directory, *rules_of)]
    for rules in every:
        shutil.copytree(ROOT / "prometheus" / "rules", rules, dirs_exist_ok=True)
    text = (ROOT / "prometheus" / "prometheus.yml").read_text("utf-8")
    fast = text.replace("scrape_interval: 15s", f"scrape_interval: {seconds}s")
    often = f"evaluation_interval: {evaluate or seconds}s"
    assert fast != text
    assert "evaluation_interval: 15s" in fast
    fast = fast.replace("evaluation_interval: 15s", often)
    own = "  - rules/*.yml\n"
    assert own in fast
    fast = fast.replace(own, "".join(f"  - {rules}/*.yml\n" for rules in every))
    job = "  - job_name: pvebench\n"
    assert job in fast
    own = "" if "honor_labels" in scrape else "    honor_labels: true\n"
    fast = fast.replace("    honor_labels: true\n", own).replace(job, job + scrape)
    if remote_write:
        fast += f"\nremote_write:\n  - url: {remote_write}\n"
    (config / "prometheus.yml").write_text(fast, "utf-8")
    (config / "targets").mkdir(exist_ok=True)
    targets = [] if exporter is None else [{"targets": [exporter]}]
    (config / "targets" / "pvebench.yml").write_text(json.dumps(targets))
    for nobody in ("node", "alertmanager"):
        (config / "targets" / f"{nobody}.yml").write_text("[]")
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={config}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address={address}",
        "--storage.tsdb.retention.time=2y",
        "--log.level=warn",
        *options,
    ]
    with subprocess.Popen(command) as process:
        try:
            wait_until_ready(f"http://{address}/-/ready")
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()


def backfill(path: Path, data: Path) -> None:
    """Put an OpenMetrics file into the data directory of a Prometheus that is not running."""
    subprocess.run(
        [
            "promtool",
            "tsdb",
            "create-blocks-from",
            "--max-block-duration=486h",
            "openmetrics",
            str(path),
            str(data),
        ],
        check=True,
        capture_output=True,
        timeout=300,
    )


def wait_until_ready(address: str) -> None:
    """Wait until a server answers with 200."""
    deadline = time.monotonic() + 300
    while True:
        try:
            if http_client.get(address).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        assert time.monotonic() < deadline, f"{address} does not answer"
        time.sleep(0.1)
