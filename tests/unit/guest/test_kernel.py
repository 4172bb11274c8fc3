from __future__ import annotations

import gzip
import lzma
import struct

import pytest

from pvebench.guest.content import direct_kernel

PVH_NOTE = struct.pack("<III4sI", 4, 4, 18, b"Xen", 0x1000000)
UNPACKED = b"\x7fELF" + b"code" * 100 + PVH_NOTE


def bzimage(payload: bytes, *, magic: bytes = b"HdrS") -> bytes:
    """A packed kernel: one boot sector, two of setup, the payload 64 bytes into the rest."""
    head = bytearray(3 * 512 + 64)
    head[0x1F1] = 2
    head[0x202:0x206] = magic
    struct.pack_into("<II", head, 0x248, 64, len(payload))
    return bytes(head) + payload + b"what follows the payload"


def packed(kernel: bytes) -> bytes:
    return lzma.compress(kernel) + struct.pack("<I", len(kernel))


def test_a_kernel_packed_with_xz_is_unpacked() -> None:
    assert direct_kernel(bzimage(packed(UNPACKED))) == UNPACKED


def test_a_kernel_packed_with_gzip_is_unpacked() -> None:
    payload = gzip.compress(UNPACKED) + struct.pack("<I", len(UNPACKED))
    assert direct_kernel(bzimage(payload)) == UNPACKED


def test_a_kernel_packed_with_zstd_is_unpacked() -> None:
    """As in Debian 13: a frame without the size of its content (RFC 8878), then that size."""
    header = (len(UNPACKED) << 3 | 1).to_bytes(3, "little")  # the last block, not compressed
    frame = bytes.fromhex("28b52ffd0058") + header + UNPACKED
    assert direct_kernel(bzimage(frame + struct.pack("<I", len(UNPACKED)))) == UNPACKED


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(bzimage(b"\x28\xb5\x2f\xfd packed"), id="damaged zstd"),
        pytest.param(bzimage(b"\x28\xb5\x2f\xfd\xff\xff\xff\xff"), id="zstd, huge"),
        pytest.param(bzimage(packed(UNPACKED.replace(PVH_NOTE, b""))), id="without PVH entry"),
        pytest.param(bzimage(packed(UNPACKED)[:40]), id="cut off"),
        pytest.param(bzimage(b"\xfd7zXZ\0" + b"rubbish" * 9), id="damaged"),
        pytest.param(bzimage(packed(UNPACKED), magic=b"\0\0\0\0"), id="no bzImage"),
        pytest.param(b"tiny", id="too short"),
    ],
)
def test_a_kernel_that_cannot_be_booted_unpacked_stays_as_it_is(image: bytes) -> None:
    assert direct_kernel(image) == image
