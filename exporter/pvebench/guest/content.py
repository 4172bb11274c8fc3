"""What goes into the guest's root file system: scripts, kernel modules, programs.

Programs come with the libraries they need, as the packages' own dynamic loader resolves them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pvebench.errors import GuestImageError
from pvebench.guest.archives import CHARACTER, DIRECTORY, FILE, LINK, Entry
from pvebench.guest.kernel import module_files, unpacked_module, unpacked_name
from pvebench.guest.recipe import FILESYSTEM_MODULES, LINKS, MODULES, PROGRAMS, SCRIPTS, script

LOADER: Final = "lib64/ld-linux-x86-64.so.2"
"""Where every program looks for it. Debian 13 (untried) packs it below usr, as a link's target."""
_PLACES: Final = (
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/ceph",  # where librados looks by its own run path
)
_PROGRAM_PLACES: Final = ("usr/bin", "usr/sbin", "bin", "sbin")


def root_entries(root: Path, version: str) -> dict[str, Entry]:
    """Return path -> entry of the guest's root, from packages unpacked below `root`."""
    entries = _skeleton() | _busybox(root) | _modules(root, version)
    programs = [find_program(root, name) for name in PROGRAMS]
    for path in [*programs, *library_closure(root, programs)]:
        entries[str(path.relative_to(root))] = _file(path, 0o755)
    entries[LOADER] = _file(find_loader(root), 0o755)
    for link, target in LINKS.items():
        entries[link.lstrip("/")] = Entry(LINK | 0o777, target.encode())
    entries["etc/mke2fs.conf"] = _file(root / "etc/mke2fs.conf", 0o644)
    return entries


def _skeleton() -> dict[str, Entry]:
    entries = {
        name: Entry(DIRECTORY | 0o755) for name in ("proc", "sys", "dev", "run", "tmp", "mnt")
    }
    # Before devtmpfs is mounted the kernel opens the console from here.
    entries["dev/console"] = Entry(CHARACTER | 0o600, device=(5, 1))
    entries["dev/null"] = Entry(CHARACTER | 0o666, device=(1, 3))
    for path, name in SCRIPTS.items():
        entries[path] = Entry(FILE | 0o755, script(name))
    # The agent's guest-shutdown calls this; there is nothing to write back.
    entries["sbin/shutdown"] = Entry(FILE | 0o755, b"#!/bin/busybox sh\nexec busybox poweroff -f\n")
    entries["etc/passwd"] = Entry(FILE | 0o644, b"root:x:0:0:root:/:/bin/sh\n")
    entries["etc/group"] = Entry(FILE | 0o644, b"root:x:0:\n")
    return entries


def _busybox(root: Path) -> dict[str, Entry]:
    binary = find_program(root, "busybox")
    done = subprocess.run([str(binary), "--list"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuestImageError(f"busybox does not run here: {done.stderr.strip()}")
    taken = {"busybox", "shutdown", *PROGRAMS}
    links = {
        f"bin/{name}": Entry(LINK | 0o777, b"busybox")
        for name in done.stdout.split()
        if name not in taken
    }
    return {**links, "bin/busybox": _file(binary, 0o755)}


def _modules(root: Path, version: str) -> dict[str, Entry]:
    entries = {}
    for name, wanted in {"load": MODULES, **FILESYSTEM_MODULES}.items():
        order = []
        for path in module_files(root, version, wanted):
            place = f"lib/modules/{version}/{unpacked_name(path)}"
            entries[place] = Entry(FILE | 0o644, unpacked_module(path))
            order.append(f"/{place}\n")
        entries[f"lib/modules/{name}.list"] = Entry(FILE | 0o644, "".join(order).encode())
    return entries


def _file(path: Path, mode: int) -> Entry:
    return Entry(FILE | mode, path.read_bytes())


def find_program(root: Path, name: str) -> Path:
    """Return the file of program `name` below `root`.

    Raises:
        GuestImageError: no package has it.
    """
    for place in _PROGRAM_PLACES:
        path = root / place / name
        if path.is_file():
            return path
    raise GuestImageError(f"the packages hold no program {name}")


def find_loader(root: Path) -> Path:
    """Return the dynamic loader's file below `root`.

    Raises:
        GuestImageError: no package has it.
    """
    for path in (root / LOADER, root / "usr" / LOADER):
        if path.is_file():
            return path
    raise GuestImageError(f"the packages hold no {LOADER}")


def library_closure(root: Path, programs: Iterable[Path]) -> list[Path]:
    """Return the libraries that `programs` need, directly or not, as paths below `root`.

    Raises:
        GuestImageError: one cannot be found in the packages.
    """
    loader = str(find_loader(root))
    search = ":".join(str(root / place) for place in _PLACES)
    found: set[Path] = set()
    for program in programs:
        command = [loader, "--library-path", search, "--list", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GuestImageError(
                f"{program.name} cannot be resolved: {(done.stderr or done.stdout).strip()}"
            )
        found |= _needed_libraries(root, program, done.stdout)
    return sorted(found)


def _needed_libraries(root: Path, program: Path, text: str) -> set[Path]:
    found = set()
    for line in text.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow:
            continue  # the kernel's vdso, and the loader itself
        path = Path(rest.rpartition(" (")[0] or rest)
        if not path.is_relative_to(root):
            raise GuestImageError(f"{program.name} needs {name}, which no package holds: {rest}")
        found.add(path)
    return found
