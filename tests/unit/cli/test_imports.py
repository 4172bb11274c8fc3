"""Libraries that take long to import are imported by the commands that use them alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testing.packs import write_pack

OF_A_SERVICE = "PIL apprise bcrypt jinja2 prometheus_client starlette uvicorn"


def imported(libraries: str, *arguments: str) -> str:
    """Return which of the libraries a command has imported when it ends."""
    code = (
        "import sys; from pvebench.cli.main import run_cli; code = run_cli(sys.argv[2:]); "
        "print(*(one for one in sys.argv[1].split() if one in sys.modules)); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, libraries, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def test_a_run_without_a_message_imports_neither_the_log_nor_a_service(tmp_path: Path) -> None:
    state, pack = str(tmp_path / "state"), str(write_pack(tmp_path))
    run = ("run", "--driver", "simulated", "--state", state, "--pack", pack)
    assert imported(f"{OF_A_SERVICE} alembic numpy structlog sqlalchemy", *run) == "sqlalchemy"
