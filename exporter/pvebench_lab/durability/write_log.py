"""Logs of QEMU's block driver `blklogwrites`: what reached a volume, in its order.

The format is that of Linux' dm-log-writes. All numbers are little-endian. Sector 0 has the
superblock; QEMU writes it at flushes only, so the entries are read up to the first empty one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from pvebench.errors import OutputUnreadable
from pvebench.model.units import SECTOR

_HEADER: Final = struct.Struct("<4Q")
_FLUSH, _DISCARD = 1, 4
_MOST_ENTRIES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation on the volume.

    Attributes:
        offset: in the volume, bytes.
        data: written bytes; empty: none.
        zeros: bytes that a discard may have set to zero.
        flush: whether all earlier writes are on the disk from now on.
    """

    offset: int
    data: bytes
    zeros: int = 0
    flush: bool = False


def read_log(path: Path) -> list[Entry]:
    """Return the entries of a log that QEMU may still write.

    Raises:
        OutputUnreadable: it is damaged, or longer than expected.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(SECTOR)
        return list(_entries(file, size))


def _entries(file: BinaryIO, size: int) -> Iterator[Entry]:
    for _ in range(_MOST_ENTRIES):
        header = file.read(SECTOR)
        if not any(header[: _HEADER.size]):
            return
        sector, count, flags, _length = _HEADER.unpack_from(header)
        discard = bool(flags & _DISCARD)
        length = 0 if discard else count * SECTOR
        if flags & ~(_FLUSH | _DISCARD) or file.tell() + length > size:
            raise OutputUnreadable(
                f"invalid entry in the log of QEMU's writes {file.name}",
                cause="QEMU has not written it completely, or changed the format",
            )
        zeros = count * SECTOR if discard else 0
        yield Entry(sector * SECTOR, file.read(length), zeros, bool(flags & _FLUSH))
    raise OutputUnreadable(f"more than {_MOST_ENTRIES} entries in {file.name}")


def durable_count(entries: Iterable[Entry]) -> int:
    """Return how many of the first entries a completed flush covers."""
    marks = [number for number, entry in enumerate(entries, 1) if entry.flush]
    return marks[-1] if marks else 0


def replay(entries: Iterable[Entry], path: Path) -> None:
    """Write the entries to a copy of the volume at the start of the log."""
    with path.open("r+b") as file:
        for entry in entries:
            file.seek(entry.offset)
            file.write(entry.data or bytes(entry.zeros))
