"""scripts/debian13, as far as it goes without a Debian; `.ci/run` runs the rest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def debian13(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/debian13", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("arguments", [(), ("a", "b"), ("--keep", "x")])
def test_a_call_without_one_command_shows_the_usage(arguments: tuple[str, ...]) -> None:
    done = debian13(*arguments)
    assert done.returncode == 2
    assert "scripts/debian13 [--keep DIRECTORY] COMMAND" in done.stderr


def test_the_recipe_and_continuous_integration_run_both_commands_of_the_readme() -> None:
    recipe = (
        (ROOT / "Makefile").read_text("utf-8").partition("\ndebian13: ")[2].partition("\n\n")[0]
    )
    assert "make run CYCLES=1" in recipe
    assert "make test" in recipe
    assert 'scripts/debian13 "make run CYCLES=1' in (ROOT / ".ci/run").read_text("utf-8")
