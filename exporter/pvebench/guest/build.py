"""Building the image: packages in, kernel, initramfs and ISO out. No root needed."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final
from urllib.parse import unquote

from pvebench.errors import GuestImageError, NoSpace, NotWritable, PvebenchError, ToolsMissing
from pvebench.files import remove_tree
from pvebench.guest.archives import archive, make_iso
from pvebench.guest.content import direct_kernel, kernel_version, root_entries
from pvebench.guest.image import (
    FILES,
    MANIFEST,
    GuestImage,
    describe_files,
    file_digest,
    load_image,
    whole_digest,
)
from pvebench.guest.recipe import FORMAT, KERNEL_PACKAGE, NOT_NEEDED, PACKAGES, recipe_digest
from pvebench.model.units import MIB, show_bytes

# --- Distribution packages: which are needed, where they come from, unpacked without root.
#
# apt resolves against an empty list of installed packages, so the answer does not depend on the
# host; dpkg-deb and tar unpack, so no maintainer script runs.

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


REQUIRED_TOOLS: Final = {"apt-get": "apt", "dpkg-deb": "dpkg", "xorriso": "xorriso"}
"""Program -> Debian package, needed on the host to build."""
NEEDED_BYTES: Final = 1536 * MIB
"""Free space that a build wants: archives, what they unpack to, and the image."""
_WORK: Final = "build-"
_FORBIDDEN: Final = {errno.EACCES, errno.EPERM, errno.EROFS}


def build_image(
    directory: Path, *, say: Callable[[str], None] = lambda _: None, force: bool = False
) -> GuestImage:
    """Return the image in `directory`, built first unless it is there, whole and current.

    Everything is made beside the final place and moved there file by file, the manifest last:
    a build that is cut off leaves either the old image or one that fails its verification.

    Raises:
        ToolsMissing: a program needed for building is not installed.
        NotWritable: `directory` cannot be written.
        NoSpace: its file system is too full.
        GuestImageError: the packages cannot be fetched or do not hold what is needed.
    """
    if not force and (current := _current(directory)) is not None:
        return current
    _check_tools()
    with _locked(directory):
        if not force and (current := _current(directory)) is not None:
            return current  # another process has built it meanwhile
        say(f"building the guest image in {directory}, once")
        _make_room(directory)
        with tempfile.TemporaryDirectory(dir=directory, prefix=_WORK) as name:
            _build(directory, Path(name), say)
    image = load_image(directory)
    say(f"guest image {image.digest[:12]} is ready")
    return image


def to_be_built(directory: Path) -> bool:
    """Return whether there is no image yet and the first run makes it. Raises ToolsMissing."""
    if (directory / MANIFEST).exists():
        return False
    _check_tools()
    return True


def _current(directory: Path) -> GuestImage | None:
    with suppress(GuestImageError):
        image = load_image(directory)
        if image.manifest.get("recipe") == recipe_digest():
            return image
    return None


def _check_tools() -> None:
    missing = [package for tool, package in REQUIRED_TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise ToolsMissing(
            f"building the guest image needs {', '.join(missing)}, not installed here",
            next_step=f"install: apt-get install {' '.join(missing)}",
        )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _failed(directory, error, NotWritable) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    except OSError as error:
        kind = NotWritable if error.errno in _FORBIDDEN else GuestImageError
        raise _failed(directory, error, kind) from error
    finally:
        os.close(fd)


def _failed(directory: Path, error: OSError, kind: type[PvebenchError]) -> PvebenchError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return NoSpace(
            f"the file system of {directory} became full while the guest image was built",
            next_step="free space, or name another directory with --directory",
        )
    if kind is NotWritable:
        return NotWritable(
            f"the guest image's directory {directory} cannot be written: {error}",
            next_step="name another with --directory, or mend the permissions",
        )
    return kind(
        f"the guest image cannot be built: {error}",
        cause="the packages hold other files than this builder expects",
    )


def _make_room(directory: Path) -> None:
    # Whoever holds the lock is alone: what lies here is of a build that was killed.
    for left in directory.glob(f"{_WORK}*"):
        remove_tree(left)
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise NoSpace(
            f"{show_bytes(free)} free in {directory}; building the guest image takes up to "
            f"{show_bytes(NEEDED_BYTES)}, most of it for a minute",
            next_step="free space, or name another directory with --directory",
        )


def _build(directory: Path, work: Path, say: Callable[[str], None]) -> None:
    packages = resolve(work)
    archives = directory / "packages"
    download(packages, archives, say)
    say(f"unpacking {len(packages)} packages")
    root = work / "root"
    unpack(packages, archives, root)
    version = kernel_version(root)
    made = work / "made"
    made.mkdir()
    say(f"assembling kernel {version}, initramfs and ISO")
    packed = root / "boot" / f"vmlinuz-{version}"
    (made / "kernel").write_bytes(direct_kernel(packed.read_bytes()))
    content = archive(root_entries(root, version))
    # Direct boot copies it in one go: emulated decompression would take longer than reading.
    # Through the BIOS every byte of the ISO counts, so there it is compressed.
    (made / "initramfs").write_bytes(content)
    compressed = work / "initramfs.gz"
    compressed.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))
    make_iso(root, packed, compressed, work, made / "guest.iso")
    _write_manifest(made, packages, archives, version)
    _install(made, directory)


def _write_manifest(made: Path, packages: Sequence[Package], archives: Path, version: str) -> None:
    files = describe_files(made)
    manifest = {
        "format": FORMAT,
        "recipe": recipe_digest(),
        "digest": whole_digest(files),
        "kernel_version": version,
        "packages": {package.name: package.version for package in packages},
        "archives": {package.file: file_digest(archives / package.file) for package in packages},
        "files": files,
    }
    (made / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", "utf-8")


def _install(made: Path, directory: Path) -> None:
    # Without its manifest a half-moved image does not verify.
    (directory / MANIFEST).unlink(missing_ok=True)
    for name in (*FILES, MANIFEST):
        with (made / name).open("rb") as file:
            os.fsync(file.fileno())
        (made / name).replace(directory / name)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
