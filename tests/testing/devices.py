"""Block devices for tests: loop devices over files, real to everything above them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.model.units import MIB


def need_loop_devices() -> None:
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("loop devices need root and /dev/loop-control, which this machine lacks")


@contextlib.contextmanager
def block_device(path: Path, size: int = 96 * MIB) -> Iterator[Path]:
    need_loop_devices()
    with path.open("wb") as file:
        file.truncate(size)
    command = ["losetup", "--find", "--show", str(path)]
    device = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
