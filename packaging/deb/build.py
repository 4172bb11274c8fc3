"""Build the Debian packages of a wheel, for one release of Debian.

The wheel and the hashed packages of requirements.lock become a Python environment below
/usr/lib/pvebench for the release's Python. There is one package per release, because compiled
libraries depend on the minor version of Python: apt rejects the wrong package, and an upgrade of
Debian requires the other. pvebench-hub adds the packages of the extra `hub` to this environment.

The same wheel, lock and SOURCE_DATE_EPOCH give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from email.utils import formatdate
from pathlib import Path
from typing import Final

from manual import completions, manual

from pvebench.store.tables import SCHEMA

HERE: Final = Path(__file__).resolve().parent
HUB: Final = HERE / "hub"
UNITS: Final = HERE.parent / "systemd"
ROOT: Final = HERE.parents[1]
HUB_LOCK: Final = "requirements-hub.lock"


@dataclass(frozen=True, slots=True)
class Release:
    """Debian release: its Python version, and the newest glibc for wheels."""

    number: int
    python: tuple[int, int]
    glibc: int

    @property
    def minor(self) -> str:
        """Python version, such as `3.11`."""
        return ".".join(map(str, self.python))

    @property
    def depends(self) -> str:
        """Python dependency of the package."""
        major, minor = self.python
        return f"python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}~)"


RELEASES: Final = {
    12: Release(number=12, python=(3, 11), glibc=36),
    13: Release(number=13, python=(3, 13), glibc=41),
}


def main() -> int:
    """Build the package and print its path; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--release", type=int, choices=RELEASES, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--version", help="version of the package; default: the wheel's")
    parser.add_argument("--twice", action="store_true", help="build twice and compare the bytes")
    arguments = parser.parse_args()
    release = RELEASES[arguments.release]
    version = arguments.version or debian_version(arguments.wheel.name.split("-")[1])
    for name in ("pvebench", "pvebench-hub"):
        path = arguments.output / file_name(name, version, release)
        build(arguments.wheel, release, version, path)
        if arguments.twice:
            first = path.read_bytes()
            build(arguments.wheel, release, version, path)
            if path.read_bytes() != first:
                print(f"two builds of {path} differ; next step: compare them with diffoscope")
                return 3
        print(path)
    return 0


def file_name(name: str, version: str, release: Release) -> str:
    """Return a package's file name.

    It has no `~`, which sorts the versions: GitHub replaces one in the name of a release file.
    """
    return f"{name}_{version.replace('~', '.')}_deb{release.number}_amd64.deb"


def build(wheel: Path, release: Release, version: str, path: Path) -> None:
    """Create a package in a new temporary directory; its path begins with its name."""
    name, version = path.name.split("_")[0], f"{version}~deb{release.number}"
    with tempfile.TemporaryDirectory(prefix="pvebench-deb-") as work:
        tree = Path(work) / "tree"
        if name == "pvebench":
            site = environment(tree, wheel, release)
            place_files(tree, site, version)
            control(tree, HERE, release, version)
        else:
            site = hub_libraries(tree, release)
            place_hub_files(tree, site, version)
            control(tree, HUB, release, version)
        pack(tree, path)


def debian_version(version: str) -> str:
    """Return a Python version in Debian's format, with prereleases sorted before the release."""
    for mark in (".dev", "rc", "b", "a"):
        head, separator, tail = version.partition(mark)
        if separator:
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
    # By name, not by path: pip would record this machine's path.
    wheel_lock = tree.parent / "wheel.lock"
    wheel_lock.write_text(locked(wheel), "utf-8")
    install(site, release, ROOT / "requirements.lock", wheel_lock, wheel.resolve().parent)
    # The libraries' commands contain the path of the building Python and are not needed.
    shutil.rmtree(site / "bin", ignore_errors=True)
    return site


def hub_libraries(tree: Path, release: Release) -> Path:
    """Put the libraries that only the hub needs into the tree; return its site-packages."""
    site = tree / f"usr/lib/pvebench/lib/python{release.minor}/site-packages"
    site.mkdir(parents=True)
    entries = {path: lock_entries(ROOT / path) for path in ("requirements.lock", HUB_LOCK)}
    more = [text for text in entries[HUB_LOCK] if text not in entries["requirements.lock"]]
    lock = tree.parent / "hub.lock"
    lock.write_text("".join(more), "utf-8")
    install(site, release, lock)
    return site


