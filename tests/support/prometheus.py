"""A real Prometheus on a free port, scraping what a test serves."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from support import asking
from support.packs import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str, *, at: float | None = None) -> list[dict[str, Any]]:
        asked: dict[str, Any] = {"query": expression} | ({} if at is None else {"time": at})
        answer = asking.post(f"{self.address}/api/v1/query", data=asked, timeout=300).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def query_range(
        self, expression: str, *, days: float, step: float, end: float | None = None
    ) -> list[dict[str, Any]]:
        now = time.time() if end is None else end
        asked = {"query": expression, "start": now - days * 86400, "end": now, "step": step}
        answer = asking.post(f"{self.address}/api/v1/query_range", data=asked, timeout=300).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def wait_for(self, expression: str, *, seconds: float = 300.0) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while not (found := self.query(expression)):
            assert time.monotonic() < deadline, f"Prometheus has no {expression}"
            time.sleep(0.5)
        return found


@contextmanager
def prometheus(
    directory: Path,
    exporter: str | None,
    *options: str,
    seconds: int = 1,
    remote_write: str = "",
    scrape: str = "",
) -> Iterator[Prometheus]:
    """Run Debian's Prometheus with the repository's configuration, scraping every few seconds.

    Args:
        exporter: host:port of the file of targets; None: it has none.
        remote_write: where everything is sent on to; empty: nowhere.
        scrape: further YAML of the job pvebench.
    """
    config = directory / "config"
    shutil.copytree(ROOT / "prometheus" / "rules", config / "rules", dirs_exist_ok=True)
    text = (ROOT / "prometheus" / "prometheus.yml").read_text("utf-8")
    fast = text.replace("_interval: 15s", f"_interval: {seconds}s")
    assert fast != text
    job = "  - job_name: pvebench\n"
    assert job in fast
    fast = fast.replace(job, job + scrape)
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
            if asking.get(address).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        assert time.monotonic() < deadline, f"{address} does not answer"
        time.sleep(0.1)
