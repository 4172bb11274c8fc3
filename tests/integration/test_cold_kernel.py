"""What empties the page cache of a volume: this kernel and QEMU's own block layer, without a guest.

Witness: util-linux's fincore, which asks the kernel, and a device's own count of sectors. `qemu-io`
opens a file with the flags of each cache mode as QEMU itself does (block/file-posix.c); a loop
device stands for LVM's block devices.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.model.units import MIB
from testing.real_outcomes import cached_bytes

SIZE = 32 * MIB


def qemu_io(path: Path, cache: str, verb: str) -> None:
    """Open a volume as that cache mode does, and read or write it whole."""
    command = ["qemu-io", "-f", "raw", "-t", cache, "-c", f"{verb} 0 {SIZE}", str(path)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    path = tmp_path / "vm-9000-disk-0.raw"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.mark.parametrize("cache", ["writeback", "writethrough", "unsafe"])
def test_a_cached_mode_leaves_the_volume_in_memory_and_a_direct_write_puts_it_out(
    volume: Path, cache: str
) -> None:
    qemu_io(volume, cache, "write")
    assert cached_bytes(volume) == SIZE
    qemu_io(volume, "none", "write")
    assert cached_bytes(volume) == 0


def test_a_direct_read_puts_nothing_out(volume: Path) -> None:
    """Why it must be a write."""
    qemu_io(volume, "writeback", "write")
    qemu_io(volume, "none", "read")
    assert cached_bytes(volume) > 0.9 * SIZE


@pytest.fixture
def device(volume: Path) -> Iterator[Path]:
    command = ["losetup", "--find", "--show", "--direct-io=on", str(volume)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no loop device here: {done.stderr.strip()}")
    yield Path(done.stdout.strip())
    subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True)


def read_bytes(device: Path) -> int:
    """Return what was read from the device since it was made, by its own count."""
    return int(Path(f"/sys/block/{device.name}/stat").read_text("ascii").split()[2]) * 512


def test_a_block_device_loses_what_is_cached_of_it_with_its_last_user(device: Path) -> None:
    with device.open("rb"):
        qemu_io(device, "writeback", "write")
        before = read_bytes(device)
        qemu_io(device, "writeback", "read")
        assert read_bytes(device) - before < 0.1 * SIZE  # from memory, while somebody has it open
    read = [0]
    # Another test may have it open just then, as those that look at all devices.
    while read[-1] < SIZE and len(read) < 5:
        before = read_bytes(device)
        qemu_io(device, "writeback", "read")
        read.append(read_bytes(device) - before)
    assert read[-1] >= SIZE, read
