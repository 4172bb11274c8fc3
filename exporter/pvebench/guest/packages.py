"""Distribution packages: which are needed, where they come from, unpacked without root.

apt resolves against an empty list of installed packages, so the answer does not depend on the
host; dpkg-deb and tar unpack, so no maintainer script runs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final
from urllib.parse import unquote

from pvebench.errors import GuestImageError
from pvebench.guest.recipe import KERNEL_PACKAGE, NOT_NEEDED, PACKAGES

_TAIL_LINES: Final = 5


@dataclass(frozen=True, slots=True)
class Package:
    """One package as apt would fetch it: `file` is the archive's name, `size` in bytes."""

    name: str
    version: str
    file: str
    size: int


def resolve(work: Path) -> list[Package]:
    """Return the packages that make the guest, with their dependencies, sorted by name.

    Raises:
        GuestImageError: apt does not know them.
    """
    status = work / "no-packages-installed"
    status.write_bytes(b"")
    wanted = [KERNEL_PACKAGE.get(_distribution(), "linux-image-amd64"), *PACKAGES]
    out = _apt(
        [
            "-o",
            f"Dir::State::status={status}",
            "-o",
            "APT::Install-Recommends=false",
            "-o",
            f"Dir::Cache={work / 'apt'}",
            "-o",
            "Debug::NoLocking=1",
            "--print-uris",
            "-qq",
            "install",
            *wanted,
        ],
        work,
    )
    found = [_parse(line) for line in out.splitlines() if line.startswith("'")]
    return sorted((one for one in found if one.name not in NOT_NEEDED), key=lambda one: one.name)


def _parse(line: str) -> Package:
    """Return the package in a line of apt's: 'address' file size hash."""
    file, size = line.split()[1:3]
    name, version, _ = file.split("_")
    return Package(unquote(name), unquote(version), file, int(size))


def _distribution() -> str:
    pairs = (line.partition("=") for line in Path("/etc/os-release").read_text().splitlines())
    return {key: value.strip('"') for key, _, value in pairs}.get("ID", "")


def download(packages: Sequence[Package], directory: Path, say: Callable[[str], None]) -> None:
    """Fetch what is not in `directory` yet; apt checks every archive against its signed lists.

    Raises:
        GuestImageError: apt could not fetch it all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    missing = [one for one in packages if not _is_whole(directory / one.file, one.size)]
    if missing:
        total = sum(one.size for one in missing) // 1_000_000
        say(f"fetching {len(missing)} packages, {total} MB")
        names = [f"{one.name}={one.version}" for one in missing]
        # As root apt would hand over to a user who may not write here.
        _apt(["-o", "APT::Sandbox::User=root", "-qq", "download", *names], directory)
    lost = [one.file for one in packages if not _is_whole(directory / one.file, one.size)]
    if lost:
        raise GuestImageError(f"apt did not fetch {', '.join(lost)}")


def _is_whole(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def unpack(packages: Sequence[Package], directory: Path, root: Path) -> None:
    """Unpack the archives' files below `root`.

    Raises:
        GuestImageError: an archive is damaged.
    """
    root.mkdir(parents=True, exist_ok=True)
    for package in packages:
        wrong = _unpack(directory / package.file, root)
        if wrong is not None:
            raise GuestImageError(
                f"{package.file} cannot be unpacked: {wrong}",
                next_step=f"remove {directory} and build again",
            )


def _unpack(archive: Path, root: Path) -> str | None:
    """Unpack one archive; return what was said if it went wrong.

    Not by `dpkg-deb --extract`, which sets the bits of set-user-id programs too: the image gets its
    modes from the recipe, and a service under RestrictSUIDSGID= may not set those bits.
    """
    unpacked = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    command = ["tar", "--extract", "--no-same-permissions", "--no-same-owner"]
    with TemporaryFile("w+") as said:
        with subprocess.Popen(unpacked, stdout=subprocess.PIPE, stderr=said) as source:
            command += ["--directory", str(root)]
            done = subprocess.run(command, stdin=source.stdout, stderr=said, check=False)
        if not (source.returncode or done.returncode):
            return None
        said.seek(0)
        return said.read().strip()


def _apt(arguments: list[str], directory: Path) -> str:
    done = subprocess.run(
        ["apt-get", *arguments], cwd=directory, capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-_TAIL_LINES:])
        raise GuestImageError(
            f"apt-get failed: {tail}",
            cause="the package lists are missing or old, or the package mirror is out of reach",
            next_step="run: sudo apt-get update; then build again",
        )
    return done.stdout