def lock_entries(path: Path) -> list[str]:
    """Return the packages of a lock, each with its hashes."""
    return re.findall(r"(?m)^\S+==.*\n(?: .*\n)*", path.read_text("utf-8"))


def install(site: Path, release: Release, *locks: Path) -> None:
    """Install the packages of locks for a release; a folder among them has further wheels."""
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(release.glibc, 16, -1)]
    foreign = ["--target", str(site), "--implementation", "cp", "--python-version", release.minor]
    foreign += [f"--abi=cp{release.minor.replace('.', '')}", "--abi=abi3"]
    foreign += [f"--platform={tag}" for tag in [*tags, "manylinux2014_x86_64"]]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    command += [*foreign, "--only-binary=:all:", "--no-deps", "--no-compile"]
    for path in locks:
        command += ["--find-links" if path.is_dir() else "-r", str(path)]
    run([*command, "--require-hashes"])


def locked(wheel: Path) -> str:
    """Return a lock line that matches only this wheel."""
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} --hash=sha256:{digest}\n"


def place_files(tree: Path, site: Path, version: str) -> None:
    """Add all files except the environment and the control files to the tree."""
    share = tree / "usr/share"
    copies = {
        "usr/bin/pvebench": HERE / "pvebench.sh",
        "usr/lib/systemd/system/pvebench.service": UNITS / "pvebench.service",
        "usr/lib/sysusers.d/pvebench.conf": HERE / "sysusers.conf",
        "usr/lib/tmpfiles.d/pvebench.conf": HERE / "tmpfiles.conf",
        "etc/pvebench/pvebench.yaml": HERE / "pvebench.yaml",
        "usr/share/lintian/overrides/pvebench": HERE / "lintian-overrides",
        "usr/share/doc/pvebench/README.md": ROOT / "README.md",
    }
    for drop_in in UNITS.glob("*.conf"):
        copies[f"usr/share/pvebench/systemd/{drop_in.name}"] = drop_in
    for page in (ROOT / "docs").glob("*.md"):
        copies[f"usr/share/doc/pvebench/docs/{page.name}"] = page
    copy(copies, tree)
    for name, text in completions().items():
        (share / name).parent.mkdir(parents=True, exist_ok=True)
        (share / name).write_text(text, "utf-8")
    document(share, site, version)


def place_hub_files(tree: Path, site: Path, version: str) -> None:
    """Add all files of the hub's package except libraries and control files to the tree."""
    units = "usr/lib/systemd/system"
    copies = {
        # systemd applies it to every unit whose name begins so.
        f"{units}/pvebench-hub-.service.d/common.conf": UNITS / "hub/common.conf",
        "usr/lib/sysusers.d/pvebench-hub.conf": HUB / "sysusers.conf",
        "usr/share/pvebench-hub/roles.sql": HERE.parent / "postgres/10-roles.sql",
        "etc/default/pvebench-hub": HUB / "default",
        "usr/share/lintian/overrides/pvebench-hub": HUB / "lintian-overrides",
    }
    for unit in (UNITS / "hub").glob("pvebench-hub-*"):
        copies[f"{units}/{unit.name}"] = unit
    copy(copies, tree)
    legal(tree / "usr/share/doc/pvebench-hub", site, version)


def copy(copies: Mapping[str, Path], tree: Path) -> None:
    """Copy files to their places in the tree."""
    for name, source in copies.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, tree / name)


def document(share: Path, site: Path, version: str) -> None:
    """Add manual, changelogs and licenses to /usr/share."""
    (share / "man/man1").mkdir(parents=True)
    compress(share / "man/man1/pvebench.1.gz", manual(version))
    legal(share / "doc/pvebench", site, version)


