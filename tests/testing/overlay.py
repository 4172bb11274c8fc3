"""A file system without a block device of its own, mounted for real: an overlay."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def overlay(folder: Path) -> Iterator[Path]:
    """Yield where it is mounted. That it has no device is told by the kernel: its number's major
    is 0 ("Unnamed devices", Linux' Documentation/admin-guide/devices.txt)."""
    if os.geteuid() != 0:
        pytest.skip("an overlay is mounted by root only")
    lower, upper, work, where = (folder / name for name in ("lower", "upper", "work", "overlay"))
    for one in (lower, upper, work, where):
        one.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, where], check=True)
    try:
        assert os.major(where.stat().st_dev) == 0
        yield where
    finally:
        subprocess.run(["umount", where], check=True)
