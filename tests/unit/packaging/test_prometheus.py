"""The Prometheus configuration, as make run and as the compose stack lay it out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def promtool(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", "check", "config", "--lint-fatal", config],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_configuration_of_the_compose_stack_is_valid(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "prometheus" / "prometheus.yml", tmp_path / "prometheus.yml")
    shutil.copytree(ROOT / "prometheus" / "rules", tmp_path / "rules")
    shutil.copytree(ROOT / "prometheus" / "targets" / "compose", tmp_path / "targets")
    done = promtool(tmp_path / "prometheus.yml")
    # A target file that is named and not there is only a warning, and an empty graph.
    assert (done.returncode, "WARNING" in done.stdout + done.stderr) == (0, False), done


def test_the_check_sees_a_broken_configuration(tmp_path: Path) -> None:
    text = (ROOT / "prometheus" / "prometheus.yml").read_text("utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("sample_limit", "sampel_limit"), "utf-8")
    assert promtool(tmp_path / "prometheus.yml").returncode != 0
