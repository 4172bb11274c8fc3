"""The Makefile, and the scripts that it calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pvebench.drivers.proxmox.node.node_ssh import script_of_node

ROOT = Path(__file__).resolve().parents[3]
TARGETS = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
SHELL_SCRIPTS = [
    path
    for directory in (
        "scripts",
        ".ci",
        "packaging/ansible",
        "tests/deb",
        "tests/e2e",
        "tests/hostvm",
        "tests/hostprocess",
    )
    for path in sorted((ROOT / directory).iterdir())
    if path.is_file() and path.read_bytes().startswith((b"#!/usr/bin/env bash", b"#!/bin/bash"))
]


def output(*command: str | Path, cwd: Path = ROOT) -> str:
    # `make test` hands its own flags and variables down; they are not this make's.
    environment = {name: os.environ[name] for name in ("PATH", "HOME")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done
    return done.stdout


def test_no_script_leaves_its_tree_for_a_directory_of_cdpath() -> None:
    """`cd scripts/..` searches the user's CDPATH first, and prints what it finds there."""
    texts = [path.read_text("utf-8") for path in (*SHELL_SCRIPTS, ROOT / "scripts/generate")]
    changes = re.findall(r".*\bcd .*dirname.*", "\n".join(texts))
    assert [line for line in changes if "CDPATH='' cd " not in line] == []
    assert len(changes) > 20


def test_make_alone_lists_every_target_with_what_it_needs() -> None:
    assert {"run", "test", "check", "format", "bench", "guest", "clean", "lock"} <= set(TARGETS)
    listed = output("make", "--no-print-directory")
    for target in TARGETS:
        assert re.search(rf"^  {target} +\S.*\(needs .*\)$", listed, re.MULTILINE), target


@pytest.mark.parametrize("target", TARGETS)
def test_the_recipes_of_a_target_can_be_read(target: str) -> None:
    output("make", "--dry-run", target)


def test_run_hands_its_variables_on() -> None:
    recipe = output(
        "make",
        "--dry-run",
        "run",
        "CYCLES=2",
        "PACK=a.yaml b.yaml",
        "STATE=s",
        "GRAFANA_PORT=7",
        "ARGS=--driver simulated",
    ).replace("\\\n", "")
    options = " ".join(recipe.partition("exec scripts/run ")[2].split())
    assert options == (
        "--pack a.yaml --pack b.yaml --state 's' --cycles 2 --exporter-port '10620' "
        "--prometheus-port '9690' --node-exporter-port '9691' --grafana-port '7' "
        "-- --driver simulated"
    )


@pytest.mark.parametrize(
    ("command", "venv"),
    [
        (["run"], "run guest"),
        (["run", "ARGS=--driver simulated"], "run"),
        (["demo"], "run"),
        (["demo", "CHECK=1"], "dev"),
        (["guest"], "run"),
        (["release"], "run"),
        (["check"], "dev"),
        (["test"], "dev"),
    ],
)
def test_only_what_checks_and_tests_installs_the_tools_for_it(
    command: list[str], venv: str
) -> None:
    recipe = output("make", "--dry-run", *command)
    assert set(re.findall(r"^scripts/venv (.+?) *$", recipe, re.MULTILINE)) == {venv}


CHECKS = (
    "mypy",
    "mypy scripts/stack/a.py",
    "mypy grafana/builder/a.py grafana/builder/boards/a.py",
    "ruff format --check",
    "ruff check",
    "lint-imports",
    "generate --check",
    "python scripts/sizes.py --check",
    "python -m pytest -q -n0 -k test_destructive_calls.py or test_readers.py",
)


