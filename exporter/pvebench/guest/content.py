"""What goes into the guest's root file system."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pvebench.errors import GuestImageError
from pvebench.guest.cpio import CHARACTER, DIRECTORY, FILE, LINK, Entry
from pvebench.guest.libraries import LOADER, find_loader, find_program, library_closure
from pvebench.guest.modules import module_files
from pvebench.guest.recipe import LINKS, MODULES, PROGRAMS, SCRIPTS, script


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
    entries, order = {}, []
    for path in module_files(root, version, MODULES):
        place = f"lib/modules/{version}/{path.name}"
        entries[place] = _file(path, 0o644)
        order.append(f"/{place}\n")
    entries["lib/modules/load.list"] = Entry(FILE | 0o644, "".join(order).encode())
    return entries


def _file(path: Path, mode: int) -> Entry:
    return Entry(FILE | mode, path.read_bytes())
