"""Archives of the guest: cpio for the kernel, a bootable ISO for the BIOS.

The cpio archive has the kernel's `newc` format. It is written here because no other tool writes
device nodes without root and without owners and times. Format: the kernel's
Documentation/driver-api/early-userspace/buffer-format.rst. The ISO has the same kernel and
initramfs, for hypervisors without direct boot. Equal content results in equal bytes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pvebench.errors import GuestImageError
from pvebench.guest.recipe import KERNEL_ARGUMENTS

EPOCH: Final = 1_700_000_000
"""Time of all files in archives, so that equal content results in equal bytes."""
_BOOT_FILES: Final = {
    "isolinux.bin": "usr/lib/ISOLINUX/isolinux.bin",
    "ldlinux.c32": "usr/lib/syslinux/modules/bios/ldlinux.c32",
}
_BLOCK: Final = 4
DIRECTORY: Final = 0o040000
FILE: Final = 0o100000
LINK: Final = 0o120000
CHARACTER: Final = 0o020000
KIND_BITS: Final = 0o170000
_HEADER: Final = 110
"""Bytes before an entry's path: 6 of magic, 13 numbers of 8 digits."""
_TRAILER: Final = "TRAILER!!!"


@dataclass(frozen=True, slots=True)
class Entry:
    """Archive entry: file type and permissions, content (of a link: its target), device numbers."""

    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def archive(entries: Mapping[str, Entry]) -> bytes:
    """Return the archive of `entries` (path without leading slash -> entry).

    Missing parents are added; entries are sorted, so a parent comes first.
    """
    whole = {**_parents(entries), **entries}
    parts = [
        _record(path, whole[path], number) for number, path in enumerate(sorted(whole), start=1)
    ]
    return b"".join([*parts, _record(_TRAILER, Entry(0), 0)])


def _parents(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    parents = {}
    for path in entries:
        while "/" in path:
            path = path.rpartition("/")[0]  # noqa: PLW2901 # walks up
            parents[path] = Entry(DIRECTORY | 0o755)
    return parents


def _record(path: str, entry: Entry, number: int) -> bytes:
    name = path.encode() + b"\0"
    links = 2 if entry.mode & KIND_BITS == DIRECTORY else 1
    major, minor = entry.device
    fields = (
        number,
        entry.mode,
        0,
        0,
        links,
        0,
        len(entry.content),
        0,
        0,
        major,
        minor,
        len(name),
        0,
    )
    header = b"070701" + "".join(f"{field:08X}" for field in fields).encode()
    return _padded(header + name) + _padded(entry.content)


def unpack_archive(data: bytes, directory: Path, *, but: str) -> None:
    """Unpack an archive's directories, files and links below `directory`; no device nodes.

    The archive is verified and written by pvebench, so its paths stay below `directory`.

    Args:
        but: prefix of the paths to leave out.
    """
    for path, entry in entries_of(data):
        if not path.startswith(but):
            _place(directory / path, entry)


def entries_of(data: bytes) -> Iterator[tuple[str, Entry]]:
    """Yield path and entry of each member of an archive."""
    at = 0
    while True:
        fields = [int(data[at + 6 + 8 * nr : at + 14 + 8 * nr], 16) for nr in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        path = data[at + _HEADER : at + _HEADER + name_size - 1].decode()
        if path == _TRAILER:
            return
        begin = _aligned(at + _HEADER + name_size)
        yield path, Entry(mode, data[begin : begin + size])
        at = _aligned(begin + size)


def _place(path: Path, entry: Entry) -> None:
    kind = entry.mode & KIND_BITS
    if kind == DIRECTORY:
        path.mkdir(exist_ok=True)
    elif kind == LINK:
        path.symlink_to(entry.content.decode())
    elif kind == FILE:
        path.write_bytes(entry.content)
        path.chmod(entry.mode & ~KIND_BITS)


def _aligned(place: int) -> int:
    return place + -place % _BLOCK


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _BLOCK)


def make_iso(root: Path, kernel: Path, initramfs: Path, work: Path, target: Path) -> None:
    """Write the ISO to `target`; the boot loader comes from packages unpacked below `root`.

    Raises:
        GuestImageError: xorriso failed.
    """
    tree = work / "iso"
    (tree / "isolinux").mkdir(parents=True)
    for name, source in _BOOT_FILES.items():
        (tree / "isolinux" / name).write_bytes((root / source).read_bytes())
    (tree / "isolinux" / "isolinux.cfg").write_text(
        f"default pvebench\nlabel pvebench\n kernel /vmlinuz\n initrd /initramfs\n"
        f" append {KERNEL_ARGUMENTS}\n"
    )
    (tree / "vmlinuz").write_bytes(kernel.read_bytes())
    (tree / "initramfs").write_bytes(initramfs.read_bytes())
    for path in sorted(tree.rglob("*"), reverse=True):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (EPOCH, EPOCH))
    os.utime(tree, (EPOCH, EPOCH))
    options = "-quiet -V PVEBENCH -R -uid 0 -gid 0 -b isolinux/isolinux.bin -c isolinux/boot.cat"
    options += " -no-emul-boot -boot-load-size 4 -boot-info-table"
    command = ["xorriso", "-as", "mkisofs", *options.split(), "-o", str(target), str(tree)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise GuestImageError(f"xorriso failed: {done.stderr.strip()}")
