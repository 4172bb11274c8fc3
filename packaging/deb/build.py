"""Build the Debian package of a wheel, for one release of Debian.

The wheel and what requirements.lock names, by hash, become a Python environment of the release's
own Python below /usr/lib/pvebench. One package a release, because compiled libraries belong to one
minor version of Python: apt refuses the wrong one, and an upgrade of Debian asks for the other.

The same wheel, lock and SOURCE_DATE_EPOCH give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from email.parser import HeaderParser
from email.utils import formatdate
from pathlib import Path
from typing import Final

from manual import completions, manual

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Debian: its Python, and the newest glibc that wheels may ask for."""

    number: int
    python: tuple[int, int]
    glibc: int

    @property
    def minor(self) -> str:
        """`3.11`."""
        return ".".join(map(str, self.python))

    @property
    def depends(self) -> str:
        """What the package says about Python."""
        major, minor = self.python
        return f"python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}~)"


RELEASES: Final = {
    12: Release(number=12, python=(3, 11), glibc=36),
    13: Release(number=13, python=(3, 13), glibc=41),
}


def main() -> int:
    """Build; print the package's path; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--release", type=int, choices=RELEASES, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--version", help="of the package; default: the wheel's")
    parser.add_argument("--twice", action="store_true", help="and compare the bytes")
    told = parser.parse_args()
    release = RELEASES[told.release]
    version = told.version or debian_version(told.wheel.name.split("-")[1])
    path = told.output / f"pvebench_{version}~deb{release.number}_amd64.deb"
    build(told.wheel, release, path)
    if told.twice:
        first = path.read_bytes()
        build(told.wheel, release, path)
        if path.read_bytes() != first:
            print(f"two builds of {path} differ; next step: diffoscope tells where")
            return 3
    print(path)
    return 0


def build(wheel: Path, release: Release, path: Path) -> None:
    """Make the package, in a place of its own whose name is another each time."""
    version = path.name.split("_")[1]
    with tempfile.TemporaryDirectory(prefix="pvebench-deb-") as work:
        tree = Path(work) / "tree"
        site = environment(tree, wheel, release)
        place_files(tree, site, version)
        control(tree, site, release, version)
        pack(tree, path)


def debian_version(version: str) -> str:
    """Return a version of Python's as Debian sorts it: what comes before a release, before it."""
    for mark in (".dev", "rc", "b", "a"):
        head, found, tail = version.partition(mark)
        if found:
            return f"{head}~{mark.strip('.')}{tail}"
    return version


def environment(tree: Path, wheel: Path, release: Release) -> Path:
    """Put the bundled Python environment into the tree; return its site-packages."""
    home = tree / "usr/lib/pvebench"
    site = home / f"lib/python{release.minor}/site-packages"
    site.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to(f"../../../bin/python{release.minor}")
    (home / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\n", "utf-8"
    )
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(release.glibc, 16, -1)]
    foreign = ["--target", str(site), "--implementation", "cp", "--python-version", release.minor]
    foreign += [f"--abi=cp{release.minor.replace('.', '')}", "--abi=abi3"]
    foreign += [f"--platform={tag}" for tag in [*tags, "manylinux2014_x86_64"]]
    install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    install += [*foreign, "--only-binary=:all:", "--no-deps", "--no-compile"]
    # By name, not by path: pip would keep the path, which is this machine's.
    ours = tree.parent / "wheel.lock"
    ours.write_text(locked(wheel), "utf-8")
    locks = ["-r", str(ROOT / "requirements.lock"), "-r", str(ours)]
    run([*install, "--require-hashes", "--find-links", str(wheel.resolve().parent), *locks])
    # The commands of libraries name the Python that builds; nobody asked for them either.
    shutil.rmtree(site / "bin", ignore_errors=True)
    return site


def locked(wheel: Path) -> str:
    """Return the line of a lock that only this wheel meets."""
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} --hash=sha256:{digest}\n"


def place_files(tree: Path, site: Path, version: str) -> None:
    """Put everything but the environment and the control files into the tree."""
    share = tree / "usr/share"
    copies = {
        "usr/bin/pvebench": HERE / "pvebench.sh",
        "usr/lib/systemd/system/pvebench.service": HERE.parent / "systemd/pvebench.service",
        "usr/lib/sysusers.d/pvebench.conf": HERE / "sysusers.conf",
        "usr/lib/tmpfiles.d/pvebench.conf": HERE / "tmpfiles.conf",
        "etc/pvebench/pvebench.yaml": HERE / "pvebench.yaml",
        "usr/share/lintian/overrides/pvebench": HERE / "lintian-overrides",
        "usr/share/doc/pvebench/README.md": ROOT / "README.md",
    }
    for drop_in in (HERE.parent / "systemd").glob("*.conf"):
        copies[f"usr/share/pvebench/systemd/{drop_in.name}"] = drop_in
    for page in (ROOT / "docs").glob("*.md"):
        copies[f"usr/share/doc/pvebench/docs/{page.name}"] = page
    for name, source in copies.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, tree / name)
    for name, text in completions().items():
        (share / name).parent.mkdir(parents=True, exist_ok=True)
        (share / name).write_text(text, "utf-8")
    document(share, site, version)


