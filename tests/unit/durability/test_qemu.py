"""Logs of blklogwrites, in the format of Linux' Documentation/.../device-mapper/log-writes.rst.

QEMU's block/blklogwrites.c has the same structures; tests/integration/test_durability.py reads logs
of a real QEMU.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pvebench.errors import OutputUnreadable
from pvebench_lab.durability.qemu import Entry, durable_count, read_log, replay

FLUSH, FUA, DISCARD = 1, 2, 4


def logged(path: Path, *entries: tuple[int, int, int]) -> Path:
    """Write a log of (sector, sectors, flags); written data are the entry's number."""
    content = bytes(512)
    for number, (sector, count, flags) in enumerate(entries, 1):
        content += struct.pack("<4Q", sector, count, flags, 0).ljust(512, b"\0")
        content += bytes([number]) * (0 if flags & DISCARD else count * 512)
    path.write_bytes(content + bytes(4096))
    return path


def test_entries_have_their_data_and_end_at_the_first_empty_one(tmp_path: Path) -> None:
    log = logged(tmp_path / "log", (8, 2, 0), (0, 4, DISCARD), (0, 0, FLUSH), (16, 1, 0))
    assert read_log(log) == [
        Entry(4096, b"\1" * 1024),
        Entry(0, b"", zeros=2048),
        Entry(0, b"", flush=True),
        Entry(8192, b"\4" * 512),
    ]


def test_a_flush_covers_what_was_written_before_it(tmp_path: Path) -> None:
    log = read_log(logged(tmp_path / "log", (8, 1, 0), (0, 0, FLUSH), (16, 1, 0)))
    assert durable_count(log) == 2
    assert durable_count(log[:1]) == 0


def test_a_replay_repeats_writes_and_discards_in_their_order(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.write_bytes(b"x" * 2048)
    replay(read_log(logged(tmp_path / "log", (0, 2, 0), (1, 1, DISCARD), (2, 1, 0))), volume)
    assert volume.read_bytes() == b"\1" * 512 + bytes(512) + b"\3" * 512 + b"x" * 512


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param((0, 1 << 40, 0), id="more data than the file has"),
        pytest.param((0, 1, FUA), id="a flag that QEMU does not write"),
        pytest.param((0, 1, 1 << 40), id="an unknown flag"),
    ],
)
def test_a_damaged_entry_is_an_error(entry: tuple[int, int, int], tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(512) + struct.pack("<4Q", *entry, 0).ljust(8192, b"\0"))
    with pytest.raises(OutputUnreadable, match="invalid entry"):
        read_log(path)
