"""Selection of packs and runs by options, and what is reported about one that matches nothing."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pvebench.cli.main import cli, run_cli
from testing.packs import QUICK, SMALL, write_pack

Captured = pytest.CaptureFixture[str]


def test_a_selection_that_matches_nothing_is_reported(tmp_path: Path, capsys: Captured) -> None:
    arguments = ["run", "--state", str(tmp_path), "--pack", str(QUICK), "--only", "nothing"]
    assert run_cli(arguments) == 2
    assert "no case matches --only and --skip" in capsys.readouterr().err


def scaled(command: click.Command, name: str) -> list[str]:
    if isinstance(command, click.Group):
        parts = [
            (name, command.get_command(click.Context(command), name))
            for name in command.list_commands(click.Context(command))
        ]
        return [found for part, one in parts if one for found in scaled(one, part)]
    return [name] if any(one.name == "scale" for one in command.params) else []


def test_only_what_plans_a_cycle_has_a_scale() -> None:
    assert sorted(scaled(cli, "")) == ["check", "openmetrics", "plan", "run", "serve"]


@pytest.mark.parametrize("command", [["results"], ["results", "--format", "csv"], ["report"]])
def test_a_pack_of_which_there_is_no_run_is_reported(
    tmp_path: Path, capsys: Captured, command: list[str]
) -> None:
    state = ["--state", str(tmp_path / "state")]
    pack = write_pack(tmp_path, SMALL)
    assert run_cli(["run", "--driver", "simulated", *state, "--pack", str(pack)]) == 0
    assert run_cli([*command, *state, "--pack", "nonsense"]) == 5
    assert "no runs of pack 'nonsense'" in capsys.readouterr().err


def test_a_scale_that_is_none_is_refused(capsys: Captured) -> None:
    assert run_cli(["plan", "--pack", str(QUICK), "--scale", "0"]) == 2
    assert "--scale" in capsys.readouterr().err
