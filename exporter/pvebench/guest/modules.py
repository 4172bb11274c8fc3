"""Kernel modules: which files a list of names needs, in loading order.

Debian's kernel package has no modules.dep (depmod runs at installation), so the dependencies
are read from the modules themselves: NUL-terminated `depends=` strings of their .modinfo section.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pvebench.errors import GuestImageError

_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")
_COMPRESSED: Final = (".ko.xz", ".ko.zst", ".ko.gz")


def kernel_version(root: Path) -> str:
    """Return the version of the one kernel unpacked below `root`."""
    versions = sorted(path.name for path in _modules(root).iterdir())
    if len(versions) != 1:
        raise GuestImageError(f"wanted one kernel in the packages, found {versions}")
    return versions[0]


def _modules(root: Path) -> Path:
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
    base = _modules(root) / version
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
        if path.name.endswith(_COMPRESSED):
            raise GuestImageError(
                f"kernel modules are compressed ({path.name}), which this builder cannot read",
                cause="this distribution's kernel is not supported yet",
                next_step="build the image on Debian 12 and copy its directory",
            )
        found[_normal(path.name.removesuffix(".ko"))] = path
    return found


def _builtin(base: Path) -> set[str]:
    lines = (base / "modules.builtin").read_text("utf-8").splitlines()
    return {_normal(Path(line).name.removesuffix(".ko")) for line in lines}


def _dependencies(path: Path) -> list[str]:
    match = _DEPENDS.search(path.read_bytes())
    return [_normal(name) for name in match[1].decode().split(",") if name] if match else []
