"""Versions of packages, as options or as the output of `pveversion -v` and apt."""

from __future__ import annotations

import re
from typing import Final

from pvebench.errors import ConfigError, Problem
from pvebench.model.environment import Version

FACTS: Final = {
    "pve-qemu-kvm": "qemu_package",
    "qemu-server": "qemu_server",
    "libpve-storage-perl": "libpve_storage",
    "pve-manager": "pve",
    "zfsutils-linux": "zfs",
    "ceph": "ceph",
    "ceph-common": "ceph",
    "ceph-osd": "ceph",
    "kernel": "kernel",
    "virtio-win": "virtio_win",
}
"""Package -> fact of an environment; `kernel` is the running kernel."""
NAMES: Final = {fact: name for name, fact in reversed(FACTS.items())}
"""Fact -> its package."""
_VERSION: Final = r"(?P<version>\d[A-Za-z0-9.+~:-]*)"
_NAME: Final = r"(?P<name>[a-z0-9][a-z0-9.+-]*)"
_LINES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_NAME}={_VERSION}\s*\Z",
        rf"{_NAME}: {_VERSION}(\s|\Z)",  # pveversion -v
        rf"{_NAME}/\S+ {_VERSION} ",  # apt list --upgradable
        rf"Inst {_NAME} (\[\S+\] )?\({_VERSION} ",  # apt-get --simulate
    )
)
_LINE_ENDS: Final = re.compile(r"\n|,(?=\s*[^\s,/]+=)")
"""Of a list, or between NAME=VERSION. apt lists the archives of a package with commas, too."""
_KERNEL: Final = re.compile(r"(?:proxmox|pve)-kernel-(\d+\.\d+\.\d+-\d+)-pve")
_RUNNING: Final = re.compile(r"running kernel: (\d\S*?)\)?\s*\Z")


def read_versions(text: str, *, option: str) -> dict[str, str]:
    """Return fact -> version of `NAME=VERSION,…` or of a pasted list of packages.

    The newest kernel of a list counts, unless the list names the running one.

    Args:
        option: name of the option, for errors.

    Raises:
        ConfigError: there is no known package, or an unknown one in NAME=VERSION.
    """
    pairs = [pair for line in _LINE_ENDS.split(text) for pair in _pairs(line.strip())]
    known = [(FACTS[name], version) for name, version in pairs if name in FACTS]
    unknown = [name for name, _ in pairs if name not in FACTS]
    if not known or (unknown and "\n" not in text.strip()):
        raise _unknown(text, unknown, option)
    found: dict[str, str] = {}
    for fact, version in known:
        if fact != "kernel" or Version(found.get(fact, "0")) < Version(version):
            found[fact] = version
    running = [match[1] for line in text.splitlines() if (match := _RUNNING.search(line))]
    return found | ({"kernel": running[0].removesuffix("-pve")} if running else {})


def _pairs(line: str) -> list[tuple[str, str]]:
    match = next((found for pattern in _LINES if (found := pattern.match(line))), None)
    if match is None:
        running = _RUNNING.search(line)
        return [("kernel", running[1].removesuffix("-pve"))] if running else []
    kernel = _KERNEL.match(match["name"])
    if kernel:
        return [("kernel", kernel[1])]
    return [(match["name"], match["version"].removesuffix("-pve"))]


def _unknown(text: str, unknown: list[str], option: str) -> ConfigError:
    which = f"unknown package {unknown[0]!r}" if unknown else f"no version in {text[:60]!r}"
    expected = "write NAME=VERSION,… or a file with the output of pveversion -v or apt; known: "
    return ConfigError([Problem("command line", 0, 0, f"{option}: {which}; {expected}{_KNOWN}")])


_KNOWN: Final = ", ".join(FACTS)
