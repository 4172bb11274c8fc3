"""The records of `pvebench durability` on a host that loses power, inside that host.

    power.py write DIRECTORY    writes, says so by /run/shared/written, and goes on without an end
    power.py read DIRECTORY     after the next boot: prints what is left, as JSON

QEMU's own qemu-io writes, with the same formats and cache modes: a guest takes minutes to boot.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.qemu_img import SOUND, create_image
from pvebench.model.disk import Cache, Disk, Format
from pvebench.model.durability import Barrier, Touch
from pvebench_lab.durability.qemu import DISKS
from pvebench_lab.durability.records import (
    DISTANCE,
    PLACES,
    RECORD,
    RECORDS,
    SIZE,
    Read,
    RecordDisk,
    record,
)

WRITTEN: Final = Path("/run/shared/written")
_RECORDS: Final = Path("/run/records")
FIRST, REWRITE, _LATE = (PLACES[at : at + RECORDS] for at in range(0, 3 * RECORDS, RECORDS))
_PROMPT: Final = b"qemu-io> "
KEYS: Final = tuple(
    f"{image}.{cache}"
    for image in ("raw", "qcow2.preallocation-off")
    for cache in (Cache.NONE, Cache.WRITEBACK, Cache.UNSAFE)
)
"""Configurations: those that differ here. An overlay loses the same as the second image."""


class Image(RecordDisk):
    """An image and the qemu-io that has it open."""

    def __init__(self, directory: str, key: str, sync: Barrier) -> None:
        super().__init__(sync=sync)
        self.key = key
        self.kind = sync
        self.disk: Disk = DISKS[key]
        self.path = Path(directory, f"{key}.{sync}")

    def create(self) -> None:
        self.path.touch()
        create_image(self.path, self.disk, SIZE)

    def open(self) -> None:
        """Open it with its cache mode."""
        words = ["qemu-io", "-f", str(self.disk.format), "-t", str(self.disk.cache)]
        self._qemu = subprocess.Popen(
            [*words, str(self.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answer()

    def put(self, places: Sequence[int], generation: int, sync: Barrier) -> None:
        """Write records, and return when QEMU has completed them."""
        fua = "-f " if sync is Barrier.FUA else ""
        for place in places:
            source = _RECORDS / f"{place}.{generation}"
            said = self._ask(f"write {fua}-s {source} {place * DISTANCE} {RECORD}")
            assert b"wrote 4096/4096" in said, said
        if sync is Barrier.FLUSH:
            said = self._ask("flush")
            assert said == _PROMPT, said

    def _ask(self, command: str) -> bytes:
        assert self._qemu.stdin
        self._qemu.stdin.write(f"{command}\n".encode())
        self._qemu.stdin.flush()
        return self._answer()

    def _answer(self) -> bytes:
        """Return what it says until it asks for the next command."""
        assert self._qemu.stdout
        said = b""
        while not said.endswith(_PROMPT):
            part = os.read(self._qemu.stdout.fileno(), 4096)
            assert part, f"qemu-io ended: {said!r}"
            said += part
        return said

    def kill(self) -> None:
        """End QEMU without a flush."""
        self._qemu.kill()
        self._qemu.wait()

    # --- After the next boot.

    def left(self) -> dict[str, Any]:
        """Return what is found of the records."""
        found = {"key": self.key, "damaged": self._damaged()}
        content = self.content()
        survived = [asdict(self.survived(content, self.kind, touch)) for touch in Touch]
        return {**found, "survived": survived, "torn": self.torn(content)}

    def _damaged(self) -> bool:
        if self.disk.format is Format.RAW:
            return False
        command = ["qemu-img", "check", "-q", "-f", "qcow2", str(self.path)]
        return run_program(command).returncode not in SOUND

    def content(self) -> Read:
        """Return its blocks; of an image that cannot be read, none."""
        if not self.path.exists():
            return lambda _: b""
        plain = self.path
        if self.disk.format is Format.QCOW2:
            plain = _RECORDS / self.path.name
            words = ["qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(self.path), str(plain)]
            if run_program(words).returncode:
                return lambda _: b""
        blocks = {}
        with plain.open("rb") as file:
            for place in PLACES:
                file.seek(place * DISTANCE)
                blocks[place] = file.read(RECORD)
        return blocks.__getitem__


def make_records() -> None:
    """Write the records to the host's memory, where qemu-io reads them."""
    _RECORDS.mkdir(exist_ok=True)
    for place in PLACES:
        for generation in (0, 1):
            (_RECORDS / f"{place}.{generation}").write_bytes(record(place, generation))


def images(directory: str) -> Iterator[Image]:
    _RECORDS.mkdir(exist_ok=True)
    for key in KEYS:
        for sync in Barrier:
            yield Image(directory, key, sync)


def write(directory: str) -> None:
    known = list(images(directory))
    make_records()
    for image in known:
        image.create()
    os.sync()  # that a volume exists is not what is measured
    for image in known:
        image.open()
        image.put(REWRITE, 0, Barrier.FLUSH)
        image.put([*FIRST, *REWRITE], 1, image.kind)
    WRITTEN.touch()
    while True:
        for image in known:
            for generation in (0, 1):
                image.put(_LATE, generation, Barrier.NONE)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    json.dump([image.left() for image in images(sys.argv[2])], sys.stdout)
