"""`pvebench doctor` of a cluster: token, rights and the node's clock, against tests/pve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from testing.prepared_cluster import api, config, granted

__all__ = ["api", "config", "granted"]

Captured = pytest.CaptureFixture[str]


def seen(config: Path, capsys: Captured) -> list[tuple[str, str, str]]:
    capsys.readouterr()
    run_cli(["doctor", "--config", str(config), "--format=json"])
    rows = json.loads(capsys.readouterr().out)
    return [(row["about"], row["severity"], row["text"]) for row in rows]


def test_a_granted_cluster_reports_token_rights_storages_and_its_clock(
    granted: Path, capsys: Captured
) -> None:
    found = {about: (severity, text) for about, severity, text in seen(granted, capsys)}
    assert {found[one][0] for one in ("token", "rights", "storage fast", "clock")} == {"ok"}
    assert "mode 0600" in found["token"][1]


def test_a_token_that_others_can_read_comes_first_with_its_command(
    granted: Path, capsys: Captured
) -> None:
    token = granted.parent / "token"
    token.chmod(0o644)
    found = seen(granted, capsys)
    assert found[0][:2] == ("token", "critical")
    assert f"chmod 600 {token}" in found[0][2]