def document(share: Path, site: Path, version: str) -> None:
    """Put manual, changelogs and licences into /usr/share."""
    (share / "man/man1").mkdir(parents=True)
    compress(share / "man/man1/pvebench.1.gz", manual(version))
    doc = share / "doc/pvebench"
    compress(doc / "changelog.gz", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    maintainer = HeaderParser().parsestr((HERE / "control").read_text("utf-8"))["Maintainer"]
    entry = f"pvebench ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
    # The form of a changelog has a place for an address; there is none.
    entry += f" -- {maintainer} <>  {formatdate(epoch())}\n"
    compress(doc / "changelog.Debian.gz", entry)
    (doc / "copyright").write_text(copyrights(site), "utf-8")


def copyrights(site: Path) -> str:
    """Return the licence of pvebench, and which of the libraries has which."""
    lines = []
    for metadata in sorted(site.glob("*.dist-info/METADATA")):
        found = HeaderParser().parsestr(metadata.read_text("utf-8"))
        if found["Name"] == "pvebench":
            continue
        trove = [one for one in found.get_all("Classifier", []) if one.startswith("License ::")]
        said = found["License-Expression"] or (found["License"] or "").partition("\n")[0]
        licence = said or "; ".join(one.rpartition(" :: ")[2] for one in trove) or "see there"
        lines.append(f"  {found['Name']} {found['Version']}: {licence}")
    return (HERE / "copyright").read_text("utf-8").replace("@LIBRARIES@", "\n".join(lines))


def control(tree: Path, site: Path, release: Release, version: str) -> None:
    """Put the control files into the tree."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    revisions = revisions_in(site / "pvebench/store/migrations/versions")
    values = {
        "@DEB_VERSION@": version,
        "@VERSION@": version,
        "@PYTHON@": release.depends,
        "@SIZE@": str(sum(path.stat().st_size for path in files) // 1024 + 1),
        "@REVISIONS@": " ".join(revisions),
        "@HEAD@": revisions[-1],
    }
    place = tree / "DEBIAN"
    place.mkdir()
    for name in ("control", "preinst", "postinst", "prerm", "postrm"):
        text = (HERE / name).read_text("utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        (place / name).write_text(text, "utf-8")
    (place / "conffiles").write_text("/etc/pvebench/pvebench.yaml\n", "utf-8")
    sums = [
        f"{md5(one)}  {one.relative_to(tree)}\n"
        for one in files
        if one.relative_to(tree).parts[0] != "etc"
    ]
    (place / "md5sums").write_text("".join(sums), "utf-8")


def revisions_in(versions: Path) -> list[str]:
    """Return the layouts of the database that this version can read, oldest first."""
    return [path.name.partition("_")[0] for path in sorted(versions.glob("[0-9]*.py"))]


def md5(path: Path) -> str:
    """Return the sum that dpkg --verify wants."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def pack(tree: Path, path: Path) -> None:
    """Make the package of a tree, the same bytes whoever does it and when."""
    for one in [tree, *tree.rglob("*")]:
        if not one.is_symlink():
            one.chmod(mode(one.relative_to(tree), is_directory=one.is_dir()))
        os.utime(one, (epoch(), epoch()), follow_symlinks=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", str(tree), str(path)]
    # xz cuts its blocks by the number of threads.
    run(command, DPKG_DEB_THREADS_MAX="1", SOURCE_DATE_EPOCH=str(epoch()))


def mode(place: Path, *, is_directory: bool) -> int:
    """Return the mode of a file of the package, whatever umask built it."""
    scripts = place.parent == Path("DEBIAN") and place.name in {
        "preinst",
        "postinst",
        "prerm",
        "postrm",
    }
    programs = place.parent == Path("usr/bin")
    return 0o755 if is_directory or scripts or programs else 0o644


def epoch() -> int:
    """Return the time of everything in the package: $SOURCE_DATE_EPOCH, or that of the commit."""
    told = os.environ.get("SOURCE_DATE_EPOCH")
    return int(told or run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]))


def compress(path: Path, text: str) -> None:
    """Write a text as gzip without a time of its own."""
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def run(command: list[str], **environment: str) -> str:
    """Return what a program prints; its failure is this one's."""
    done = subprocess.run(
        command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
