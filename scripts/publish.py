"""Write what a release publishes besides its files, into DIRECTORY/publish.

A signed apt repository, the container images, SBOM, provenance and dashboards; with a key, also
DIRECTORY/SHA256SUMS.asc and the public key. docs/releasing.md says what a person does with each.

Usage: python scripts/publish.py DIRECTORY [--key FILE --url URL] [--earlier DIRECTORY] [--no-image]
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SUITES: Final = {"12": "bookworm", "13": "trixie"}
SUMS: Final = "SHA256SUMS"
COMPONENT: Final = "main/binary-amd64"
TARGETS: Final = {"pvebench": "", "pvebench-hub": "hub"}
"""Image -> target of the Dockerfile."""
FIRST_OCI_DOCKER: Final = 25
"""Major version from which `docker save` writes the layout of OCI."""


def main() -> int:
    """Write the files; print what was left out, and why."""
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("directory", type=Path, help="files of `make release`")
    parser.add_argument("--key", type=Path, help="file with a secret GPG key, which signs")
    parser.add_argument("--url", help="of the apt repository, for its users")
    parser.add_argument("--earlier", type=Path, help="copy of the published apt repository")
    parser.add_argument("--no-image", action="store_true", help="build no container images")
    parser.add_argument("--check", action="store_true", help="check options and programs only")
    given = parser.parse_args()
    check(given)
    if not given.check:
        write(given, given.directory.absolute())
    return 0


def write(given: argparse.Namespace, directory: Path) -> None:
    """Write everything below `directory`/publish, and what is signed beside it."""
    output = directory / "publish"
    output.mkdir()
    boards = ["-m", "pvebench", "print", "dashboards", "--output", str(output / "grafana")]
    run(sys.executable, *boards)
    bill = ROOT / "build/sbom"
    if bill.is_dir():
        shutil.copytree(bill, output / "sbom")
    if not given.no_image:
        images(directory, output)
    (output / "provenance.json").write_text(provenance(directory), "utf-8")
    left_out = ["container images"] if given.no_image else []
    left_out += [] if bill.is_dir() else ["SBOM"]
    if given.key:
        sign(given.key, lambda gpg: signed_files(gpg, directory, given.earlier, given.url))
    else:
        left_out += ["signatures", "apt repository (pass KEY=FILE, a secret GPG key)"]
    print(f"pvebench: {output} has what docs/releasing.md publishes")
    if left_out:
        print(f"pvebench: not in it: {', '.join(left_out)}")


def run(*command: str | Path, **options: Any) -> str:
    """Return a program's output; its errors end this one."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"pvebench: {command[0]} failed with exit code {done.returncode}")
    return done.stdout


def check(given: argparse.Namespace) -> None:
    """Exit if something is missing that is needed at the end; building takes minutes."""
    lacking = "" if given.no_image else why_no_images()
    if lacking:
        sys.exit(f"pvebench: no container images: {lacking}, or leave them out with IMAGES=no")
    if given.earlier is not None and not (given.earlier / "pool").is_dir():
        sys.exit(
            f"pvebench: EARLIER={given.earlier} is no copy of an apt repository: no pool in it"
        )
    if given.key is None:
        return
    programs = ("gpg", "gpg-agent", "apt-ftparchive")
    if missing := [name for name in programs if not shutil.which(name)]:
        install = "apt-get install gpg gpg-agent apt-utils"
        sys.exit(f"pvebench: missing {', '.join(missing)}; run {install}")
    if given.url is None:
        sys.exit("pvebench: no address of the apt repository; pass URL=https://…")
    if not given.key.is_file() or given.key.stat().st_mode & 0o077:
        sys.exit(f"pvebench: KEY={given.key} is no file of mode 0600")
    sign(given.key, lambda gpg: run(*gpg, "--clearsign", input="pvebench\n"))


def provenance(directory: Path) -> str:
    """Return an in-toto statement: files, commit, and the command that made them."""
    lines = [line.split() for line in (directory / SUMS).read_text("utf-8").splitlines()]
    archives = sorted((directory / "publish/images").glob("*.tar"))
    lines += [[sha256(path.read_bytes()).hexdigest(), path.name] for path in archives]
    commit = run("git", "-C", ROOT, "rev-parse", "HEAD").strip()
    source = {"uri": "git+file:pvebench", "digest": {"gitCommit": commit}}
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for digest, name in lines],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "pvebench:make-release",
                "externalParameters": {"command": "make release"},
                "resolvedDependencies": [source],
            },
            "runDetails": {"builder": {"id": "pvebench:a-person"}},
        },
    }
    return json.dumps(statement, indent=2) + "\n"


# --- Signatures, with a key that only this run knows


