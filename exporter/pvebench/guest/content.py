"""Content of the guest's root file system: scripts, kernel modules, programs.

Programs include their libraries, as the packages' own dynamic loader resolves them.
"""

from __future__ import annotations

import ctypes
import lzma
import os
import re
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from pvebench.errors import GuestImageError
from pvebench.guest.archives import CHARACTER, DIRECTORY, FILE, LINK, Entry, unpack_archive
from pvebench.guest.recipe import (
    FILESYSTEM_MODULES,
    MERGED,
    MODULE_PLACE,
    MODULES,
    PROGRAMS,
    SCRIPTS,
    script,
)
from pvebench.model.scenario import Filesystem
from pvebench.model.units import MIB, SECTOR

# --- kernel of the guest, unpacked for a fast boot in QEMU, and its modules
#
# A distribution's kernel unpacks itself, which takes an emulated processor longer (3 to 4 s) than
# the rest of the boot. QEMU can start an unpacked kernel by its PVH entry point; the BIOS' boot
# loader cannot, so the ISO has the packed one.
# Format: the kernel's Documentation/arch/x86/boot.rst.
#
# Debian's kernel package has no modules.dep (depmod runs at installation), so the dependencies
# are read from the modules themselves: NUL-terminated `depends=` strings of their .modinfo section.

_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")
_PACKED: Final = (".xz", ".gz")
"""Compressions of modules, as in Debian 13; busybox cannot load compressed ones."""
_SETUP_SECTORS: Final = 0x1F1
_MAGIC: Final = 0x202
_PAYLOAD: Final = 0x248
_PVH_ENTRY: Final = 18
"""Type of the ELF note, owned by `Xen`, that names the entry point."""
_SIGNED: Final = b"~Module signature appended~\n"
_SIGNATURE_INFO: Final = 12
"""Bytes of `struct module_signature`, the last four of them the length of the signature."""


def _unzstd(packed: bytes) -> bytes:
    """Unpack with libzstd, which apt needs."""
    (size,) = struct.unpack("<I", packed[-4:])
    target = ctypes.create_string_buffer(min(size, 256 * MIB))
    sizes = ctypes.c_size_t(len(target)), ctypes.c_size_t(len(packed) - 4)
    unpacked = ctypes.CDLL("libzstd.so.1").ZSTD_decompress(target, sizes[0], packed, sizes[1])
    if unpacked != size:
        raise OSError("damaged zstd data")
    return target.raw


# The kernel's build appends the unpacked size, which the first two ignore.
_UNPACKERS: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    b"\xfd7zXZ\0": lambda packed: lzma.LZMADecompressor().decompress(packed),
    b"\x1f\x8b": lambda packed: zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed),
    b"\x28\xb5\x2f\xfd": _unzstd,
}


def direct_kernel(packed: bytes) -> bytes:
    """Return the unpacked kernel inside the bzImage `packed`, for QEMU's `-kernel`.

    A kernel that cannot be unpacked here, or has no PVH entry point, is returned unchanged: QEMU
    boots it too, only more slowly.
    """
    payload = _payload(packed)
    for magic, unpack in _UNPACKERS.items():
        if payload.startswith(magic):
            try:
                unpacked = unpack(payload)
            except (lzma.LZMAError, zlib.error, OSError):
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
    """Return the version of the only kernel unpacked below `root`."""
    folder = root / MODULE_PLACE
    if not folder.is_dir():
        raise GuestImageError("the packages contain no kernel modules")
    versions = sorted(path.name for path in folder.iterdir())
    if len(versions) != 1:
        raise GuestImageError(f"expected one kernel in the packages, found {versions}")
    return versions[0]


def module_files(root: Path, version: str, names: Iterable[str]) -> list[Path]:
    """Return the files of the modules `names` and of their dependencies, dependencies first.

    Modules that are built into the kernel are left out.

    Raises:
        GuestImageError: the kernel does not have one of them.
    """
    base = root / MODULE_PLACE / version
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

    for name in names:
        add(_normal(name), ())
    return list(order.values())


def _normal(name: str) -> str:
    # In module names the kernel does not distinguish - and _; files use either.
    return name.replace("-", "_")


