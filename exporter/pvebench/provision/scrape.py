"""The scrape job for a Prometheus that exists, and the files of targets it may take them from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pvebench import __version__
from pvebench.shipped import shipped

JOB: Final = "pvebench"
"""Our rules and dashboards ask by this name."""
SUITED: Final = "Prometheus 2.42 and later, 3.x included"
TARGETS_FILE: Final = "pvebench-targets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Which pvebench is scraped, and how Prometheus learns it.

    Attributes:
        addresses: host:port of each.
        file_sd: path of the file of targets, as Prometheus sees it; empty: none.
        http_sd: address that the same is fetched from; empty: none.
    """

    addresses: Sequence[str]
    scheme: str = "http"
    file_sd: str = ""
    http_sd: str = ""


def scrape_job(targets: Targets) -> str:
    """Return the job as YAML; JSON's scalars are YAML's as well, so every text is quoted."""
    lines = [
        f"# Scrape job of pvebench {__version__}, for {SUITED}. Below scrape_configs in",
        "# prometheus.yml; from 2.43 on this file can be named under scrape_config_files instead.",
        "scrape_configs:",
        f"  - job_name: {JOB}",
        "    # A full matrix of one storage has 50 000 samples; far beyond it something is wrong.",
        "    sample_limit: 200000",
        "    body_size_limit: 50MB",
    ]
    if targets.scheme == "https":
        lines += ["    scheme: https", *_secured(4)]
    return "\n".join([*lines, *_discovery(targets)]) + "\n"


def _secured(indent: int) -> list[str]:
    """Return what may be needed beside https, as comments."""
    lines = (
        "# Where its certificate is not of a public authority, and where it wants a login:",
        "# tls_config: {ca_file: pvebench.crt}",
        "# basic_auth: {username: prometheus, password_file: pvebench_password}",
    )
    return [" " * indent + line for line in lines]


def _discovery(targets: Targets) -> list[str]:
    if targets.file_sd:
        return ["    file_sd_configs:", f"      - files: [{json.dumps(targets.file_sd)}]"]
    if targets.http_sd:
        found = ["    http_sd_configs:", f"      - url: {json.dumps(targets.http_sd)}"]
        return [*found, *_secured(8)] if targets.http_sd.startswith("https:") else found
    return ["    static_configs:", f"      - targets: {json.dumps(list(targets.addresses))}"]


def target_file(targets: Targets) -> str:
    """Return the targets as Prometheus' file_sd and http_sd read them."""
    return json.dumps([{"targets": list(targets.addresses), "labels": {}}], indent=2) + "\n"


def prometheus_files(targets: Targets) -> dict[str, str]:
    """Return name -> text of all that a Prometheus is given."""
    rules = {
        f"pvebench-{'rules' if path.stem == 'pvebench' else path.stem}.yml": path.read_text("utf-8")
        for path in sorted(shipped("prometheus/rules").glob("*.yml"))
    }
    return {"pvebench-scrape.yml": scrape_job(targets), **rules, TARGETS_FILE: target_file(targets)}
