"""`make release`: what is published, from the commit alone, equal bytes whoever builds it."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from testing.checkouts import GIT, run
from testing.packs import ROOT

sys.path.insert(0, str(ROOT / "packaging/deb"))

from build import RELEASES, debian_version, file_name  # its place is known only now

BUILT = ("exporter", "grafana", "prometheus", "scenarios", "scripts", "*.lock", "*.md", "*.toml")
BUILT += ("LICENSE", ".gitignore", "packaging/proxmox")


def commit(checkout: Path) -> str:
    run("git", "add", "--all", cwd=checkout)
    run(*GIT, "commit", "--quiet", "--allow-empty", "--message", "This tree", cwd=checkout)
    return run("git", "rev-parse", "HEAD", cwd=checkout).stdout.strip()


def contents(wheel: Path) -> dict[str, tuple[int, list[bytes]]]:
    """Name -> mode and lines of each file of a wheel; that of its list of files has no order."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            one.filename: (one.external_attr, sorted(archive.read(one).splitlines()))
            for one in archive.infolist()
        }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What of this tree is built, as it is now, as a commit of a repository of its own."""
    place = tmp_path / "checkout"
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *BUILT)
    for name in filter(None, run(*listed, cwd=ROOT).stdout.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    run("git", "init", "--quiet", ".", cwd=place)
    commit(place)
    # Ignored by its name with a slash: here it is a link.
    (place / ".git/info/exclude").write_text(".venv\n", "utf-8")
    (place / ".venv").symlink_to(sys.prefix)
    return place


def test_a_release_is_the_commit_and_says_which(checkout: Path, tmp_path: Path) -> None:
    head = commit(checkout)
    run("scripts/release", tmp_path / "out", cwd=checkout)
    wheel, image, sdist = (
        next((tmp_path / "out").glob(pattern))
        for pattern in ("pvebench-*.whl", "pvebench-*-image.tar.gz", "pvebench-*[0-9].tar.gz")
    )
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=tmp_path / "out")
    assert "proxmox-lxc.sh" in (tmp_path / "out" / "SHA256SUMS").read_text("utf-8")
    with tarfile.open(image) as archive:
        inside = set(archive.getnames())
        file = archive.extractfile("exporter/pvebench/commit.txt")
        assert file is not None
        assert file.read().decode().strip() == head
    dockerfile = (ROOT / "exporter/Dockerfile").read_text("utf-8")
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE)
    assert len(copied) > 3
    assert {name for line in copied for name in line.split()} - inside == set()
    # Who has the sdist alone makes a wheel of the same files.
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    epoch = run("git", "log", "-1", "--format=%ct", cwd=checkout).stdout.strip()
    builder = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d")
    run(*builder, tmp_path / "again", cwd=unpacked, SOURCE_DATE_EPOCH=epoch)
    (again,) = (tmp_path / "again").iterdir()
    assert contents(again) == contents(wheel)


DEBS = tuple(
    file_name(name, "0.1.0", RELEASES[release])
    for name in ("pvebench", "pvebench-hub")
    for release in RELEASES
)


def released(directory: Path) -> Path:
    """What `make release` leaves before the page, as empty files, with their checksums."""
    directory.mkdir()
    others = ("-py3-none-any.whl", "-image.tar.gz", ".tar.gz")
    for name in (*DEBS, *(f"pvebench-0.1.0{end}" for end in others), "proxmox-lxc.sh"):
        (directory / name).touch()
    run("sh", "-c", "sha256sum -- * >SHA256SUMS", cwd=directory)
    return directory


def test_the_page_of_a_release_gives_a_use_and_a_checksum_for_each_file(tmp_path: Path) -> None:
    directory = released(tmp_path / "dist")
    page_of(directory)
    first = page_of(directory)  # a page that is there is written again
    names = {path.name for path in directory.iterdir()} - {"RELEASE.md", "SHA256SUMS"}
    assert len(names) == 8
    assert set(re.findall(r"^\| `(.+?)` \| \w.+ \|$", first, re.MULTILINE)) == names
    assert (directory / "SHA256SUMS").read_text("utf-8") in first
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    section = changelog.partition("## 0.1.0 (unreleased)\n")[2].strip()
    assert re.sub(r"\]\(docs/.+?\)", "", section).replace("[", "") in first.replace("[", "")
    assert not re.search(r"\]\((?!https://)", first)
    assert run("git", "rev-parse", "HEAD", cwd=ROOT).stdout.strip() in first


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0rc1"])
def test_a_release_file_keeps_its_name_on_github(version: str) -> None:
    """GitHub replaces other characters: `~` by a dot (github.community, topic 177426)."""
    names = {file_name(name, debian_version(version), RELEASES[12]) for name in ("pvebench", "hub")}
    assert len(names) == 2
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_the_page_of_a_release_says_how_to_begin_with_each_file(tmp_path: Path) -> None:
    """On Debian 13 the commands are those of Debian 12; the source has its own pages."""
    directory = released(tmp_path / "dist")
    begin = page_of(directory).partition("\n## Begin\n")[2].partition("\n## ")[0]
    assert "(Debian 13: `_deb13`)" in begin
    patterns = [word.strip("`,").removeprefix("./") for word in begin.split()]
    begun = {
        path.name
        for path in directory.iterdir()
        if any(path.match(pattern) for pattern in patterns if pattern.startswith("p"))
    }
    assert begun >= {"proxmox-lxc.sh", *DEBS[::2]}
    assert begun >= {"pvebench-0.1.0-py3-none-any.whl", "pvebench-0.1.0-image.tar.gz"}


def page_of(directory: Path) -> str:
    run(sys.executable, ROOT / "scripts/release_page.py", directory, cwd=directory)
    return (directory / "RELEASE.md").read_text("utf-8")


def test_the_page_of_a_signed_release_has_the_apt_repository(tmp_path: Path) -> None:
    directory = released(tmp_path / "dist")
    page = [sys.executable, ROOT / "scripts/release_page.py", directory, "https://apt.example.org/"]
    run(*page, cwd=directory)
    text = (directory / "RELEASE.md").read_text("utf-8")
    assert "curl -fo /etc/apt/sources.list.d/pvebench.sources https://apt.example.org/t" in text
    assert "gpg --import pvebench.asc" in text


@pytest.mark.parametrize("name", DEBS)
def test_a_release_without_one_of_its_files_has_no_page(tmp_path: Path, name: str) -> None:
    directory = released(tmp_path / "dist")
    (directory / name).rename(directory / "another")
    script = ROOT / "scripts/release_page.py"
    done = run(sys.executable, script, directory, cwd=directory, code=1)
    assert name[-16:] in done.stderr
    assert "another" in done.stderr
    assert not (directory / "RELEASE.md").exists()


def test_a_build_that_differs_each_time_is_not_kept(checkout: Path, tmp_path: Path) -> None:
    hook = checkout / "scripts/build_hook.py"
    text = hook.read_text("utf-8")
    assert "{commit}" in text
    hook.write_text(text.replace("{commit}", "{commit} {self.root}"), "utf-8")
    commit(checkout)
    done = run("scripts/release", tmp_path / "out", cwd=checkout, code=3)
    assert "two builds of one commit differ" in done.stderr
    assert not (tmp_path / "out").exists()


def test_changed_or_forgotten_files_are_no_release(checkout: Path, tmp_path: Path) -> None:
    (checkout / "exporter/pvebench/forgotten.py").touch()
    done = run("scripts/release", tmp_path / "out", cwd=checkout, code=3)
    assert "not in it" in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_was_released_is_not_written_over(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert (
        "is there already" in run("scripts/release", tmp_path / "out", cwd=checkout, code=3).stderr
    )
