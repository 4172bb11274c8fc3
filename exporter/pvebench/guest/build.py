"""Building the image: packages in, kernel, initramfs and ISO out. No root needed."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pvebench.errors import GuestImageError, NoSpace, NotWritable, PvebenchError, ToolsMissing
from pvebench.files import remove_tree
from pvebench.guest.archives import archive, make_iso
from pvebench.guest.content import root_entries
from pvebench.guest.image import (
    FILES,
    MANIFEST,
    GuestImage,
    describe_files,
    file_digest,
    load_image,
    whole_digest,
)
from pvebench.guest.kernel import direct_kernel, kernel_version
from pvebench.guest.packages import Package, download, resolve, unpack
from pvebench.guest.recipe import FORMAT, recipe_digest
from pvebench.model.units import MIB, show_bytes

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
