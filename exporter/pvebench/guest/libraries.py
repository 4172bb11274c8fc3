"""Shared libraries: what the programs need, as the packages' own dynamic loader resolves it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pvebench.errors import GuestImageError

LOADER: Final = "lib64/ld-linux-x86-64.so.2"
"""Where every program looks for it. Debian 13 (untried) packs it below usr, as a link's target."""
_PLACES: Final = (
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/ceph",  # where librados looks by its own run path
)
_PROGRAM_PLACES: Final = ("usr/bin", "usr/sbin", "bin", "sbin")


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
        found |= _parse(root, program, done.stdout)
    return sorted(found)


def _parse(root: Path, program: Path, text: str) -> set[Path]:
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
