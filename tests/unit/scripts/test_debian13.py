"""scripts/debian13, as far as it goes without a Debian; `.ci/run` runs the rest."""

from __future__ import annotations

import os
import shutil
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


STUBS = {
    "id": "echo 0",
    "unshare": 'echo "started $(ls "$PWD/debian")" >>ran',
    # Fails in the first call, after some packages were unpacked.
    "mmdebstrap": 'for root; do :; done; mkdir -p "$root/etc/ssl/certs"; echo made >>ran\n'
    'touch "$root/etc/debian_version"; [ -e half ] || { touch half; exit 1; }; touch "$root/whole"',
}
COMMIT = (
    "git init -qb main; git add .; git -c user.name=a -c user.email=a@example.com commit -qm First"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone with one commit and stubs of the programs that make and enter a Debian."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/debian13", "scripts/step"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name, script in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    subprocess.run(["sh", "-euc", COMMIT], cwd=tmp_path, check=True)
    return tmp_path


def enter(tree: Path, **variables: str) -> int:
    command = ["scripts/debian13", "--keep", "debian", "true"]
    env = os.environ | {"PATH": f"{tree}:{os.environ['PATH']}"} | variables
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, check=False).returncode


def test_a_half_made_debian_is_not_used_and_the_repository_of_a_hook_stays(tree: Path) -> None:
    assert enter(tree) != 0
    assert enter(tree) == enter(tree, GIT_DIR=str(tree / ".git")) == 0
    ran = (tree / "ran").read_text("utf-8")
    assert (ran.count("made"), ran.count("started"), ran.count("whole")) == (2, 2, 2)
    assert (tree / ".git/HEAD").read_text("utf-8") == "ref: refs/heads/main\n"


def test_the_recipe_and_continuous_integration_run_both_commands_of_the_readme() -> None:
    recipe = (
        (ROOT / "Makefile").read_text("utf-8").partition("\ndebian13: ")[2].partition("\n\n")[0]
    )
    assert "make run CYCLES=1" in recipe
    assert "make test" in recipe
    assert 'scripts/debian13 "make run CYCLES=1' in (ROOT / ".ci/run").read_text("utf-8")
