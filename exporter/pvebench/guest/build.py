"""Build of the image: kernel, initramfs and ISO from packages. It does not need root."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from platform import freedesktop_os_release
from tempfile import TemporaryFile
from typing import Final
from urllib.parse import unquote

from pvebench.errors import GuestImageError, NoSpace, NotWritable, PvebenchError, ToolsMissing
from pvebench.files import remove_tree
from pvebench.guest.archives import archive, make_iso
from pvebench.guest.content import direct_kernel, kernel_version, prove_programs, root_entries
from pvebench.guest.image import (
    FILES,
    MANIFEST,
    GuestImage,
    describe_files,
    file_digest,
    load_image,
    whole_digest,
)
from pvebench.guest.recipe import (
    COMPRESSION,
    FORMAT,
    KERNEL_PACKAGE,
    MERGED,
    NOT_NEEDED,
    PACKAGES,
    recipe_digest,
)
from pvebench.model.units import MIB, show_bytes

# --- distribution packages: resolution, download, unpacking without root
#
# apt resolves against an empty list of installed packages, so the result does not depend on the
# host; dpkg-deb and tar unpack, so no maintainer script runs.

_TAIL_LINES: Final = 5


@dataclass(frozen=True, slots=True)
class Package:
    """Package in apt's download list: `file` is the archive's name, `size` in bytes."""

    name: str
    version: str
    file: str
    size: int


def resolve(work: Path) -> list[Package]:
    """Return the packages of the guest with their dependencies, sorted by name.

    Raises:
        GuestImageError: apt does not find them.
    """
    status = work / "no-packages-installed"
    status.write_bytes(b"")
    names = [KERNEL_PACKAGE.get(freedesktop_os_release()["ID"], "linux-image-amd64"), *PACKAGES]
    output = _apt(
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
            *names,
        ],
        work,
    )
    packages = [_parse(line) for line in output.splitlines() if line.startswith("'")]
    needed = [package for package in packages if not re.fullmatch(NOT_NEEDED, package.name)]
    return sorted(needed, key=lambda package: package.name)


def _parse(line: str) -> Package:
    """Parse a line of apt: 'URL' file size hash."""
    file, size = line.split()[1:3]
    name, version, _ = file.split("_")
    return Package(unquote(name), unquote(version), file, int(size))


def download(packages: Sequence[Package], directory: Path, say: Callable[[str], None]) -> None:
    """Fetch the archives missing in `directory`; apt verifies each with its signed lists.

    Raises:
        GuestImageError: apt did not fetch all of them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    missing = _incomplete(packages, directory)
    if missing:
        total = sum(package.size for package in missing) // 1_000_000
        say(f"fetching {len(missing)} packages, {total} MB")
        names = [f"{package.name}={package.version}" for package in missing]
        # As root, apt would switch to a user without write access to the directory.
        _apt(["-o", "APT::Sandbox::User=root", "-qq", "download", *names], directory)
    lost = [package.file for package in _incomplete(packages, directory)]
    if lost:
        raise GuestImageError(f"apt did not fetch {', '.join(lost)}")


def _incomplete(packages: Sequence[Package], directory: Path) -> list[Package]:
    paths = {package: directory / package.file for package in packages}
    return [
        package
        for package, path in paths.items()
        if not path.exists() or path.stat().st_size != package.size
    ]


def unpack(packages: Sequence[Package], directory: Path, root: Path) -> None:
    """Unpack the archives' files below `root`, in merged directories.

    Raises:
        GuestImageError: an archive is damaged.
    """
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        problem = _unpack(directory / package.file, root)
        if problem is not None:
            raise GuestImageError(
                f"cannot unpack {package.file}: {problem}",
                next_step=f"remove {directory} and run the build again",
            )


def _unpack(archive: Path, root: Path) -> str | None:
    """Unpack one archive; return the error output if this failed.

    `dpkg-deb --extract` would also set the bits of set-user-id programs: the image gets its modes
    from the recipe, and a service under RestrictSUIDSGID= may not set those bits.
    """
    unpacked = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    command = ["tar", "--extract", "--no-same-permissions", "--no-same-owner"]
    command += ["--keep-directory-symlink"]
    with TemporaryFile("w+") as errors:
        with subprocess.Popen(unpacked, stdout=subprocess.PIPE, stderr=errors) as source:
            command += ["--directory", str(root)]
            done = subprocess.run(command, stdin=source.stdout, stderr=errors, check=False)
        if not (source.returncode or done.returncode):
            return None
        errors.seek(0)
        return errors.read().strip()


