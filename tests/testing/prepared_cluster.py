"""A simulated cluster with the settings of a pvebench, and with its rights granted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pve.cluster import Cluster
from pve.server import RunningApi, fingerprint, running_api
from pvebench.cli.main import run_cli
from pvebench.cli.proxmox import PASSWORD_VARIABLE
from testing.packs import SMALL, write_pack


@pytest.fixture
def api(tmp_path: Path, major: int) -> Iterator[RunningApi]:
    """A cluster on which nothing was prepared."""
    with running_api(Cluster(tmp_path / "cluster", major=major)) as found:
        yield found


@pytest.fixture
def config(api: RunningApi, tmp_path: Path) -> Path:
    pack = write_pack(tmp_path, SMALL)
    path = tmp_path / "pvebench.yaml"
    path.write_text(
        f"""\
node: pve1
driver: proxmox
state: {tmp_path / "state"}
packs: [{pack}]
proxmox:
  host: 127.0.0.1
  port: {api.port}
  token_file: token
  tls: {{fingerprint: "{fingerprint(api.certificate)}"}}
  pool: bench
  version: {api.cluster.major}
  storages:
    local: {{type: dir}}
    fast: {{type: lvmthin, id: thin}}
  node_exporter: ""
""",
        "utf-8",
    )
    return path


def findings(config: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[bool, str]]:
    capsys.readouterr()
    run_cli(["check", "--config", str(config), "--format=json"])
    rows = json.loads(capsys.readouterr().out)
    return {row["check"]: (row["ok"], row["found"]) for row in rows}


@pytest.fixture
def granted(config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PASSWORD_VARIABLE, "rootpw")
    assert run_cli(["proxmox", "init", "--config", str(config), "--apply"]) == 0
    return config


def init_of(text: str, config: Path) -> list[str]:
    """Return the arguments of the command that a message names, with these settings."""
    found = re.search(r"pvebench (proxmox init( (--[a-z-]+|SETTINGS))*)", text)
    assert found is not None, text
    return found[1].replace("SETTINGS", str(config)).split()
