"""`make release KEY=FILE`: a repository that apt trusts, checksums and provenance."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from pvebench import __version__
from testing.packs import ROOT

OPTIONS = ("Dir::State::status=status", "APT::Sandbox::User=root", "Dir::Etc::Parts=none")


def run(*command: str | Path, cwd: Path, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done
    return done.stdout + done.stderr


def package(directory: Path, version: str, release: int) -> None:
    tree = directory / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = f"Package: pvebench\nVersion: {version}\nArchitecture: amd64\n"
    (tree / "DEBIAN/control").write_text(f"{fields}Maintainer: t\nDescription: t\n", "utf-8")
    name = f"pvebench_{version}_deb{release}_amd64.deb"
    run("dpkg-deb", "--root-owner-group", "--build", tree, directory / name, cwd=directory)
    shutil.rmtree(tree)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key, files of a release in `dist`, and those of an earlier one in `old`."""
    # The socket of gpg-agent needs a short path.
    place = tmp_path_factory.mktemp("p")
    home = {"GNUPGHOME": str(place / "gnupg")}
    (place / "gnupg").mkdir(mode=0o700)
    gpg = ("gpg", "--batch", "--quiet", "--passphrase", "")
    run(*gpg, "--quick-generate-key", "Test <t@example.org>", "ed25519", cwd=place, **home)
    key = run(*gpg, "--armor", "--export-secret-keys", cwd=place, **home)
    (place / "key.asc").touch(0o600)
    (place / "key.asc").write_text(key, "utf-8")
    for directory, version in (("old", "0.1.0"), ("dist", "0.2.0")):
        dist = place / directory
        dist.mkdir()
        for release in (12, 13):
            package(dist, version, release)
        sums = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in dist.iterdir()]
        (dist / "SHA256SUMS").write_text("\n".join(sums) + "\n", "utf-8")
        earlier = ["--earlier", str(place / "old/publish/apt")] if directory == "dist" else []
        publish(place, dist, "--key", str(place / "key.asc"), *earlier)
    return place


def publish(place: Path, dist: Path, *options: str, code: int = 0) -> str:
    url = ["--url", f"file:{dist}/publish/apt", "--no-image"]
    command = [sys.executable, ROOT / "scripts/publish.py", dist, *url, *options]
    return run(*command, cwd=place, code=code)


def apt(place: Path, suite: str, *command: str, code: int = 0) -> str:
    """Run apt in a folder of its own, with the sources of the repository only."""
    root = place / f"apt-{suite}"
    for name in ("state/lists/partial", "cache/archives/partial", "etc/sources.list.d", "etc/none"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "state/status").touch()
    source = place / f"dist/publish/apt/{suite}.sources"
    shutil.copy(source, root / "etc/sources.list.d/pvebench.sources")
    folders = [f"Dir::{name}={root}/{name.lower()}/" for name in ("State", "Cache", "Etc")]
    options = [word for option in (*folders, *OPTIONS) for word in ("-o", option)]
    return run(command[0], *options, *command[1:], cwd=root, code=code)


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_apt_trusts_the_tree_and_offers_the_version_before_too(made: Path, suite: str) -> None:
    assert "NO_PUBKEY" not in apt(made, suite, "apt-get", "update")
    offered = apt(made, suite, "apt-cache", "policy", "pvebench")
    assert "Candidate: 0.2.0" in offered
    assert "0.1.0 500" in offered


def test_apt_refuses_a_changed_tree(made: Path, tmp_path: Path) -> None:
    release = made / "dist/publish/apt/dists/trixie/InRelease"
    signed = release.read_text("utf-8")
    release.write_text(signed.replace("Origin: pvebench", "Origin: pvebencg"), "utf-8")
    try:
        said = apt(made, "trixie", "apt-get", "update", "--error-on=any", code=100)
    finally:
        release.write_text(signed, "utf-8")
    assert "BADSIG" in said or "manipulated" in said  # gpgv; sqv of Debian 13


