"""Stand-ins for images that cannot be pulled, made of this machine's Debian packages.

Where packages come from, and what it takes to reach them, is read from this machine's own apt and
pip when the test runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine import Docker, run

from pvebench.errors import ToolFailed, ToolsMissing

HERE: Final = Path(__file__).resolve().parent
SUITE: Final = "bookworm"
MARK: Final = "pvebench.stand-in"
"""Label of every stand-in."""
AUTHORITIES: Final = "/opt/stand-in-authorities.crt"
PACKAGES: Final = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")


def build_context(directory: Path) -> Path:
    """Make the directory that the stand-ins are built from: their files, and the packages'."""
    shutil.copytree(HERE, directory, ignore=shutil.ignore_patterns("*.pyc", "__pycache__"))
    packages = directory / "packages"
    packages.mkdir()
    run(
        ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *PACKAGES],
        os.environ,
        seconds=300,
        directory=packages,
    )
    for package in packages.glob("*.deb"):
        run(["dpkg-deb", "--extract", str(package), str(directory / "root")], os.environ)
        package.unlink()
    return directory


def make_base(docker: Docker, name: str, directory: Path) -> None:
    """Make what `debian:…-slim` is: Debian's minimal system, with this machine's package sources.

    Raises:
        ToolsMissing: debootstrap is not installed.
        ToolFailed: apt knows no Debian archive, or one of the steps did not work.
    """
    if shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        raise ToolsMissing("debootstrap is not installed", next_step="install debootstrap")
    sources = list(debian_sources())
    mirror = next((address for address, release in sources if release == SUITE), sources[0][0])
    root = directory / "base"
    run(
        ["debootstrap", "--variant=minbase", SUITE, str(root), mirror],
        {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
        seconds=900,
    )
    lines = [f"deb {address} {release} main\n" for address, release in sources]
    (root / "etc" / "apt" / "sources.list").write_text("".join(lines), "utf-8")
    (root / "etc" / "apt" / "apt.conf.d" / "90machine").write_text(apt_settings(), "utf-8")
    for archive in (root / "var" / "cache" / "apt" / "archives").glob("*.deb"):
        archive.unlink()
    changes = [f"--change=ENV {key}={value}" for key, value in pip_settings(root).items()]
    packed = directory / "base.tar"
    run(
        ["tar", "--create", "--file", str(packed), "--directory", str(root), "."],
        os.environ,
        seconds=300,
    )
    shutil.rmtree(root)
    changes += ['--change=CMD ["bash"]', f"--change=LABEL {MARK}=base"]
    docker("import", *changes, str(packed), name, seconds=600)
    packed.unlink()


def debian_sources() -> Iterator[tuple[str, str]]:
    """Yield (address, release) of the Debian archives that this machine's apt uses.

    Raises:
        ToolFailed: it uses none.
    """
    form = "$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)"
    text = run(["apt-get", "indextargets", "--format", form, "Identifier: Packages"], os.environ)
    found = False
    for origin, address, release, component in (line.split() for line in text.splitlines()):
        if origin == "Debian" and component == "main":
            found = True
            yield address, release
    if not found:
        raise ToolFailed("this machine's apt knows no Debian archive", next_step="apt-get update")


def apt_settings() -> str:
    """Return how this machine's apt reaches its archives: proxies and checks of dates."""
    text = run(["apt-config", "dump", "Acquire"], os.environ)
    kept = ("Acquire::http", "Acquire::Check-")
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(kept))


def pip_settings(root: Path) -> dict[str, str]:
    """Return what pip needs in its environment, and put the authorities into the image's files."""
    authorities = pip("global.cert") or os.environ.get("PIP_CERT", "")
    if authorities:
        shutil.copyfile(authorities, root / AUTHORITIES.lstrip("/"))
    index = pip("global.index-url") or os.environ.get("PIP_INDEX_URL", "")
    found = {"PIP_CERT": AUTHORITIES if authorities else "", "PIP_INDEX_URL": index}
    return {key: value for key, value in found.items() if value}


def pip(setting: str) -> str:
    """Return a setting of this machine's pip; empty if it has none."""
    done = subprocess.run(
        ["python3", "-m", "pip", "config", "get", setting],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""
