"""The kernel as QEMU boots it fastest: unpacked.

A distribution's kernel unpacks itself, and an emulated processor takes longer for that (3 to 4 s)
than for the whole rest of the way to userspace. QEMU also starts an unpacked kernel, by its PVH
entry point; the BIOS' boot loader does not, so the ISO keeps the packed one.
Format: the kernel's Documentation/arch/x86/boot.rst.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Final

_SETUP_SECTORS: Final = 0x1F1
_MAGIC: Final = 0x202
_PAYLOAD: Final = 0x248
_SECTOR_BYTES: Final = 512
_PVH_ENTRY: Final = 18
"""Type of the ELF note, owned by `Xen`, that names the entry point."""


def _unxz(packed: bytes) -> bytes:
    return lzma.LZMADecompressor().decompress(packed)


def _gunzip(packed: bytes) -> bytes:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(packed)


# Both leave alone what follows the packed data: the kernel appends its unpacked size.
_UNPACKERS: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    b"\xfd7zXZ\0": _unxz,
    b"\x1f\x8b": _gunzip,
}


def direct_kernel(packed: bytes) -> bytes:
    """Return the unpacked kernel inside the bzImage `packed`, for QEMU's `-kernel`.

    What cannot be unpacked here (zstd, as Ubuntu packs it), or has no PVH entry point, is
    returned as it is: QEMU boots that too, only later.
    """
    payload = _payload(packed)
    for magic, unpack in _UNPACKERS.items():
        if payload.startswith(magic):
            try:
                unpacked = unpack(payload)
            except (lzma.LZMAError, zlib.error):
                return packed
            return unpacked if _has_pvh_entry(unpacked) else packed
    return packed


def _payload(packed: bytes) -> bytes:
    if len(packed) < _PAYLOAD + 8 or packed[_MAGIC : _MAGIC + 4] != b"HdrS":
        return b""
    start = (packed[_SETUP_SECTORS] + 1) * _SECTOR_BYTES
    offset, length = struct.unpack_from("<II", packed, _PAYLOAD)
    return packed[start + offset : start + offset + length]


def _has_pvh_entry(kernel: bytes) -> bool:
    notes = (struct.pack("<III4s", 4, size, _PVH_ENTRY, b"Xen") for size in (4, 8))
    return kernel.startswith(b"\x7fELF") and any(note in kernel for note in notes)
