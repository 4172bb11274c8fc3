"""A btrfs for tests, on loop devices: real to everything above them, and to btrfs-progs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pvebench.model.units import MIB
from testing.devices import block_device

_MEMBER = re.compile(r"^\tdevid +\d+ size \d+ used \d+ path (/\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Btrfs:
    """One that is mounted at `where`, on `loops`."""

    where: Path
    loops: list[Path]

    def subvolume(self, name: str) -> Path:
        """Return a new one. That it has a number of its own is asked of the kernel."""
        made = self.where / name
        made.parent.mkdir(parents=True, exist_ok=True)
        run("btrfs", "-q", "subvolume", "create", made)
        assert made.stat().st_dev != self.where.stat().st_dev
        return made

    def members(self) -> set[int]:
        """Return the numbers of the devices that btrfs-progs lists, which asks by ioctl."""
        said = run("btrfs", "filesystem", "show", "--raw", self.where)
        return {Path(path).stat().st_rdev for path in _MEMBER.findall(said)}


@contextlib.contextmanager
def btrfs(folder: Path, profile: str) -> Iterator[Btrfs]:
    """Yield one on one device (`single`) or on two (`raid1`)."""
    if "btrfs" not in Path("/proc/filesystems").read_text("ascii"):
        run("modprobe", "btrfs", check=False)
    if "btrfs" not in Path("/proc/filesystems").read_text("ascii"):
        pytest.skip("this kernel has no btrfs; make e2e-host measures on one")
    with contextlib.ExitStack() as stack:
        count = 2 if profile == "raid1" else 1
        files = [folder / f"btrfs-{number}" for number in range(count)]
        loops = [stack.enter_context(block_device(file, 1024 * MIB)) for file in files]
        run("mkfs.btrfs", "-q", "-f", "-d", profile, "-m", profile, *loops)
        where = folder / "mounted here"
        where.mkdir()
        run("mount", "-t", "btrfs", loops[0], where)
        stack.callback(run, "umount", where)
        assert os.major(where.stat().st_dev) == 0
        yield Btrfs(where, loops)


def run(*command: str | Path, check: bool = True) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=check).stdout
