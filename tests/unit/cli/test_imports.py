"""Libraries that take long to import are imported by the commands that use them alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from pvebench.cli.main import COMMANDS, cli, summary
from testing.packs import write_pack

OF_A_SERVICE = "apprise bcrypt jinja2 prometheus_client starlette uvicorn"


def imported(libraries: str, *arguments: str) -> str:
    """Return which of the libraries a command has imported when it ends."""
    code = (
        "import sys; from pvebench.cli.main import run_cli; code = run_cli(sys.argv[2:]); "
        "print(*(one for one in sys.argv[1].split() if one in sys.modules)); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, libraries, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def test_a_run_and_the_commands_that_read_results_import_no_web_server(tmp_path: Path) -> None:
    state, pack = str(tmp_path / "state"), str(write_pack(tmp_path))
    words = ("run", "--driver", "simulated", "--state", state, "--pack", pack)
    assert imported(f"{OF_A_SERVICE} numpy structlog sqlalchemy", *words) == "sqlalchemy"
    for name in ("results", "status", "doctor"):
        words = (name, "--state", state, "--node", "lab")
        unused = "starlette uvicorn" + " pvebench.config.pack_keys" * (name != "doctor")
        assert imported(f"{unused} sqlalchemy", *words) == "sqlalchemy"


OF_RESULTS = f"{OF_A_SERVICE} pydantic rich ruamel sqlalchemy structlog numpy"


@pytest.mark.parametrize("words", ["--help", "run --help", "serve --help"])
def test_help_imports_nothing_that_measures_or_reads_results(words: str) -> None:
    assert imported(f"{OF_RESULTS} click", *words.split()) == "click"


def test_a_first_plan_imports_no_store(tmp_path: Path) -> None:
    plan = ("plan", "--state", str(tmp_path), "--node", "lab")
    assert imported(f"{OF_A_SERVICE} sqlalchemy structlog numpy pydantic", *plan) == "pydantic"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.get_short_help_str(200) == summary(name)


def test_a_shell_completes_commands_and_options() -> None:
    def completed(typed: str) -> list[str]:
        return [str(item.value) for item in cli.shell_complete(click.Context(cli), typed)]

    assert completed("sta") == ["status"]
    assert completed("--v") == ["--version"]