@pytest.mark.parametrize("failing", [*CHECKS, ""])
def test_check_runs_every_part_and_fails_if_one_does(failing: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    program = '#!/bin/sh\necho "${0##*/} $*" >>ran\n! echo "${0##*/} $*" | grep -qx "$FAILING *"\n'
    for name in ("mypy", "ruff", "lint-imports", "python", "venv", "generate"):
        path = tmp_path / ("scripts" if name in ("venv", "generate") else ".venv/bin") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(program, "utf-8")
        path.chmod(0o755)
    for name in ("scripts/stack", "grafana/builder", "grafana/builder/boards"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.py").touch()
    environment = {"PATH": os.environ["PATH"], "FAILING": failing or "none"}
    done = subprocess.run(["make", "check"], cwd=tmp_path, env=environment, check=False, timeout=60)
    ran = [line.rstrip() for line in (tmp_path / "ran").read_text("utf-8").splitlines()]
    assert (done.returncode == 0) == (not failing)
    assert failing in ran if failing else sorted(ran) == sorted(["venv dev", *CHECKS])


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_a_shell_script_is_strict_and_clean(script: Path) -> None:
    assert "set -euo pipefail" in script.read_text("utf-8")
    assert output("shellcheck", script) == ""


@pytest.mark.parametrize(
    "script", sorted((ROOT / "exporter").rglob("*.sh")), ids=lambda path: path.name
)
def test_a_script_that_goes_to_a_guest_or_a_node_is_clean_for_a_small_shell(
    script: Path, tmp_path: Path
) -> None:
    # Debian's /bin/sh is dash, and busybox' shell its relative.
    text = script.read_text("utf-8")
    assert text.startswith(("#!/bin/sh\n", "#!/bin/busybox sh\n"))
    whole = tmp_path / script.name
    whole.write_text(script_of_node() if "are inserted here.\n" in text else text, "utf-8")
    assert output("shellcheck", "--shell=dash", whole) == ""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree to clean, with results of pvebench in state/ and something else beside them."""
    made = tmp_path / "tree"
    (made / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "clean", made / "scripts")
    for name in (".venv/bin", ".mypy_cache", "exporter/x.egg-info", "exporter/x/__pycache__"):
        (made / name).mkdir(parents=True)
    for name in ("state/pvebench.db", "state/storage/disk.raw", "state/mine", "exporter/x/y.py"):
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).touch()
    return made


def files(tree: Path) -> set[str]:
    return {
        str(path.relative_to(tree))
        for path in tree.rglob("*")
        if not path.is_dir() and "scripts" not in path.parts
    } | {path.name for path in tree.rglob("*") if path.is_dir()} - {"scripts"}


def test_clean_keeps_the_results_and_says_so(tree: Path) -> None:
    said = output(tree / "scripts" / "clean", "state", cwd=tree)
    assert f"results stay in {tree / 'state'}; make clean ALL=1" in said
    assert files(tree) == {
        "exporter",
        "x",
        "exporter/x/y.py",
        "state",
        "state/pvebench.db",
        "storage",
        "state/storage/disk.raw",
        "state/mine",
    }


def test_clean_all_removes_the_results_and_nothing_else(tree: Path) -> None:
    said = output(tree / "scripts" / "clean", "state", "--all", cwd=tree)
    assert "what pvebench did not make is still there" in said
    assert files(tree) == {"exporter", "x", "exporter/x/y.py", "state", "state/mine"}


def test_clean_all_removes_the_demo_as_well(tree: Path) -> None:
    shutil.copy(ROOT / "Makefile", tree)
    for name in ("simulated/pvebench.db", "filling.json", "mine"):
        (tree / "state-demo" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "state-demo" / name).touch()
    output("make", "clean", "STATE=state", cwd=tree)
    assert (tree / "state-demo" / "simulated" / "pvebench.db").exists()
    output("make", "clean", "STATE=state", "ALL=1", cwd=tree)
    assert [path.name for path in (tree / "state-demo").iterdir()] == ["mine"]
    assert [path.name for path in (tree / "state").iterdir()] == ["mine"]


def test_clean_all_leaves_a_directory_that_is_not_ours(tree: Path) -> None:
    (tree / "state" / "pvebench.db").unlink()
    command: list[str | Path] = [tree / "scripts" / "clean", "state", "--all"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds no results" in done.stderr
    assert (tree / "state" / "storage" / "disk.raw").exists()


def test_clean_all_leaves_the_results_of_a_running_instance(tree: Path) -> None:
    lock = tree / "state" / "lock"
    lock.touch()
    command: list[str | Path] = ["flock", lock, tree / "scripts" / "clean", "state", "--all"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "in use by a running pvebench" in done.stderr
    assert (tree / "state" / "pvebench.db").exists()