def _files_by_name(base: Path) -> Mapping[str, Path]:
    modules = {}
    for path in base.rglob("*.ko*"):
        name = unpacked_name(path)
        if not name.endswith(".ko"):
            raise GuestImageError(
                f"kernel modules have an unsupported compression ({path.name})",
                cause="this distribution's kernel is not supported yet",
                next_step="build the image on Debian and copy its directory",
            )
        modules[_normal(name.removesuffix(".ko"))] = path
    return modules


def unpacked_name(module: Path) -> str:
    """Return the name of a module's unpacked file."""
    return module.stem if module.suffix in _PACKED else module.name


def unpacked_module(module: Path) -> bytes:
    """Return an unpacked module without its signature.

    Without KVM, the kernel takes a second of a boot to verify the signatures. The kernel's own
    init and modules come from the same verified packages.

    Raises:
        GuestImageError: the file is damaged.
    """
    content = module.read_bytes()
    for magic, unpack in _UNPACKERS.items():
        if content.startswith(magic):
            try:
                return _unsigned(unpack(content))
            except (lzma.LZMAError, zlib.error) as error:
                raise GuestImageError(f"cannot unpack {module.name}: {error}") from error
    return _unsigned(content)


def _unsigned(module: bytes) -> bytes:
    """Cut a signature: its bytes, `struct module_signature` with their number, and a marker.

    Source: include/linux/module_signature.h and kernel/module/signing.c.
    """
    if not module.endswith(_SIGNED):
        return module
    end = len(module) - len(_SIGNED)
    (length,) = struct.unpack_from(">I", module, end - 4)
    return module[: end - _SIGNATURE_INFO - length]


def _builtin(base: Path) -> set[str]:
    lines = (base / "modules.builtin").read_text("utf-8").splitlines()
    return {_normal(Path(line).name.removesuffix(".ko")) for line in lines}


def _dependencies(path: Path) -> list[str]:
    match = _DEPENDS.search(unpacked_module(path))
    return [_normal(name) for name in match[1].decode().split(",") if name] if match else []


LOADER: Final = "usr/lib64/ld-linux-x86-64.so.2"
"""Path of the dynamic loader in every program, below the link lib64."""
_PLACES: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/ceph",  # the run path of librados
)
_PROGRAM_PLACES: Final = ("usr/bin", "usr/sbin")


def root_entries(root: Path, version: str) -> dict[str, Entry]:
    """Return path -> entry of the guest's root, from packages unpacked below `root`."""
    entries = _skeleton() | _busybox(root) | _modules(root, version)
    programs = [find_program(root, name) for name in PROGRAMS]
    for path in [*programs, *library_closure(root, programs)]:
        entries[str(path.relative_to(root))] = _file(path, 0o755)
    entries[LOADER] = _file(find_loader(root), 0o755)
    entries["etc/mke2fs.conf"] = _file(root / "etc/mke2fs.conf", 0o644)
    return entries


def _skeleton() -> dict[str, Entry]:
    entries = {
        name: Entry(DIRECTORY | 0o755) for name in ("proc", "sys", "dev", "run", "tmp", "mnt")
    }
    # The kernel opens this console before devtmpfs is mounted.
    entries["dev/console"] = Entry(CHARACTER | 0o600, device=(5, 1))
    entries["dev/null"] = Entry(CHARACTER | 0o666, device=(1, 3))
    entries |= {name: Entry(LINK | 0o777, f"usr/{name}".encode()) for name in MERGED}
    for path, name in SCRIPTS.items():
        entries[path] = Entry(FILE | 0o755, script(name))
    # Called by the agent's guest-shutdown; there is nothing to write back.
    entries["usr/sbin/shutdown"] = Entry(
        FILE | 0o755, b"#!/bin/busybox sh\nexec busybox poweroff -f\n"
    )
    entries["etc/passwd"] = Entry(FILE | 0o644, b"root:x:0:0:root:/:/bin/sh\n")
    entries["etc/group"] = Entry(FILE | 0o644, b"root:x:0:\n")
    return entries


