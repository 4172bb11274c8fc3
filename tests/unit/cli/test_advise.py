"""`pvebench advise`: as text, in the report and on its page, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pvebench.advice.recommendation_text import UNASSESSED
from pvebench.cli.main import run_cli
from testing.packs import QUICK
from testing.simulations import simulate

Captured = pytest.CaptureFixture[str]


def test_command_report_and_page_show_the_same_advice(tmp_path: Path, capsys: Captured) -> None:
    simulation = simulate(tmp_path, cycles=3)
    simulation.worker.run()
    simulation.store.close()
    state = ["--state", str(tmp_path)]
    capsys.readouterr()
    assert run_cli(["advise", *state, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["purpose"] for row in rows} >= {"general", "reads"}
    assert run_cli(["advise", *state]) == 0
    text = capsys.readouterr().out
    assert UNASSESSED in text
    output = tmp_path / "report.html"
    assert run_cli(["report", *state, "--output", str(output)]) == 0
    for row in rows:
        sentence = row["text"].partition(". ")[0]
        assert sentence in text
        assert sentence.replace("'", "&#39;") in output.read_text("utf-8")


def test_an_unknown_present_configuration_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    state = ["--state", str(tmp_path)]
    assert run_cli(["run", *state, "--driver", "simulated", "--pack", str(QUICK)]) == 0
    assert run_cli(["advise", *state, "--present", "local.none"]) == 2
    assert "--present: no comparable result of 'local.none'" in capsys.readouterr().err