def legal(doc: Path, site: Path, version: str) -> None:
    """Add the changelogs and licenses of a package, whose name is that of the folder."""
    doc.mkdir(parents=True, exist_ok=True)
    compress(doc / "changelog.gz", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    maintainer = HeaderParser().parsestr((HERE / "control").read_text("utf-8"))["Maintainer"]
    entry = f"{doc.name} ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
    # The changelog format requires an address; there is none.
    entry += f" -- {maintainer} <>  {formatdate(epoch())}\n"
    compress(doc / "changelog.Debian.gz", entry)
    (doc / "copyright").write_text(copyrights(site), "utf-8")


def copyrights(site: Path) -> str:
    """Return the license of pvebench and those of the libraries."""
    lines = []
    for metadata in sorted(site.glob("*.dist-info/METADATA")):
        package = HeaderParser().parsestr(metadata.read_text("utf-8"))
        if package["Name"] == "pvebench":
            continue
        classifiers = [
            classifier
            for classifier in package.get_all("Classifier", [])
            if classifier.startswith("License ::")
        ]
        expression = package["License-Expression"] or (package["License"] or "").partition("\n")[0]
        license_ = (
            expression
            or "; ".join(name.rpartition(" :: ")[2] for name in classifiers)
            or "see there"
        )
        lines.append(f"  {package['Name']} {package['Version']}: {license_}")
    return (HERE / "copyright").read_text("utf-8").replace("@LIBRARIES@", "\n".join(lines))


def control(tree: Path, source: Path, release: Release, version: str) -> None:
    """Add the control files of a folder to the tree."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    values = {
        "@DEB_VERSION@": version,
        "@VERSION@": version,
        "@PYTHON@": release.depends,
        "@SIZE@": str(sum(path.stat().st_size for path in files) // 1024 + 1),
        "@SCHEMA@": str(SCHEMA),
    }
    place = tree / "DEBIAN"
    place.mkdir()
    names = ("control", "preinst", "postinst", "prerm", "postrm")
    for name in (name for name in names if (source / name).exists()):
        text = (source / name).read_text("utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        (place / name).write_text(text, "utf-8")
    settings = [f"/{path.relative_to(tree)}\n" for path in files if tree / "etc" in path.parents]
    (place / "conffiles").write_text("".join(settings), "utf-8")
    (place / "md5sums").write_text(checksums(tree, files), "utf-8")


def checksums(tree: Path, files: Iterable[Path]) -> str:
    """Return the lines of `md5sums` (deb-md5sums(5)) for the files outside /etc."""
    names = (path.relative_to(tree) for path in files)
    return "".join(f"{md5(tree / name)}  {name}\n" for name in names if name.parts[0] != "etc")


def md5(path: Path) -> str:
    """Return the MD5 sum for dpkg --verify."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def pack(tree: Path, path: Path) -> None:
    """Create the package of a tree, reproducibly."""
    # Once: without $SOURCE_DATE_EPOCH git is a process, and a tree has thousands of files.
    time = epoch()
    for entry in [tree, *tree.rglob("*")]:
        if not entry.is_symlink():
            entry.chmod(mode(entry.relative_to(tree), is_directory=entry.is_dir()))
        os.utime(entry, (time, time), follow_symlinks=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", str(tree), str(path)]
    # The number of threads changes xz's blocks.
    run(command, DPKG_DEB_THREADS_MAX="1", SOURCE_DATE_EPOCH=str(time))


def mode(place: Path, *, is_directory: bool) -> int:
    """Return the mode of a file in the package, independent of the umask."""
    scripts = place.parent == Path("DEBIAN") and place.name in {
        "preinst",
        "postinst",
        "prerm",
        "postrm",
    }
    programs = place.parent == Path("usr/bin")
    return 0o755 if is_directory or scripts or programs else 0o644


def epoch() -> int:
    """Return the time stamp of all files: $SOURCE_DATE_EPOCH, or the commit's time."""
    configured = os.environ.get("SOURCE_DATE_EPOCH")
    return int(configured or run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]))


def compress(path: Path, text: str) -> None:
    """Write a text as gzip without a time stamp."""
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def run(command: list[str], **environment: str) -> str:
    """Run a program and return its output. Raises CalledProcessError."""
    done = subprocess.run(
        command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
