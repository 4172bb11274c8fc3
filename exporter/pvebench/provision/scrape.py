"""The scrape job for an existing Prometheus, and its target files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pvebench import __version__
from pvebench.shipped import shipped

JOB: Final = "pvebench"
"""Job name that rules and dashboards select by."""
SUPPORTED: Final = "Prometheus 2.42 and later, 3.x included"
SCRAPE_FILE: Final = "pvebench-scrape.yml"
TARGETS_FILE: Final = "pvebench-targets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Targets to scrape, and how Prometheus discovers them.

    Attributes:
        addresses: host:port of each.
        file_sd: path of the target file, as seen from Prometheus; empty: none.
        http_sd: URL of the target list; empty: none.
        site: label `site` of all samples in a fleet; empty: none.
    """

    addresses: Sequence[str]
    scheme: str = "http"
    file_sd: str = ""
    http_sd: str = ""
    site: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """Labels that Prometheus adds to every sample."""
        return {"site": self.site} if self.site else {}


NO_TARGETS: Final = Targets(addresses=())


def scrape_job(targets: Targets) -> str:
    """Return the job as YAML. Strings are quoted as JSON, which is valid YAML."""
    lines = [
        f"# Scrape job of pvebench {__version__}, for {SUPPORTED}. Copy it to scrape_configs",
        "# of prometheus.yml, or since 2.43 list this file under scrape_config_files.",
        "scrape_configs:",
        f"  - job_name: {JOB}",
        "    honor_labels: true  # a label of the target must not replace `node` of the results",
        "    # A full matrix of one storage has 50,000 samples; a far higher number is an error.",
        "    sample_limit: 200000",
        "    body_size_limit: 50MB",
    ]
    if targets.scheme == "https":
        lines += ["    scheme: https", *_tls_lines(4)]
    return "\n".join([*lines, *_discovery(targets)]) + "\n"


def _tls_lines(indent: int) -> list[str]:
    """Return optional keys for https, as comments."""
    lines = (
        "# For a certificate of a private authority, and for a login:",
        "# tls_config: {ca_file: pvebench.crt}",
        "# basic_auth: {username: prometheus, password_file: pvebench_password}",
    )
    return [" " * indent + line for line in lines]


def _discovery(targets: Targets) -> list[str]:
    if targets.file_sd:
        return ["    file_sd_configs:", f"      - files: [{json.dumps(targets.file_sd)}]"]
    if targets.http_sd:
        lines = ["    http_sd_configs:", f"      - url: {json.dumps(targets.http_sd)}"]
        return [*lines, *_tls_lines(8)] if targets.http_sd.startswith("https:") else lines
    labels = [f"        labels: {json.dumps(targets.labels)}"] if targets.labels else []
    addresses = json.dumps(list(targets.addresses))
    return ["    static_configs:", f"      - targets: {addresses}", *labels]


def target_file(targets: Targets) -> str:
    """Return the targets in the format of Prometheus' file_sd and http_sd."""
    one = {"targets": list(targets.addresses), "labels": targets.labels}
    return json.dumps([one], indent=2) + "\n"


def included(directory: Path) -> list[str]:
    """Return the lines for prometheus.yml that include the files of a directory."""
    rules = [str(directory / f"pvebench-{name}.yml") for name in ("alerts", "rules")]
    return [
        "append to prometheus.yml, or add the files to these keys:",
        f"scrape_config_files: [{json.dumps(str(directory / SCRAPE_FILE))}]  # 2.43 and later",
        f"rule_files: {json.dumps(rules)}",
    ]


def prometheus_files(targets: Targets) -> dict[str, str]:
    """Return name -> text of all files for a Prometheus."""
    rules = {
        f"pvebench-{'rules' if path.stem == 'pvebench' else path.stem}.yml": path.read_text("utf-8")
        for path in sorted(shipped("prometheus/rules").glob("*.yml"))
    }
    return {SCRAPE_FILE: scrape_job(targets), **rules, TARGETS_FILE: target_file(targets)}