def sign(key: Path, use: Callable[[list[str]], object]) -> None:
    """Call `use` with the start of a gpg command that has the key."""
    with tempfile.TemporaryDirectory(prefix="pvebench-gpg-") as home:
        gpg = ["gpg", "--homedir", home, "--batch", "--yes", "--quiet", "--armor"]
        gpg += ["--pinentry-mode", "error"]  # the key has no passphrase
        run(*gpg, "--import", key)
        try:
            use(gpg)
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def signed_files(gpg: list[str], directory: Path, earlier: Path | None, url: str) -> None:
    """Write the signature of the checksums, and the repository."""
    sums = [directory / SUMS, directory / "publish/provenance.json"]
    for path in sums:
        run(*gpg, "--output", f"{path}.asc", "--detach-sign", path)
    tree = directory / "publish/apt"
    public = run(*gpg, "--export")
    (directory / "pvebench.asc").write_text(public, "utf-8")
    for number, suite in SUITES.items():
        pool = tree / "pool" / suite
        if earlier is not None:
            shutil.copytree(earlier / "pool" / suite, pool)
        pool.mkdir(parents=True, exist_ok=True)
        for package in sorted(directory.glob(f"*_deb{number}_*.deb")):
            published = pool / package.name
            if published.exists() and published.read_bytes() != package.read_bytes():
                sys.exit(
                    f"pvebench: {package.name} is published with other content; raise the version"
                )
            shutil.copyfile(package, published)
        index(tree, suite)
        release = tree / "dists" / suite / "Release"
        run(*gpg, "--output", release.with_name("InRelease"), "--clearsign", release)
        run(*gpg, "--output", f"{release}.gpg", "--detach-sign", release)
        (tree / f"{suite}.sources").write_text(sources(suite, url, public), "utf-8")


def index(tree: Path, suite: str) -> None:
    """Write Packages and Release of a suite."""
    folder = tree / "dists" / suite
    (folder / COMPONENT).mkdir(parents=True)
    packages = run("apt-ftparchive", "packages", f"pool/{suite}", cwd=tree)
    (folder / COMPONENT / "Packages").write_text(packages, "utf-8")
    packed = gzip.compress(packages.encode(), mtime=0)
    (folder / COMPONENT / "Packages.gz").write_bytes(packed)
    fields = {"Origin": "pvebench", "Label": "pvebench", "Suite": suite, "Codename": suite}
    fields |= {"Components": "main", "Architectures": "amd64"}
    options = [f"-oAPT::FTPArchive::Release::{name}={text}" for name, text in fields.items()]
    release = run("apt-ftparchive", *options, "release", folder)
    (folder / "Release").write_text(release, "utf-8")


def sources(suite: str, url: str, public: str) -> str:
    """Return the file for /etc/apt/sources.list.d, with the public key in it."""
    key = "\n".join(f" {line or '.'}" for line in public.strip().splitlines())
    return f"Types: deb\nURIs: {url}\nSuites: {suite}\nComponents: main\nSigned-By:\n{key}\n"


# --- Container images


def images(directory: Path, output: Path) -> None:
    """Write the images as archives in the layout of OCI."""
    (context,) = directory.glob("pvebench-*-image.tar.gz")
    version = re.sub(r"pvebench-(.*)-image\.tar\.gz", r"\1", context.name)
    (output / "images").mkdir()
    for name, target in TARGETS.items():
        tag = f"{name}:{version}"
        # The host's network: an engine without a bridge has no other.
        build = ["docker", "build", "--quiet", "--network=host", "--tag", tag]
        build += ["--file", "exporter/Dockerfile", *(["--target", target] if target else []), "-"]
        with context.open("rb") as sent:
            run(*build, stdin=sent)
        archive = output / f"images/{name}-{version}-oci.tar"
        with tempfile.TemporaryDirectory(dir=output) as place:
            saved = Path(place) / "saved.tar"
            run("docker", "save", "--output", saved, tag)
            if has_oci_layout(saved):
                saved.rename(archive)
            else:
                names = f"docker-archive:{saved}", f"oci-archive:{archive}:{tag}"
                run("skopeo", "copy", "--quiet", *names)


def why_no_images() -> str:
    """Return why no images can be built here; empty if they can."""
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "info"], check=False, capture_output=True).returncode
    ):
        return "Docker does not respond; start it"
    version = run("docker", "version", "--format", "{{.Server.Version}}")
    if int(version.partition(".")[0]) < FIRST_OCI_DOCKER and not shutil.which("skopeo"):
        return f"Docker {version.strip()} saves no OCI archive; run apt-get install skopeo"
    return ""


def has_oci_layout(archive: Path) -> bool:
    """Whether an archive of `docker save` is one of OCI."""
    with tarfile.open(archive) as opened:
        return "oci-layout" in opened.getnames()


if __name__ == "__main__":
    sys.exit(main())