def test_checksums_are_signed_and_the_provenance_names_each_file(made: Path) -> None:
    dist, home = made / "dist", {"GNUPGHOME": str(made / "gnupg")}
    assert "Good signature" in run("gpg", "--verify", "SHA256SUMS.asc", cwd=dist, **home)
    provenance = json.loads((dist / "publish/provenance.json").read_text("utf-8"))
    sums = dict(
        reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines()
    )
    assert {one["name"]: one["digest"]["sha256"] for one in provenance["subject"]} == sums
    assert provenance["predicateType"] == "https://slsa.dev/provenance/v1"
    assert len(list((dist / "publish/grafana").glob("*.json"))) == 8


def test_without_a_key_nothing_is_signed_and_that_is_said(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "dist/SHA256SUMS", tmp_path)
    said = publish(made, tmp_path)
    assert "not in it: container images, SBOM, signatures, apt repository (pass KEY=FILE" in said
    assert not (tmp_path / "publish/apt").exists()


def check(place: Path, *options: str | Path, **environment: str) -> str:
    command = [sys.executable, ROOT / "scripts/publish.py", "none", "--check"]
    return run(*command, *options, cwd=place, code=1, **environment)


@pytest.mark.parametrize("name", ["public.asc", "locked.asc"])
def test_a_key_that_cannot_sign_is_reported_before_anything_is_built(made: Path, name: str) -> None:
    home = {"GNUPGHOME": str(made / "gnupg")}
    key = run("gpg", "--armor", "--export", cwd=made, **home)
    if name == "locked.asc":
        gpg = ("gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "secret")
        run(*gpg, "--quick-generate-key", "Locked <l@example.org>", "ed25519", cwd=made, **home)
        key = run(*gpg, "--armor", "--export-secret-keys", "l@example.org", cwd=made, **home)
        gpg = (*gpg[:3], "--yes", "--delete-secret-and-public-key")
        prints = run("gpg", "--list-keys", "--with-colons", "l@example.org", cwd=made, **home)
        run(*gpg, re.findall(r"fpr:+(\w+)", prints)[0], cwd=made, **home)
    (made / name).touch(0o600)
    (made / name).write_text(key, "utf-8")
    said = check(made, "--key", made / name, "--url", "https://apt.example.org", "--no-image")
    assert "pvebench: gpg failed with exit code 2" in said


def test_what_only_the_end_needs_is_checked_before_anything_is_built(made: Path) -> None:
    key = ("--key", made / "key.asc", "--no-image")
    assert "pass URL=" in check(made, *key)
    url = ("--url", "https://apt.example.org")
    assert "no copy of an apt repository" in check(made, *key, *url, "--earlier", url[1])
    shutil.copyfile(made / "key.asc", made / "open.asc")
    (made / "open.asc").chmod(0o644)
    assert "no file of mode 0600" in check(made, "--key", made / "open.asc", *url, "--no-image")
    said = check(made, PATH=str(Path(sys.executable).parent))
    assert "no container images: Docker does not respond; start it, or leave them out" in said


def test_a_published_version_keeps_its_content(made: Path, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    shutil.copytree(made / "dist", dist, ignore=shutil.ignore_patterns("publish", "*.asc"))
    with next(dist.glob("*_deb13_*.deb")).open("ab") as changed:
        changed.write(b"more")
    options = ["--key", made / "key.asc", "--earlier", made / "dist/publish/apt"]
    said = publish(made, dist, *map(str, options), code=1)
    assert "is published with other content; raise the version" in said


def test_recipes_of_other_distributions_have_version_and_dependencies() -> None:
    run("bash", "-n", ROOT / "packaging/aur/PKGBUILD", cwd=ROOT)
    nix = (ROOT / "packaging/nix/package.nix").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [re.split("[>=<]", text)[0].replace(".", "-") for text in project["dependencies"]]
    assert not [name for name in needed if name not in nix.split()]
    recipes = (nix, (ROOT / "packaging/aur/PKGBUILD").read_text("utf-8"))
    assert all(re.search(rf"ver(sion)?\W+{__version__}\b", text) for text in recipes)
