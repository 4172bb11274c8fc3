"""What is built: wheel and sdist, by the build backend that pip would use."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from pvebench.version import commit_of
from testing.checkouts import GIT, run
from testing.packs import ROOT

CARRIED = {
    "docs": "runbooks.md",
    "scenarios": "*.yaml",
    "grafana/dashboards": "*.json",
    "prometheus/rules": "*.yml",
}
"""Directory -> its files that an installed pvebench must find."""
EPOCH = "1700000000"


def build(checkout: Path, directory: Path, *kinds: str) -> None:
    targets = [option for kind in kinds for option in ("-t", kind)]
    command = (sys.executable, "-m", "hatchling", "build", *targets, "-d", str(directory))
    run(*command, cwd=checkout, SOURCE_DATE_EPOCH=EPOCH)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, unpacked as pip does."""
    directory = tmp_path_factory.mktemp("wheel")
    build(ROOT, directory / "dist", "wheel")
    (wheel,) = (directory / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(directory / "site")
    return directory / "site"


def inside(site: Path, code: str, cwd: Path) -> str:
    """What a program prints that has the wheel's pvebench, and nothing of the checkout."""
    return run(sys.executable, "-P", "-c", code, cwd=cwd, PYTHONPATH=str(site)).stdout


def test_the_wheel_carries_every_file_of_the_package(built: Path) -> None:
    package = ROOT / "exporter" / "pvebench"
    ours = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    ours = {path for path in ours if "__pycache__" not in path.parts}
    theirs = built / "pvebench"
    assert ours - {path.relative_to(theirs) for path in theirs.rglob("*")} == set()


@pytest.mark.parametrize("folder", CARRIED)
def test_what_stays_at_the_root_is_found_when_installed(
    folder: str, built: Path, tmp_path: Path
) -> None:
    code = f"from pvebench.shipped import shipped; print(shipped({folder!r}))"
    found = Path(inside(built, code, tmp_path).strip())
    assert found.is_relative_to(built)
    names = {path.name for path in found.glob(CARRIED[folder])}
    assert names
    assert names == {path.name for path in (ROOT / folder).glob(CARRIED[folder])}


def test_an_installed_pvebench_plans_a_pack_by_its_name(built: Path, tmp_path: Path) -> None:
    code = "from pvebench.cli.main import main; main()"
    command = (sys.executable, "-P", "-c", code, "plan", "--pack", "quick", "--format=json")
    (plan,) = json.loads(run(*command, cwd=tmp_path, PYTHONPATH=str(built)).stdout)
    assert len(plan["cases"]) == 12


def test_an_installed_pvebench_knows_its_commit(built: Path, tmp_path: Path) -> None:
    code = "from pvebench.version import commit; print(commit())"
    assert inside(built, code, tmp_path).strip() == commit_of(ROOT)


def repository(directory: Path) -> Path:
    directory.mkdir()
    run("git", "init", "-q", ".", cwd=directory)
    (directory / "file").write_text("1", "utf-8")
    run("git", "add", "file", cwd=directory)
    run(*GIT, "commit", "-q", "-m", "One", cwd=directory)
    return directory


def test_a_commit_is_reported_and_a_changed_or_new_file_makes_it_dirty(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "checkout")
    clean = run("git", "rev-parse", "HEAD", cwd=checkout).stdout.strip()
    assert commit_of(checkout) == clean
    (checkout / "new").write_text("1", "utf-8")
    assert commit_of(checkout) == f"{clean}-dirty"
    (checkout / "new").unlink()
    (checkout / "file").write_text("2", "utf-8")
    assert commit_of(checkout) == f"{clean}-dirty"


def test_a_tree_within_someone_elses_repository_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = repository(tmp_path / "outer")
    (checkout / "pvebench").mkdir()
    assert commit_of(checkout / "pvebench") == ""
    assert commit_of(tmp_path) == ""
    # As a hook of git would have it.
    monkeypatch.setenv("GIT_DIR", str(checkout / ".git"))
    assert commit_of(tmp_path) == ""


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    run("git", "init", "-q", ".", cwd=tmp_path)
    assert commit_of(tmp_path) == ""
