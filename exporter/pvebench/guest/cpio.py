"""A cpio archive in the kernel's `newc` form, the same bytes for the same content.

Written here because nothing else makes device nodes without root, with no owner and no time.
Format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_BLOCK: Final = 4
DIRECTORY: Final = 0o040000
FILE: Final = 0o100000
LINK: Final = 0o120000
CHARACTER: Final = 0o020000


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: file type and permissions, content (of a link: its target), device numbers."""

    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def archive(entries: Mapping[str, Entry]) -> bytes:
    """Return the archive of `entries` (path without leading slash -> entry).

    Parents are made where they are missing; entries are sorted, so a parent comes first.
    """
    whole = {**_parents(entries), **entries}
    parts = [
        _record(path, whole[path], number) for number, path in enumerate(sorted(whole), start=1)
    ]
    return b"".join([*parts, _record("TRAILER!!!", Entry(0), 0)])


def _parents(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    found = {}
    for path in entries:
        while "/" in path:
            path = path.rpartition("/")[0]  # noqa: PLW2901 # walks up
            found[path] = Entry(DIRECTORY | 0o755)
    return found


def _record(path: str, entry: Entry, number: int) -> bytes:
    name = path.encode() + b"\0"
    links = 2 if entry.mode & 0o170000 == DIRECTORY else 1
    major, minor = entry.device
    fields = (
        number, entry.mode, 0, 0, links, 0, len(entry.content), 0, 0, major, minor, len(name), 0,
    )  # fmt: skip
    header = b"070701" + "".join(f"{field:08X}" for field in fields).encode()
    return _padded(header + name) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _BLOCK)