def _apt(arguments: list[str], directory: Path) -> str:
    done = subprocess.run(
        ["apt-get", *arguments], cwd=directory, capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-_TAIL_LINES:])
        raise GuestImageError(
            f"apt-get failed: {tail}",
            cause="the package lists are missing or old, or the package mirror is unreachable",
            next_step="run `sudo apt-get update`, then run the build again",
        )
    return done.stdout


REQUIRED_TOOLS: Final = {"apt-get": "apt", "dpkg-deb": "dpkg", "xorriso": "xorriso"}
"""Program -> Debian package, needed on the host for the build."""
NEEDED_BYTES: Final = 1536 * MIB
"""Free space for a build: archives, unpacked archives and the image."""
_WORK: Final = "build-"
_FORBIDDEN: Final = {errno.EACCES, errno.EPERM, errno.EROFS}


def build_image(
    directory: Path, *, say: Callable[[str], None] = lambda _: None, force: bool = False
) -> GuestImage:
    """Return the image in `directory`; build it first unless it exists, complete and current.

    The files are built in another directory and moved one by one, the manifest last: an
    interrupted build leaves either the old image or one that fails its verification.

    Raises:
        ToolsMissing: a program needed for the build is not installed.
        NotWritable: `directory` is not writable.
        NoSpace: its file system is too full.
        GuestImageError: the packages cannot be fetched or lack needed files.
    """
    if not force and (current := _current(directory)) is not None:
        return current
    _check_tools()
    with _locked(directory):
        if not force and (current := _current(directory)) is not None:
            return current  # another process has built it
        say(f"building the guest image in {directory} (first start only)")
        _prepare_directory(directory)
        with tempfile.TemporaryDirectory(dir=directory, prefix=_WORK) as name:
            _build(directory, Path(name), say)
    image = load_image(directory)
    say(f"guest image {image.digest[:12]} is ready")
    return image


def needs_build(directory: Path) -> bool:
    """Return whether the image is missing, so that the first run builds it. Raises ToolsMissing."""
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
            f"not installed, but needed to build the guest image: {', '.join(missing)}",
            next_step=f"run `apt-get install {' '.join(missing)}`",
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
            f"file system of {directory} full during the build of the guest image",
            next_step="free space, or use another directory with --directory",
        )
    if kind is NotWritable:
        return NotWritable(
            f"guest image directory {directory} is not writable: {error}",
            next_step="fix the permissions, or use another directory with --directory",
        )
    return kind(
        f"cannot build the guest image: {error}",
        cause="the packages have other files than expected",
    )


def _prepare_directory(directory: Path) -> None:
    # With the lock held, existing work directories are leftovers of killed builds.
    for left in directory.glob(f"{_WORK}*"):
        remove_tree(left)
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise NoSpace(
            f"{show_bytes(NEEDED_BYTES)} needed to build the guest image (most of it for a "
            f"minute), {show_bytes(free)} free in {directory}",
            next_step="free space, or use another directory with --directory",
        )


def _build(directory: Path, work: Path, say: Callable[[str], None]) -> None:
    packages = resolve(work)
    archives = directory / "packages"
    download(packages, archives, say)
    say(f"unpacking {len(packages)} packages")
    root = work / "root"
    unpack(packages, archives, root)
    version = kernel_version(root)
    image = work / "made"
    image.mkdir()
    say(f"assembling kernel {version}, initramfs and ISO")
    packed = root / "boot" / f"vmlinuz-{version}"
    (image / "kernel").write_bytes(direct_kernel(packed.read_bytes()))
    content = archive(root_entries(root, version))
    prove_programs(content, work / "tree")
    # Direct boot copies it at once: emulated decompression would take longer than reading.
    # The BIOS reads the ISO slowly, so there it is compressed.
    (image / "initramfs").write_bytes(content)
    compressed = work / "initramfs.gz"
    compressed.write_bytes(gzip.compress(content, compresslevel=COMPRESSION, mtime=0))
    make_iso(root, packed, compressed, work, image / "guest.iso")
    _write_manifest(image, packages, archives, version)
    _install(image, directory)


def _write_manifest(image: Path, packages: Sequence[Package], archives: Path, version: str) -> None:
    files = describe_files(image)
    manifest = {
        "format": FORMAT,
        "recipe": recipe_digest(),
        "digest": whole_digest(files),
        "kernel_version": version,
        "packages": {package.name: package.version for package in packages},
        "archives": {package.file: file_digest(archives / package.file) for package in packages},
        "files": files,
    }
    (image / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", "utf-8")


def _install(image: Path, directory: Path) -> None:
    # Without a manifest, a partially moved image fails its verification.
    (directory / MANIFEST).unlink(missing_ok=True)
    for name in (*FILES, MANIFEST):
        with (image / name).open("rb") as file:
            os.fsync(file.fileno())
        (image / name).replace(directory / name)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