def _busybox(root: Path) -> dict[str, Entry]:
    binary = find_program(root, "busybox")
    done = subprocess.run([str(binary), "--list"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuestImageError(f"cannot run busybox: {done.stderr.strip()}")
    taken = {"busybox", "shutdown", *PROGRAMS}
    links = {
        f"usr/bin/{name}": Entry(LINK | 0o777, b"busybox")
        for name in done.stdout.split()
        if name not in taken
    }
    return {**links, "usr/bin/busybox": _file(binary, 0o755)}


def _modules(root: Path, version: str) -> dict[str, Entry]:
    entries = {}
    for name, modules in {"load": MODULES, **FILESYSTEM_MODULES}.items():
        order = []
        for path in module_files(root, version, modules):
            place = f"{MODULE_PLACE}{version}/{unpacked_name(path)}"
            entries[place] = Entry(FILE | 0o644, unpacked_module(path))
            order.append(f"/{place}\n")
        entries[f"{MODULE_PLACE}{name}.list"] = Entry(FILE | 0o644, "".join(order).encode())
    return entries


def _file(path: Path, mode: int) -> Entry:
    return Entry(FILE | mode, path.read_bytes())


def find_program(root: Path, name: str) -> Path:
    """Return the file of program `name` below `root`. Raises GuestImageError: no package has it."""
    for place in _PROGRAM_PLACES:
        if _is_inside(root, path := root / place / name):
            return path
    raise GuestImageError(f"the packages do not contain the program {name}")


def _is_inside(root: Path, path: Path) -> bool:
    """Return whether a path is a file below `root`, after all links."""
    return path.is_file() and path.resolve().is_relative_to(root.resolve())


def find_loader(root: Path) -> Path:
    """Return the dynamic loader's file below `root`. Raises GuestImageError: no package has it."""
    path = root / _PLACES[0] / Path(LOADER).name
    if _is_inside(root, path):
        return path
    raise GuestImageError(f"the packages do not contain {LOADER}")


def library_closure(root: Path, programs: Iterable[Path]) -> list[Path]:
    """Return all libraries of `programs`, also indirect ones, as paths below `root`.

    Raises:
        GuestImageError: one is missing in the packages.
    """
    loader = _loader_command(root)
    libraries: set[Path] = set()
    for program in programs:
        command = [*loader, "--list", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or done.stderr:  # versions of symbols are only reported there
            raise GuestImageError(
                f"cannot resolve {program.name}: {(done.stderr or done.stdout).strip()}"
            )
        libraries |= _needed_libraries(root, program, done.stdout)
    return sorted(libraries)


def _loader_command(root: Path) -> list[str]:
    search = ":".join(str(root / place) for place in _PLACES)
    return [str(find_loader(root)), "--library-path", search]


def _needed_libraries(root: Path, program: Path, text: str) -> set[Path]:
    libraries = set()
    for line in text.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow:
            continue  # the kernel's vdso and the loader
        path = Path(rest.rpartition(" (")[0] or rest)
        if not (path.is_relative_to(root) and _is_inside(root, path)):
            raise GuestImageError(f"{program.name} needs {name}, which no package contains: {rest}")
        libraries.add(path)
    return libraries


def prove_programs(initramfs: bytes, tree: Path) -> None:
    """Start each program of tools, file systems and guest, from an image unpacked to `tree`.

    Raises:
        GuestImageError: some are missing or do not start; it names all of them.
    """
    tree.mkdir()
    unpack_archive(initramfs, tree, but=MODULE_PLACE)
    started = {*PROGRAMS, *(f"mkfs.{kind}" for kind in Filesystem if kind.of_linux)}
    if problems := [text for name in sorted(started) if (text := _problem(tree, name))]:
        raise GuestImageError(f"programs of the guest image do not start: {'; '.join(problems)}")


def _problem(tree: Path, name: str) -> str:
    """Return why a program does not start; empty: it does, if only to reject --version."""
    try:
        program = find_program(tree, name)
        library_closure(tree, [program])
    except GuestImageError as error:
        return error.happened
    done = subprocess.run(
        [*_loader_command(tree), "--argv0", name, str(program), "--version"],
        env={**os.environ, "LD_BIND_NOW": "1"},  # also resolves the symbols that it does not use
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if 0 <= done.returncode < 126:  # from 126 on: it could not be started
        return ""
    return f"{name}: {done.stderr.strip() or f'ended with {done.returncode}'}"
