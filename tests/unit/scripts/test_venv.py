"""scripts/venv with a Python of stubs: which locks are installed, and when."""

from __future__ import annotations

import importlib.metadata as installed
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCKS = ("requirements.lock", "requirements-run.lock", "requirements-dev.lock")
PYTHON = """\
#!/bin/bash
here=$(dirname "$0")
case "$1 $2" in
'-m venv')
    mkdir -p "$3/bin"
    echo "command = python -m venv $PWD/$3" >"$3/pyvenv.cfg"
    cp "$0" "$3/bin/python" ;;
'-m pip')
    [[ $3 == --version ]] && exit
    echo "pip ${*:3}" >>calls
    [[ ${PIP_USER-} != 1 ]] || { echo "Can not perform a '--user' install"; exit 1; }
    [[ ! -e fails || "$*" != *"$(cat fails)" ]] || { echo "no such wheel"; exit 1; }
    # Not before the image, which is built at the same time.
    for ((i = 0; i < 500; i++)); do [[ -e slow && ! -e guest ]] || exit 0; sleep 0.01; done ;;
*build_image*) touch guest; echo "guest $PYTHONPATH" >>calls ;;
--version*) echo Python 3.12.1 ;;
esac
"""
RUNTIME_ONLY = """\
import importlib.metadata, importlib.util, pkgutil, sys
allowed, stack = set(sys.argv[1].split(",")), sys.argv[2]
modules = importlib.metadata.packages_distributions()
normal = lambda name: name.replace("_", "-").replace(".", "-").lower()
blocked = {name for name, owners in modules.items() if not allowed & {*map(normal, owners)}}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked - {"pvebench"}:
            raise ModuleNotFoundError(f"{name} is not part of the running environment")
sys.meta_path.insert(0, Refuse())
assert {"pytest", "httpx2"} <= blocked
sys.path.insert(0, stack)
import demo, measure, ports, processes, services
import honcho, hatchling
import pvebench
for module in pkgutil.walk_packages(pvebench.__path__, "pvebench."):
    if module.name.startswith("pvebench_fleet.hub."):
        continue  # needs the libraries of its extra
    if "migrations" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@dataclass
class Tree:
    """A checkout whose python3 is a stub; `calls` is what its pip was asked to do."""

    path: Path
    odd: dict[str, str] = field(default_factory=dict)

    def venv(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["scripts/venv", *arguments],
            cwd=self.path,
            env={"PATH": f"{self.path / 'bin'}:{os.environ['PATH']}", **self.odd},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def installs(self) -> list[str]:
        """What pip did since the last call, without common options, sorted."""
        calls = self.path / "calls"
        lines = calls.read_text("utf-8").splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        common = r"^pip --disable-pip-version-check (install --no-compile --no-deps )?"
        return sorted(re.sub(common, "", line) for line in lines)

    def installed(self) -> list[str]:
        """What both halves pin."""
        return pins(*(self.path / ".venv" / f"half-{half}" for half in (0, 1)))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/venv", "scripts/step", "pyproject.toml", *LOCKS):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (tmp_path / "bin" / name).write_text(PYTHON, "utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    return Tree(tmp_path)


LIBRARIES = [f"--require-hashes --requirement .venv/half-{half}" for half in (0, 1)]
ALL = sorted([*LIBRARIES, "--no-build-isolation --editable .", "check"])


def pins(*locks: Path) -> list[str]:
    """What the locks pin, with its hashes, sorted."""
    text = "".join(lock.read_text("utf-8") for lock in locks)
    return sorted(re.findall(r"^[a-z].*(?:\n +--hash.*)+", text, re.MULTILINE))


def test_running_installs_no_library_of_the_tests(tree: Tree) -> None:
    done = tree.venv("run")
    assert (done.returncode, done.stderr) == (0, "")
    assert tree.installs() == ALL
    assert tree.installed() == pins(*(ROOT / lock for lock in LOCKS[:2]))


@pytest.mark.parametrize("name", ["PIP_USER", "CDPATH"])
def test_settings_for_other_programs_do_not_count(tree: Tree, name: str) -> None:
    (tree.path / "1/scripts").mkdir(parents=True)
    tree.odd[name] = "1"
    done = tree.venv("run")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tree.path / ".venv/bin/python").exists()


def test_a_tree_with_any_name_keeps_its_venv(tree: Tree) -> None:
    moved = Tree(tree.path.parent / "a [b] *c")
    tree.path.rename(moved.path)
    assert moved.venv("run").returncode == 0
    assert moved.venv("run").stdout == ""


def test_each_step_is_one_line_with_its_duration(tree: Tree) -> None:
    first, second, third, fourth = tree.venv("run").stdout.splitlines()
    assert re.fullmatch(r"pvebench: creating \.venv with Python 3\.12\.1 … \d+ s", first)
    assert re.fullmatch(r"pvebench: installing \d\d libraries \(.*\) into \.venv … \d+ s", second)
    assert re.fullmatch(r"pvebench: installing pvebench from this directory … \d+ s", third)
    assert re.fullmatch(r"pvebench: checking the dependencies of all … \d+ s", fourth)


def test_an_environment_is_installed_once(tree: Tree) -> None:
    for first, later in (("run", ["run"]), ("dev", ["dev", "run"])):
        assert tree.venv(first).returncode == 0
        assert tree.installs()
        for kind in later:
            done = tree.venv(kind)
            assert (done.returncode, done.stdout, tree.installs()) == (0, "", [])


def test_the_tests_add_what_running_lacks(tree: Tree) -> None:
    tree.venv("run")
    tree.installs()
    assert tree.venv("dev").returncode == 0
    assert tree.installs() == ALL
    assert tree.installed() == pins(tree.path / LOCKS[2])


@pytest.mark.parametrize("lock", LOCKS)
def test_a_changed_lock_is_installed_by_what_reads_it(tree: Tree, lock: str) -> None:
    tree.venv("dev")
    tree.installs()
    with (tree.path / lock).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    tree.venv("run")
    assert bool(tree.installs()) == (lock != "requirements-dev.lock")
    tree.venv("dev")
    assert tree.installs() == ALL
    assert tree.installed() == pins(tree.path / LOCKS[2])


def test_the_guest_image_is_built_while_libraries_are_installed(tree: Tree) -> None:
    (tree.path / "slow").touch()
    done = tree.venv("run", "guest")
    assert done.returncode == 0
    calls = tree.installs()
    assert calls == sorted(["guest exporter", *ALL])
    assert re.search(r"building the guest image .* … \d+ s more$", done.stdout)
    assert "guest" not in tree.venv("run", "guest").stdout


@pytest.mark.parametrize("half", ["half-0", "half-1"])
def test_a_failure_shows_the_output_and_where_all_of_it_is(tree: Tree, half: str) -> None:
    (tree.path / "fails").write_text(half, "ascii")
    done = tree.venv("run")
    assert done.returncode == 1
    assert "no such wheel" in done.stderr
    assert str(tree.path / "build" / "log" / "pip.log") in done.stderr
    (tree.path / "fails").unlink()
    tree.installs()
    assert tree.venv("run").returncode == 0
    assert tree.installs() == ALL


@pytest.mark.parametrize("arguments", [[], ["test"]])
def test_another_kind_is_refused(tree: Tree, arguments: list[str]) -> None:
    assert tree.venv(*arguments).returncode == 2


def test_all_that_runs_works_without_the_libraries_of_the_tests() -> None:
    allowed = [
        re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower()
        for pin in pins(*(ROOT / lock for lock in LOCKS[:2]))
    ]
    assert installed.version("pytest")
    done = subprocess.run(
        [sys.executable, "-c", RUNTIME_ONLY, ",".join(allowed), ROOT / "scripts" / "stack"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "exporter")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
