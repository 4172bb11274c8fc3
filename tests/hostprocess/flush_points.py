"""The records of `pvebench durability` after a loss of power at each flush, inside that host.

    flush_points.py DISK LOG COPY CHANGES OPTIONS

Linux' dm-log-writes lies below a linear volume, as LVM makes it, with ext4 and mount OPTIONS, and
logs what reaches DISK. A mark in the log follows each completed write or flush of a record. The
log is replayed to COPY. At each flush or FUA, ext4 is mounted from a snapshot of that state, and
the records must be there whose mark comes before the next flush. Prints what is lost, as JSON.

The format is that of Documentation/admin-guide/device-mapper/log-writes.rst and `struct
log_write_super` of drivers/md/dm-log-writes.c. The driver's write_log.py knows no FUA and no marks.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hostprocess.power import FIRST, REWRITE, Image, make_records
from pvebench.model.durability import Barrier
from pvebench.model.units import SECTOR
from pvebench_lab.durability.records import record

KEYS: Final = ("raw.none", "qcow2.preallocation-off.none", "raw.unsafe")
SYNCS: Final = (Barrier.FLUSH, Barrier.FUA)
BATCH: Final = 8
"""Records between two marks."""
_MOUNTED, _CHECKED = Path("/srv/logged"), Path("/srv/checked")
_OFFSET: Final = 2048
"""First sector of the volume, as LVM aligns it."""
_MAGIC: Final = 0x6A736677736872
_SUPER: Final = struct.Struct("<3QI")
_HEADER: Final = struct.Struct("<4Q")
END: Final = "end"
_FLUSH, _FUA, _DISCARD, _MARK = 1, 2, 4, 8


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@contextmanager
def device(name: str, table: str) -> Iterator[str]:
    run("dmsetup", "create", name, "--table", table)
    try:
        yield f"/dev/mapper/{name}"
    finally:
        run("dmsetup", "remove", "--retry", name)


@contextmanager
def mounted(path: str, where: Path, *options: str) -> Iterator[str]:
    where.mkdir(exist_ok=True)
    run("mount", *options, path, str(where))
    try:
        yield str(where)
    finally:
        run("umount", str(where))


@contextmanager
def volume(name: str, below: str, sectors: int) -> Iterator[str]:
    table = f"0 {sectors - _OFFSET} linear {below} {_OFFSET}"
    with device(name, table) as path:
        yield path


# --- writing


def mark(text: str) -> None:
    run("dmsetup", "message", "logged", "0", f"mark {text}")


def write(directory: str) -> None:
    """Write to one image after the other, and mark in the log what is completed."""
    for key in KEYS:
        for sync in SYNCS:
            image = Image(directory, key, sync)
            image.create()
            os.sync()  # that a volume exists is not what is measured
            image.open()
            for places, generation in ((REWRITE, 0), (FIRST, 1), (REWRITE, 1)):
                for at in range(0, len(places), BATCH):
                    batch = places[at : at + BATCH]
                    image.put(batch, generation, sync)
                    mark(f"{image.path.name}:{generation}:{','.join(map(str, batch))}")
            image.kill()


# --- replay


@dataclass(frozen=True)
class Entry:
    offset: int
    data: bytes
    zeros: int
    cut: bool
    mark: str


def entries(path: str) -> Iterator[Entry]:
    with Path(path).open("rb") as log:
        magic, _, count, size = _SUPER.unpack_from(log.read(SECTOR))
        assert (magic, size) == (_MAGIC, SECTOR), (magic, size)
        for _ in range(count):
            block = log.read(SECTOR)
            sector, sectors, flags, length = _HEADER.unpack_from(block)
            mark = block[_HEADER.size :][:length].decode() if flags & _MARK else ""
            discard = bool(flags & _DISCARD)
            data = b"" if discard or mark else log.read(sectors * SECTOR)
            zeros = sectors * SECTOR if discard else 0
            yield Entry(sector * SECTOR, data, zeros, bool(flags & (_FLUSH | _FUA)), mark)


class Replay:
    """The copy of the disk, and what was completed at its state."""

    def __init__(self, copy: str, changes: str) -> None:
        self.copy, self.changes = copy, changes
        self.sectors = int(run("blockdev", "--getsz", copy))
        self.known: dict[str, dict[int, int]] = {}
        self.cuts = 0
        self.lost: dict[str, int] = {}
        """Image -> most records that are missing at a cut."""

    def check(self, name: str) -> None:
        """Mount the state and look for the records of an image."""
        table = f"0 {self.sectors} snapshot {self.copy} {self.changes} N 8"
        with (
            device("state", table) as state,
            volume("checked", state, self.sectors) as path,
            mounted(path, _CHECKED) as directory,
        ):
            key, _, sync = name.rpartition(".")
            image = Image(directory, key, Barrier(sync))
            content = image.content()
            missing = sum(
                content(place) not in [record(place, later) for later in range(generation, 2)]
                for place, generation in self.known[name].items()
            )
        self.lost[name] = max(self.lost.get(name, 0), missing)

    def completed(self, text: str) -> str:
        name, generation, places = text.split(":")
        known = self.known.setdefault(name, {})
        known.update(dict.fromkeys(map(int, places.split(",")), int(generation)))
        return name

    def run(self, log: str) -> None:
        """Apply the log; at each cut, check the image that is written then, at the end all."""
        current, pending = "", list[Entry]()
        for entry in entries(log):
            if entry.mark == END:
                break
            if entry.mark:
                current = self.completed(entry.mark)
                continue
            pending.append(entry)
            if entry.cut:
                if current:
                    self.check(current)
                    self.cuts += 1
                self.apply(pending)
                pending = []
        for name in self.known:
            self.check(name)

    def apply(self, writes: Sequence[Entry]) -> None:
        with Path(self.copy).open("r+b", buffering=0) as copy:
            for entry in writes:
                os.pwrite(copy.fileno(), entry.data or bytes(entry.zeros), entry.offset)
            os.fsync(copy.fileno())


def main(disk: str, log: str, copy: str, changes: str, options: str) -> dict[str, Any]:
    run("modprobe", "-a", "dm-log-writes", "dm-snapshot")
    Path("/proc/sys/vm/dirty_writeback_centisecs").write_text("0")
    make_records()
    sectors = int(run("blockdev", "--getsz", disk))
    with (
        device("logged", f"0 {sectors} log-writes {disk} {log}") as below,
        volume("volume", below, sectors) as path,
    ):
        run("mkfs.ext4", "-q", "-F", path)
        with mounted(path, _MOUNTED, "-o", options) as directory:
            write(directory)
            mark(END)
    replay = Replay(copy, changes)
    replay.run(log)
    return {"cuts": replay.cuts, "lost": replay.lost}


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
