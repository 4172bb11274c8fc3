"""The guest's kernel: unpacked, as QEMU boots it fastest, and the modules it loads.

A distribution's kernel unpacks itself, and an emulated processor takes longer for that (3 to 4 s)
than for the whole rest of the way to userspace. QEMU also starts an unpacked kernel, by its PVH
entry point; the BIOS' boot loader does not, so the ISO keeps the packed one.
Format: the kernel's Documentation/arch/x86/boot.rst.

Debian's kernel package has no modules.dep (depmod runs at installation), so the dependencies
are read from the modules themselves: NUL-terminated `depends=` strings of their .modinfo section.
"""

from __future__ import annotations

import lzma
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from pvebench.errors import GuestImageError
from pvebench.model.units import SECTOR

_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")
_PACKED: Final = (".xz", ".gz")
"""How the modules' files may be packed: Debian 13 does so, and busybox loads none of them."""
_SETUP_SECTORS: Final = 0x1F1
_MAGIC: Final = 0x202
_PAYLOAD: Final = 0x248
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
    start = (packed[_SETUP_SECTORS] + 1) * SECTOR
    offset, length = struct.unpack_from("<II", packed, _PAYLOAD)
    return packed[start + offset : start + offset + length]


def _has_pvh_entry(kernel: bytes) -> bool:
    notes = (struct.pack("<III4s", 4, size, _PVH_ENTRY, b"Xen") for size in (4, 8))
    return kernel.startswith(b"\x7fELF") and any(note in kernel for note in notes)


def kernel_version(root: Path) -> str:
    """Return the version of the one kernel unpacked below `root`."""
    versions = sorted(path.name for path in _modules_folder(root).iterdir())
    if len(versions) != 1:
        raise GuestImageError(f"wanted one kernel in the packages, found {versions}")
    return versions[0]


def _modules_folder(root: Path) -> Path:
    for place in ("lib/modules", "usr/lib/modules"):
        if (root / place).is_dir():
            return root / place
    raise GuestImageError("the packages hold no kernel modules")


def module_files(root: Path, version: str, wanted: Iterable[str]) -> list[Path]:
    """Return the files of `wanted` and all they depend on, each after its dependencies.

    Modules that are built into the kernel are left out.

    Raises:
        GuestImageError: the kernel has no such module.
    """
    base = _modules_folder(root) / version
    files = _files_by_name(base)
    builtin = _builtin(base)
    order: dict[str, Path] = {}

    def add(name: str, chain: tuple[str, ...]) -> None:
        if name in order or name in builtin:
            return
        if name not in files or name in chain:
            needed = f" (needed by {chain[-1]})" if chain else ""
            raise GuestImageError(f"kernel {version} has no module {name}{needed}")
        for dependency in _dependencies(files[name]):
            add(dependency, (*chain, name))
        order[name] = files[name]

    for name in wanted:
        add(_normal(name), ())
    return list(order.values())


def _normal(name: str) -> str:
    # The kernel treats - and _ alike in module names; files use either.
    return name.replace("-", "_")


def _files_by_name(base: Path) -> Mapping[str, Path]:
    found = {}
    for path in base.rglob("*.ko*"):
        name = unpacked_name(path)
        if not name.endswith(".ko"):
            raise GuestImageError(
                f"kernel modules are packed ({path.name}) as this builder cannot unpack",
                cause="this distribution's kernel is not supported yet",
                next_step="build the image on Debian and copy its directory",
            )
        found[_normal(name.removesuffix(".ko"))] = path
    return found


def unpacked_name(module: Path) -> str:
    """Return the name of a module's file once it is unpacked."""
    return module.stem if module.suffix in _PACKED else module.name


def unpacked_module(module: Path) -> bytes:
    """Return a module as it is loaded.

    Raises:
        GuestImageError: the file is damaged.
    """
    content = module.read_bytes()
    for magic, unpack in _UNPACKERS.items():
        if content.startswith(magic):
            try:
                return unpack(content)
            except (lzma.LZMAError, zlib.error) as error:
                raise GuestImageError(f"{module.name} cannot be unpacked: {error}") from error
    return content


def _builtin(base: Path) -> set[str]:
    lines = (base / "modules.builtin").read_text("utf-8").splitlines()
    return {_normal(Path(line).name.removesuffix(".ko")) for line in lines}


def _dependencies(path: Path) -> list[str]:
    match = _DEPENDS.search(unpacked_module(path))
    return [_normal(name) for name in match[1].decode().split(",") if name] if match else []
